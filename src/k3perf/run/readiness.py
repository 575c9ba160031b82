"""Is this machine fit to start these engines? The pre-flight of a run: what the cells need, checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from k3perf.config.models import ConfigSpec, TargetSpec
from k3perf.config.suite import Suite
from k3perf.engine.devices import DeviceReader, nvml_reader
from k3perf.engine.installed_vllm import installed_vllm, load_command, native_module
from k3perf.engine.port import PortReservation
from k3perf.engine.preflight import Finding, Level, Needs, check, device_holders, host_memory_holders, require, wait_for_memory
from k3perf.errors import PreflightError, UsageError
from k3perf.telemetry.visible import target_device_indices
from k3perf.units import GIB

# A CPU engine holds its weights twice while it packs them, the KV cache and about 1.2 GiB of interpreter and libraries per process tree.
CPU_ENGINE_BASE_BYTES: Final = 2 * GIB
MEMORY_DEADLINE_S: Final = 60.0
GPU_MEMORY_UTILIZATION: Final = 0.9  # vLLM's default has been 0.9 or a little more


def require_ready(
    target: TargetSpec, *, engines_count: int, engine_python: Path, results_directory: Path, own_pids: tuple[int, ...] = ()
) -> None:
    """Wait for memory, then raise PreflightError that lists everything that is missing, by reading and need.

    ``own_pids``: processes of engines of this run that stay; what they hold is not foreign.
    """
    needed_bytes = _needed_bytes(target, engines_count)
    if needed_bytes is not None:
        wait_for_memory(
            needed_bytes,
            free_bytes=lambda: int(psutil.virtual_memory().available),
            holders=host_memory_holders,
            deadline_s=MEMORY_DEADLINE_S,
        )
    elif (read_devices := _devices_of(target)) is not None and not own_pids:
        _wait_for_devices(target, read_devices)
    require(find(target, engines_count=engines_count, engine_python=engine_python, results_directory=results_directory, own_pids=own_pids))


def require_port() -> None:
    """Raise UsageError when this machine has no loopback port left for an engine to listen on."""
    try:
        PortReservation("127.0.0.1").release()
    except PreflightError as error:
        raise UsageError(
            f"{error}. No engine can listen: end what holds the ports (`ss -tn` lists them), or widen /proc/sys/net/ipv4/ip_local_port_range."
        ) from None


def require_accepted(suite: Suite, target: TargetSpec, config: ConfigSpec, engine_python: Path) -> None:
    """Raise UsageError when the vLLM of ``engine_python`` is known to refuse the config, or is older than the target needs.

    A release that cannot be read is no reason: what starts will tell.
    """
    problem = suite.refusal_of_release(target, config, installed_vllm(engine_python).release or None)
    if problem:
        raise UsageError(f"{problem}. Choose another config, or another engine with --k3-engine-python.")


def require_engine(engine_python: Path) -> None:
    """Raise UsageError when ``engine_python`` does not run or has no vLLM: no engine can start with it."""
    problem = installed_vllm(engine_python).problem
    if problem:
        raise UsageError(
            f"the engine Python {engine_python} cannot start an engine: {problem}. Run scripts/perf once, which sets one up, or name "
            "a Python that has vLLM with --k3-engine-python (of k3perf: --engine-python) or K3PERF_ENGINE_PYTHON."
        )


def find(
    target: TargetSpec, *, engines_count: int, engine_python: Path, results_directory: Path, own_pids: tuple[int, ...] = ()
) -> tuple[Finding, ...]:
    """Every check of the machine against what the target's engines need; starts nothing, raises nothing."""
    needs = Needs(
        hardware=target.hardware,
        free_memory_bytes=_needed_bytes(target, engines_count),
        writable_directories=(results_directory,),
        engine_python=engine_python,
        cpus=tuple(sorted({*target.pinning.worker_cpus, *target.pinning.server_cpus, *target.pinning.client_cpus})),
        own_pids=frozenset(own_pids),
    )
    findings = check(needs, devices=_devices_of(target))
    if installed_vllm(engine_python).problem:  # another finding says that
        return findings
    return (*findings, _native_module(engine_python, target))


def _native_module(engine_python: Path, target: TargetSpec) -> Finding:
    """Whether vLLM's native module loads. vLLM starts without it, and fails later with an error that names no library."""
    name, needed = "native module", "vLLM's native module loads"
    found = native_module(engine_python, {key: value for key, value in target.environment.items() if key.startswith("LD_")})
    if found.loaded:
        return Finding(name, Level.OK, ", ".join(found.loaded), needed)
    text = f"Run `{found.mend}` as root." if found.mend else f"See it again with `{load_command(engine_python)}`."
    return Finding(name, Level.FAIL, found.problem, needed, text)


def device_used_bytes_reader(target: TargetSpec) -> Callable[[], int | None] | None:
    """A function that reads the used memory of the target's NVIDIA devices together (None when they cannot be read); None on others."""
    read_devices = _devices_of(target)
    if read_devices is None:
        return None

    def read() -> int | None:
        try:
            return sum(state.used_bytes for state in read_devices())
        except PreflightError:
            return None

    return read


def _devices_of(target: TargetSpec) -> DeviceReader | None:
    """Reads the target's own NVIDIA devices; None on other hardware."""
    return nvml_reader(target_device_indices(target.hardware)) if target.hardware.kind == "nvidia" else None


def _wait_for_devices(target: TargetSpec, read: DeviceReader) -> None:
    """Wait until the fullest device has the share that vLLM will ask for: an engine that ended gives its memory back late."""
    states = read()
    if not states:
        return
    share = float(target.engine_arguments.get("gpu_memory_utilization", GPU_MEMORY_UTILIZATION))
    wait_for_memory(
        int(share * min(state.total_bytes for state in states)),
        free_bytes=lambda: min(state.free_bytes for state in read()),
        holders=lambda: device_holders(read()),
        deadline_s=MEMORY_DEADLINE_S,
    )


def _needed_bytes(target: TargetSpec, engines_count: int) -> int | None:
    return engines_count * (CPU_ENGINE_BASE_BYTES + _kv_space_bytes(target)) if target.hardware.kind == "cpu" else None


def _kv_space_bytes(target: TargetSpec) -> int:
    return int(float(target.environment.get("VLLM_CPU_KVCACHE_SPACE", "4")) * GIB)
