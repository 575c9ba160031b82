"""CUDA_VISIBLE_DEVICES to the NVML indices of the devices that a run may use, so that
suites can share a host, each with its own devices.

CUDA numbers devices by speed unless CUDA_DEVICE_ORDER is PCI_BUS_ID, NVML always by
bus; on hosts with devices of one kind both agree.
"""

from __future__ import annotations

import os
from typing import Any, Final

from k3perf.config.machine_spec import Hardware
from k3perf.errors import UsageError
from k3perf.nvml import Nvml, NvmlError

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"


def visible_device_indices(*, nvml: Any = None) -> tuple[int, ...] | None:
    """What CUDA_VISIBLE_DEVICES lists, in its order; None when it is not set, so that
    every device is visible.

    Entries are indices or full ``GPU-...`` identifiers; empty and ``-1`` hide every
    device. ``nvml`` is the pynvml module, another one in tests. Raises UsageError
    naming the entry that is neither, or that no device answers to.
    """
    listed = os.environ.get(VARIABLE)
    if listed is None:
        return None
    if listed.strip() in ("", "-1"):
        return ()
    indices = tuple(_index(entry.strip(), nvml) for entry in listed.split(","))
    if len(set(indices)) < len(indices):
        raise UsageError(f"{VARIABLE}={listed!r} names a device twice. Name each once.")
    return indices


def target_device_indices(hardware: Hardware) -> tuple[int, ...]:
    """The devices of this host that an engine of such a target takes: the first visible
    ones, as many as it needs here. Empty on a CPU.
    """
    if hardware.kind == "cpu":
        return ()
    needed = max(1, hardware.device_count // hardware.host_count)
    visible = visible_device_indices()
    return tuple(range(needed)) if visible is None else visible[:needed]


def device_keys(hardware: Hardware) -> tuple[str, ...]:
    """What a run of such a target locks, in ascending order so that two runs never wait
    for each other: ``nvidia-0`` ... or ``cpu``.
    """
    if hardware.kind != "nvidia":
        return (hardware.kind,)
    return tuple(f"{hardware.kind}-{index}" for index in sorted(target_device_indices(hardware)))


def _index(entry: str, nvml: Any) -> int:
    if entry.isdigit():
        return int(entry)
    if not entry.startswith("GPU-"):
        raise UsageError(
            f"{VARIABLE} holds {entry!r}. Use the indices or the GPU-... identifiers that"
            " `nvidia-smi -L` prints."
        )
    try:
        with Nvml(nvml) as opened:
            return opened.ask(
                lambda module: int(
                    module.nvmlDeviceGetIndex(module.nvmlDeviceGetHandleByUUID(entry))
                )
            )
    except NvmlError as error:
        raise UsageError(
            f"{VARIABLE} holds {entry!r}, which no device here answers to: {error}. See `nvidia-smi"
            " -L`."
        ) from None
