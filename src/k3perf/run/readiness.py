"""Is this machine fit to start these engines? The pre-flight of a run: what the cells need, checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from k3perf.config.models import TargetSpec
from k3perf.engine.devices import nvml_reader
from k3perf.engine.preflight import Finding, Needs, check, require
from k3perf.units import GIB

# A CPU engine holds its weights twice while it packs them, the KV cache and about 1.2 GiB of interpreter and libraries per process tree.
CPU_ENGINE_BASE_BYTES: Final = 2 * GIB


def require_ready(target: TargetSpec, *, engines_count: int, engine_python: Path, results_directory: Path) -> None:
    """Raise PreflightError that lists everything that is missing, by reading and need."""
    require(find(target, engines_count=engines_count, engine_python=engine_python, results_directory=results_directory))


def find(target: TargetSpec, *, engines_count: int, engine_python: Path, results_directory: Path) -> tuple[Finding, ...]:
    """Every check of the machine against what the target's engines need; starts nothing, raises nothing."""
    hardware = target.hardware
    needed_bytes = engines_count * (CPU_ENGINE_BASE_BYTES + _kv_space_bytes(target)) if hardware.kind == "cpu" else None
    needs = Needs(
        hardware=hardware,
        free_memory_bytes=needed_bytes,
        writable_directories=(results_directory.parent,),
        engine_python=engine_python,
        cpus=tuple(sorted({*target.pinning.worker_cpus, *target.pinning.server_cpus, *target.pinning.client_cpus})),
    )
    return check(needs, devices=nvml_reader() if hardware.kind == "nvidia" else None)


def _kv_space_bytes(target: TargetSpec) -> int:
    return int(float(target.environment.get("VLLM_CPU_KVCACHE_SPACE", "4")) * GIB)
