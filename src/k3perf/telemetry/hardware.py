"""Which hardware class this machine is: enough to decide which targets can run here,
read without starting anything.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from k3perf.config.cpu_features import lacking
from k3perf.config.machine_spec import Hardware
from k3perf.errors import UsageError
from k3perf.nvml import Cause, Nvml, NvmlError, Unread, offered
from k3perf.telemetry.visible import VARIABLE, visible_device_indices


@dataclass(frozen=True, slots=True)
class SilentDevice:
    """A device that cannot be measured because it does not answer NVML, or refuses to.
    ``figure``: what it refuses, empty for all.
    """

    index: int
    unread: Unread
    figure: str = ""

    @property
    def text(self) -> str:
        """``device 5 does not answer NVML: GPU is lost``."""
        how = "is refused by NVML" if self.unread.cause is Cause.REFUSED else "does not answer NVML"
        figure = f"{self.figure}: " if self.figure else ""
        return f"device {self.index} {how}: {figure}{self.unread.words}"


@dataclass(frozen=True, slots=True)
class DetectedHardware:
    """What was found: name and total bytes of every device that answers (None: it does
    not report its memory, ``memory_words`` says why), driver, and the CPU's
    features. ``silent``: devices that do not answer.
    """

    device_names: tuple[str, ...]
    device_memory_bytes: tuple[int | None, ...]
    driver_version: str | None
    cpu_flags: frozenset[str]
    problem: str = ""
    silent: tuple[SilentDevice, ...] = ()
    memory_words: str = ""

    def lacks(self, hardware: Hardware) -> str:
        """Why a target with ``hardware`` cannot run here; empty when it can."""
        if hardware.kind == "cpu":
            return lacking(hardware.cpu_features, self.cpu_flags, os.environ)
        if hardware.kind == "amd":
            return "k3perf does not look for AMD devices"
        silent = "".join(f"; {device.text}" for device in self.silent)
        if not self.device_names and not silent:
            return f"no NVIDIA device here ({self.problem or 'none found'})"
        needed = hardware.device_count // hardware.host_count
        matching = [name for name in self.device_names if hardware.device_name in name]
        if len(matching) < needed:
            present = ", ".join(self.device_names) or "no device that answers"
            return f"needs {needed} x {hardware.device_name!r}, this machine has {present}{silent}"
        return self._lacks_memory(hardware)

    def _lacks_memory(self, hardware: Hardware) -> str:
        wanted = hardware.device_memory_bytes
        if wanted is None:
            return ""
        named = zip(self.device_names, self.device_memory_bytes, strict=True)
        sizes = [size for name, size in named if hardware.device_name in name]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return (
                f"needs {wanted} bytes per device, and the memory of this machine's device cannot"
                f" be read ({self.memory_words})"
            )
        smallest = min(known, default=0)
        return (
            f"needs {wanted} bytes per device, this machine's smallest has {smallest}"
            if smallest < 0.98 * wanted
            else ""
        )


@cache
def detect_hardware() -> DetectedHardware:
    """``read_hardware`` once."""
    return read_hardware()


def silent_device_notes() -> tuple[str, ...]:
    """One sentence for every device of this machine that does not answer NVML, and one
    where CUDA_VISIBLE_DEVICES names no such device.
    """
    found = detect_hardware()
    hidden = (found.problem,) if found.problem.startswith(VARIABLE) else ()
    return (*hidden, *(f"{device.text}. {device.unread.next_step}" for device in found.silent))


def read_hardware(nvml: Any = None) -> DetectedHardware:
    """Read NVML and /proc/cpuinfo. Without NVML, or with a CUDA_VISIBLE_DEVICES that
    names no device, the machine has no NVIDIA device, and ``problem`` says why.

    Devices that CUDA_VISIBLE_DEVICES hides are not counted. ``nvml`` is the pynvml
    module, another one in tests.
    """
    flags = _cpu_flags()
    try:
        with Nvml(nvml) as opened:
            present = range(opened.device_count())
            visible = visible_device_indices(nvml=nvml)
            indices = (
                present if visible is None else [index for index in visible if index in present]
            )
            return _devices(opened, indices, flags)
    except (NvmlError, UsageError) as error:
        return DetectedHardware((), (), None, flags, problem=str(error))


def _devices(nvml: Nvml, indices: range | list[int], flags: frozenset[str]) -> DetectedHardware:
    names, sizes, silent, memory_words = [], [], [], ""
    for index in indices:
        handle = nvml.handle(index)
        name = handle if isinstance(handle, Unread) else nvml.name(handle)
        if isinstance(name, Unread):
            silent.append(SilentDevice(index, name))
            continue
        memory = nvml.memory(handle)
        if isinstance(memory, Unread) and memory.cause is not Cause.NOT_OFFERED:
            silent.append(SilentDevice(index, memory, "" if memory.gone else "memory"))
            continue
        memory_words = memory.words if isinstance(memory, Unread) else memory_words
        names.append(name)
        sizes.append(None if isinstance(memory, Unread) else memory.total_bytes)
    driver = offered(nvml.driver_version())
    return DetectedHardware(
        tuple(names), tuple(sizes), driver, flags, silent=tuple(silent), memory_words=memory_words
    )


def _cpu_flags() -> frozenset[str]:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return frozenset({platform.machine()})
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset({platform.machine()})
