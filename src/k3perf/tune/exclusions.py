"""Points that need no engine: refused, too large, or forced to an engine that is known.
Pure but for the model's config.json, which the caller reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3perf.capacity.memory_plan import MemoryPlan, plan_memory
from k3perf.capacity.rules import platform_rules
from k3perf.capacity.shape import Ranks
from k3perf.config.models import TargetSpec
from k3perf.config.refusals import in_range, matches
from k3perf.config.suite import Suite
from k3perf.errors import UsageError
from k3perf.records.tuning import Change
from k3perf.units import GIB


@dataclass(frozen=True)
class Exclusions:
    """``reason`` of a change, empty where it must be measured. ``model_config`` None:
    no memory plan can be made.
    """

    suite: Suite
    target: TargetSpec
    base_arguments: Mapping[str, Any]
    model_config: Mapping[str, Any] | None

    def reason(self, change: Change) -> str:
        """Why the point costs nothing."""
        arguments = {**self.base_arguments, **change}
        return self._refused(arguments) or self._planned(arguments, change)

    def _refused(self, arguments: Mapping[str, Any]) -> str:
        for refusal in self.suite.refusals_of(self.target):
            if refusal.without_cpu_features:
                continue
            if matches(refusal, arguments) and in_range(refusal, None, self.target):
                return f"refused: {refusal.reason}"
        seqs, tokens = arguments.get("max_num_seqs"), arguments.get("max_num_batched_tokens")
        if isinstance(seqs, int) and isinstance(tokens, int) and tokens < seqs:
            return f"refused: max_num_batched_tokens {tokens} is below max_num_seqs {seqs}"
        return ""

    def _planned(self, arguments: Mapping[str, Any], change: Change) -> str:
        plan = self.memory(arguments)
        if plan is None:
            return ""
        if plan.fits is False:
            short = -(plan.headroom_bytes or 0) / GIB
            return f"does not fit: the memory plan is {short:.2f} GiB short"
        asked = change.get("block_size")
        if asked is not None and plan.block_size_tokens != asked:
            base = self.memory({**arguments, "block_size": self.base_arguments.get("block_size")})
            if base is not None and base.block_size_tokens == plan.block_size_tokens:
                return (
                    f"resolves to the parent's engine: blocks of {plan.block_size_tokens} tokens"
                    " are forced, whatever is asked for"
                )
        return ""

    def memory(self, arguments: Mapping[str, Any]) -> MemoryPlan | None:
        """The memory plan. None for a model, dtype or split that it does not cover."""
        if self.model_config is None:
            return None
        split, hardware = self.target.parallelism, self.target.hardware
        try:
            return plan_memory(
                self.model_config,
                {name: value for name, value in arguments.items() if value is not None},
                parallelism=Ranks(split.tensor, split.pipeline, split.data, split.expert),
                device_memory_bytes=hardware.device_memory_bytes,
                rules=platform_rules(hardware.kind),
                environment=self.target.environment,
            )
        except (UsageError, KeyError, ValueError, TypeError):
            return None
