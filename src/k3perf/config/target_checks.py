"""What a target says twice must agree: devices and ranks, and the target that it scales
from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from k3perf.config.models import TargetSpec
from k3perf.errors import ConfigFileError


def devices_problems(target: TargetSpec, path: Path) -> Iterator[ConfigFileError]:
    """Each rank has a device of its own, and every device a rank: locks, budgets and
    scaling efficiency count devices, engines use ranks.
    """
    hardware, parallelism = target.hardware, target.parallelism
    if hardware.kind == "cpu":
        return
    if parallelism.rank_count != hardware.device_count:
        problem = (
            f"is {hardware.device_count}, but parallelism makes {parallelism.rank_count} ranks"
            f" ({parallelism.text})"
        )
        yield ConfigFileError(
            path,
            "hardware.device_count",
            None,
            problem,
            "Give one device a rank, of all hosts together.",
        )
    if hardware.device_count % hardware.host_count:
        problem = f"does not divide the {hardware.device_count} devices evenly"
        yield ConfigFileError(
            path,
            "hardware.host_count",
            hardware.host_count,
            problem,
            "Give every host as many devices.",
        )


def decode_context_problems(
    target: TargetSpec, config: str, arguments: Mapping[str, Any], path: Path
) -> Iterator[ConfigFileError]:
    """Decode context parallelism adds no rank: it spreads the KV cache over ranks that
    `parallelism` has.

    The sizes that vLLM takes are those of ``ParallelConfig`` in vLLM 0.32.
    """
    name = "decode_context_parallel_size"
    size = arguments.get(name, 1)
    tensor, prefill = target.parallelism.tensor, target.parallelism.prefill_context
    possible = [count for count in range(1, tensor + 1) if tensor % count == 0]
    if prefill > 1:
        possible = sorted({1, prefill, tensor * prefill})
    if size in possible and not isinstance(size, bool):
        return
    own = name in target.engine_arguments and target.engine_arguments[name] == size
    problem = f"does not fit the ranks of parallelism ({target.parallelism.text})"
    step = f"Use one of: {', '.join(map(str, possible))}."
    if own:
        yield ConfigFileError(path, f"engine_arguments.{name}", size, problem, step)
        return
    yield ConfigFileError(
        path,
        "configs",
        config,
        f"sets {name} {size!r}, which {problem}",
        f"{step} Or leave the config out.",
    )


def scaling_base_problems(
    targets: Mapping[str, TargetSpec], target: TargetSpec, path: Path
) -> Iterator[ConfigFileError]:
    """The same model on the same devices, only fewer of them: else the ratio would say
    something of the model or of the device.
    """
    name = target.scaling_base
    if name is None:
        return
    base = targets.get(name)
    if base is None:
        problem, next_step = "no target has this name", f"Use one of: {', '.join(targets)}."
    elif base.model != target.model:
        problem = (
            f"serves another model ({_model_text(base)}) than this target ({_model_text(target)})"
        )
        next_step = "Name a target of the same model, or leave the key out."
    elif (base.hardware.kind, base.hardware.device_name) != (
        target.hardware.kind,
        target.hardware.device_name,
    ):
        problem = (
            f"runs on other devices ({_device_text(base)}) than this target"
            f" ({_device_text(target)})"
        )
        next_step = "Name a target on the same devices, or leave the key out."
    elif base.hardware.device_count >= target.hardware.device_count:
        problem = (
            f"has {base.hardware.device_count} devices, not fewer than this target's"
            f" {target.hardware.device_count}"
        )
        next_step = "Name a target of fewer devices, or leave the key out."
    else:
        return
    yield ConfigFileError(path, "scaling_base", name, problem, next_step)


def _model_text(target: TargetSpec) -> str:
    return f"{target.model.directory or target.model.checkpoint}, {target.model.weights} weights"


def _device_text(target: TargetSpec) -> str:
    return target.hardware.device_name or target.hardware.kind
