"""Is this machine fit to start these engines? The pre-flight of a run: what the cells
need, checked before anything starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from k3perf.config.cpu_features import SHOWN_FEATURES, lacking, usable
from k3perf.config.models import ConfigSpec, TargetSpec
from k3perf.config.suite import Suite
from k3perf.engine.device_checks import Needs
from k3perf.engine.devices import DeviceReader, device_holders, nvml_reader
from k3perf.engine.findings import Finding, Level
from k3perf.engine.installed_vllm import installed_vllm, load_command, native_module
from k3perf.engine.port import PortReservation
from k3perf.engine.preflight import check, host_memory_holders, require, wait_for_memory
from k3perf.errors import PreflightError, UsageError
from k3perf.run.engine_environment import HOW_TO_NAME_ENGINE
from k3perf.telemetry.hardware import detect_hardware
from k3perf.telemetry.visible import target_device_indices
from k3perf.units import GIB

# A CPU engine holds its weights twice while it packs them, the KV cache and about 1.2
# GiB of interpreter and libraries per process tree.
CPU_ENGINE_BASE_BYTES: Final = 2 * GIB
MEMORY_DEADLINE_S: Final = 60.0
GPU_MEMORY_UTILIZATION: Final = 0.9  # vLLM's default has been 0.9 or a little more


def require_ready(
    target: TargetSpec,
    *,
    engines_count: int,
    engine_python: Path,
    results_directory: Path,
    own_pids: tuple[int, ...] = (),
    own_ranks_count: int = 0,
) -> None:
    """Wait for memory, then raise PreflightError that lists everything that is missing,
    by reading and need.

    ``own_pids``: processes of engines of this run that stay; what they hold is not
    foreign. ``own_ranks_count``: how many ranks of these engines compute on each
    device.
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
    require(
        find(
            target,
            engines_count=engines_count,
            engine_python=engine_python,
            results_directory=results_directory,
            own_pids=own_pids,
            own_ranks_count=own_ranks_count,
        )
    )


def require_port() -> None:
    """Raise UsageError when this machine has no loopback port left for an engine to
    listen on.
    """
    try:
        PortReservation("127.0.0.1").release()
    except PreflightError as error:
        raise UsageError(
            f"{error}. No engine can listen: end what holds the ports (`ss -tn` lists them), or"
            " widen /proc/sys/net/ipv4/ip_local_port_range."
        ) from None


def require_accepted(
    suite: Suite, target: TargetSpec, config: ConfigSpec, engine_python: Path
) -> None:
    """Raise UsageError when the vLLM of ``engine_python`` is known to refuse the
    config, or is older than the target needs.

    A release that cannot be read is no reason: what starts will tell.
    """
    problem = suite.refusal_of_release(
        target, config, installed_vllm(engine_python).release or None
    )
    if problem:
        raise UsageError(
            f"{problem}. Choose another config, or another engine with --k3-engine-python."
        )


def require_engine(engine_python: Path) -> None:
    """Raise UsageError when ``engine_python`` does not run or has no vLLM: no engine
    can start with it.
    """
    problem = installed_vllm(engine_python).problem
    if problem:
        raise UsageError(
            f"the engine Python {engine_python} cannot start an engine: {problem}."
            f" {HOW_TO_NAME_ENGINE}"
        )


def find(
    target: TargetSpec,
    *,
    engines_count: int,
    engine_python: Path,
    results_directory: Path,
    own_pids: tuple[int, ...] = (),
    own_ranks_count: int = 0,
) -> tuple[Finding, ...]:
    """Every check of the machine against what the target's engines need; starts
    nothing, raises nothing.
    """
    needs = Needs(
        hardware=target.hardware,
        free_memory_bytes=_needed_bytes(target, engines_count),
        writable_directories=(results_directory,),
        engine_python=engine_python,
        cpus=tuple(
            sorted(
                {
                    *target.pinning.worker_cpus,
                    *target.pinning.server_cpus,
                    *target.pinning.client_cpus,
                }
            )
        ),
        own_pids=frozenset(own_pids),
        own_ranks_count=own_ranks_count,
    )
    found = check(needs, devices=_devices_of(target))
    if target.hardware.kind == "cpu":
        found = (*found, _instruction_sets(target))
    if installed_vllm(engine_python).problem:  # another finding says that
        return found
    return (*found, _native_module(engine_python, target))


