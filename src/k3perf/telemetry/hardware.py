"""Which hardware class this machine is: enough to decide which targets can run here, read without starting anything."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from k3perf.config.cpu_features import lacking
from k3perf.config.models import Hardware
from k3perf.telemetry.visible import visible_device_indices


@dataclass(frozen=True, slots=True)
class DetectedHardware:
    """What was found: device names and total bytes by index (empty without an NVIDIA device), driver, and the processor's features."""

    device_names: tuple[str, ...]
    device_memory_bytes: tuple[int, ...]
    driver_version: str | None
    cpu_flags: frozenset[str]
    problem: str = ""

    def lacks(self, hardware: Hardware) -> str:
        """Why a target with ``hardware`` cannot run here; empty when it can."""
        if hardware.kind == "cpu":
            return lacking(hardware.cpu_features, self.cpu_flags, os.environ)
        if hardware.kind == "amd":
            return "no AMD device is looked for on this machine"
        matching = [name for name in self.device_names if hardware.device_name in name]
        if not self.device_names:
            return f"no NVIDIA device here ({self.problem or 'none found'})"
        needed = hardware.device_count // hardware.host_count
        if len(matching) < needed:
            return f"needs {needed} x {hardware.device_name!r}, this machine has {', '.join(self.device_names)}"
        return self._lacks_memory(hardware)

    def _lacks_memory(self, hardware: Hardware) -> str:
        wanted = hardware.device_memory_bytes
        if wanted is not None and min(self.device_memory_bytes) < 0.98 * wanted:
            return f"needs {wanted} bytes a device, this machine's smallest has {min(self.device_memory_bytes)}"
        return ""


@cache
def detect_hardware() -> DetectedHardware:
    """Read NVML and /proc/cpuinfo once; a machine without NVML is a machine without NVIDIA devices, with the reason kept.

    Devices that CUDA_VISIBLE_DEVICES hides are not counted. Raises UsageError when it cannot be understood.
    """
    flags = _cpu_flags()
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        return DetectedHardware((), (), None, flags, problem=str(error) or type(error).__name__)
    try:
        present = range(pynvml.nvmlDeviceGetCount())
        visible = visible_device_indices()
        usable = present if visible is None else [index for index in visible if index in present]
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in usable]
        names = tuple(_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        memory = tuple(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles)
        return DetectedHardware(names, memory, _text(pynvml.nvmlSystemGetDriverVersion()), flags)
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cpu_flags() -> frozenset[str]:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return frozenset({platform.machine()})
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset({platform.machine()})
