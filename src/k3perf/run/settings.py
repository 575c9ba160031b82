"""What one run was asked to do. Made once by the plugin or the CLI, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from k3perf.config.models import TargetSpec
from k3perf.config.suite import Suite
from k3perf.errors import UsageError
from k3perf.records.samples import Arm

if TYPE_CHECKING:
    from k3perf.store.base_checkout import Judge

Mode = Literal["baseline", "reference", "ab"]

QUIET_WAIT_S: Final = 300.0

RECORD_MINUTES: Final = 120.0
"""After the planned sessions a recording starts no other one that would end later."""


def arm_name(arm: Arm, mode: str) -> str:
    """What a user reads: in ``ab`` mode the reference arm is the base."""
    return "base" if mode == "ab" and arm is Arm.REFERENCE else str(arm)


@dataclass(frozen=True, slots=True)
class Injection:
    """A supported fault put into the candidate engine of a run, to show that the gate
    fails. ``both_arms``: into the reference arm's engine too, to show what the gate
    cannot see.

    ``kind``: ``slow_step_percent`` (every step slower by that share of its
    duration), ``hold_device_bytes``, ``hold_host_bytes``, ``hold_weights_bytes``, or
    one of ``WRONG_ANSWERS`` (``k3perf_probe.wrong_answers``).
    """

    kind: str
    amount: float
    both_arms: bool = False

    WRONG_ANSWERS = (
        "kv_scale_factor",
        "decode_kv_scale_factor",
        "skip_layer_number",
        "zero_expert_number",
        "router_top_k",
        "rope_offset_tokens",
        "wrong_block_number",
    )
    KINDS = (
        "slow_step_percent",
        "hold_device_bytes",
        "hold_host_bytes",
        "hold_weights_bytes",
        *WRONG_ANSWERS,
    )

    @classmethod
    def parse(cls, text: str) -> Injection:
        """``kind=amount`` or ``both:kind=amount``; UsageError names what is wrong."""
        both_arms = text.startswith("both:")
        kind, separator, amount_text = text.removeprefix("both:").partition("=")
        if kind not in cls.KINDS or not separator:
            raise UsageError(
                f"--k3-inject {text!r}: use [both:]KIND=AMOUNT with KIND one of"
                f" {', '.join(cls.KINDS)}"
            )
        try:
            amount = float(amount_text)
        except ValueError:
            amount = -1.0
        if not 0 < amount < float("inf"):
            raise UsageError(f"--k3-inject {text!r}: the amount must be a positive number")
        return cls(kind, amount, both_arms)

    def __str__(self) -> str:
        return f"{'both:' if self.both_arms else ''}{self.kind}={self.amount!r}"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that decides a run but the cells themselves.

    ``mode`` None takes each target's own. ``ab_base`` is the base's engine Python in
    ``ab`` mode, with ``ab_suite`` the declarations the base is measured with (another
    git ref's, or the same), and ``ab_base_name`` what it is called. ``judge``: the base
    whose baselines and waivers judge, None if the suite judges itself.
    ``planned_gated_metric_count``: of the whole plan, when this run is a shard.
    ``cpu_features``: the instruction sets that can be used on this machine.
    ``quiet_wait_s``: how long a recording waits each time for other processes to leave
    the CPUs idle. ``record_minutes``: the limit of a recording's further sessions, from
    its start. ``record_within_minutes``: the limit of all its sessions. ``servers``:
    addresses of running servers that are measured in place of engines; empty where the
    suite starts engines.
    """

    suite: Suite
    run_id: str
    commit: str
    baselines_directory: Path
    results_directory: Path
    cache_directory: Path
    engine_python: Path
    engine_python_path: str
    mode: Mode | None = None
    ab_base_python: Path | None = None
    ab_suite: Suite | None = None
    ab_base_name: str = ""
    judge: Judge | None = None
    record: bool = False
    record_sessions: int | None = None
    record_minutes: float = RECORD_MINUTES
    record_within_minutes: float | None = None
    strict: bool = False
    planned_gated_metric_count: int | None = None
    injections: tuple[Injection, ...] = ()
    trace_file: Path | None = None
    resume: bool = False
    build: str = ""
    cpu_features: frozenset[str] = frozenset()
    quiet_wait_s: float = QUIET_WAIT_S
    servers: tuple[str, ...] = ()

    @property
    def experiment(self) -> dict[str, str]:
        """What must be equal for results of an earlier run to be this run's."""
        judged = {} if self.judge is None else {"judge_from": self.judge.name}
        return judged | {
            "commit": self.commit,
            "engine_python": str(self.engine_python),
            **({"servers": ",".join(self.servers)} if self.servers else {}),
            "injected": ",".join(str(injection) for injection in self.injections),
            "ab_base": str(
                self.ab_base_python or (self.ab_suite.root if self.ab_suite is not None else "")
            ),
        }

    def hardware_class(self, target: TargetSpec) -> str:
        """The class that the numbers of a target are of in this run."""
        return target.hardware.class_with(self.cpu_features)

    def mode_for(self, target_name: str) -> Mode:
        """The comparison mode of a target in this run."""
        if self.servers:
            return "baseline"
        if self.ab_base_python is not None or self.ab_suite is not None:
            return "ab"
        return self.mode or self.suite.target(target_name).measurement.mode