def _instruction_sets(target: TargetSpec) -> Finding:
    flags, needed = detect_hardware().cpu_flags, target.hardware.cpu_features
    here = (
        ", ".join(name for name in SHOWN_FEATURES if name in usable(flags, os.environ))
        or "none of AVX2 and later"
    )
    lack = lacking(needed, flags, os.environ)
    text = f"{lack}. Run this target on a CPU that has it, or another target here." if lack else ""
    return Finding(
        "instruction sets", Level.FAIL if lack else Level.OK, here, ", ".join(needed) or "any", text
    )


def _native_module(engine_python: Path, target: TargetSpec) -> Finding:
    """Whether vLLM's native module loads. vLLM starts without it, and fails later with
    an error that names no library.
    """
    name, needed = "native module", "vLLM's native module loads"
    found = native_module(
        engine_python,
        {key: value for key, value in target.environment.items() if key.startswith("LD_")},
    )
    if found.loaded:
        return Finding(name, Level.OK, ", ".join(found.loaded), needed)
    text = (
        f"Run `{found.mend}` as root."
        if found.mend
        else f"Reproduce it with `{load_command(engine_python)}`."
    )
    return Finding(name, Level.FAIL, found.problem, needed, text)


def device_used_bytes_reader(target: TargetSpec) -> Callable[[], int | None] | None:
    """A function that reads the used memory of the target's NVIDIA devices together
    (None when they cannot be read); None on others.
    """
    read_devices = _devices_of(target)
    if read_devices is None:
        return None

    def read() -> int | None:
        try:
            used_bytes = [state.used_bytes for state in read_devices()]
        except PreflightError:
            return None
        known = [size for size in used_bytes if size is not None]
        return sum(known) if len(known) == len(used_bytes) else None

    return read


def _devices_of(target: TargetSpec) -> DeviceReader | None:
    """Reads the target's own NVIDIA devices; None on other hardware."""
    return (
        nvml_reader(target_device_indices(target.hardware))
        if target.hardware.kind == "nvidia"
        else None
    )


def _wait_for_devices(target: TargetSpec, read: DeviceReader) -> None:
    """Wait until the fullest device has the share that vLLM will ask for: an engine
    that ended gives its memory back late.

    Nothing is waited for on a device that does not say what it has; the checks after
    this report it.
    """
    states = read()
    totals = [state.total_bytes for state in states if state.total_bytes is not None]
    if not totals or len(totals) < len(states):
        return
    share = float(target.engine_arguments.get("gpu_memory_utilization", GPU_MEMORY_UTILIZATION))
    needed_bytes = int(share * min(totals))
    wait_for_memory(
        needed_bytes,
        # a device that falls silent meanwhile ends the wait: the checks after it name
        # the device
        free_bytes=lambda: min(
            needed_bytes if state.free_bytes is None else state.free_bytes for state in read()
        ),
        holders=lambda: device_holders(read()),
        deadline_s=MEMORY_DEADLINE_S,
    )


def _needed_bytes(target: TargetSpec, engines_count: int) -> int | None:
    return (
        engines_count * (CPU_ENGINE_BASE_BYTES + _kv_space_bytes(target))
        if target.hardware.kind == "cpu"
        else None
    )


def _kv_space_bytes(target: TargetSpec) -> int:
    return int(float(target.environment.get("VLLM_CPU_KVCACHE_SPACE", "4")) * GIB)
