"""NVML to plain data about each device: is it there, healthy, of which class, how much memory is free and who holds the rest."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from k3perf.engine.process_tree import command_of
from k3perf.errors import PreflightError
from k3perf.units import format_bytes


@dataclass(frozen=True, slots=True)
class MemoryHolder:
    """A process with memory that is wanted. ``size_bytes`` None: the driver does not say."""

    pid: int
    command: str
    size_bytes: int | None

    @property
    def text(self) -> str:
        """``pid 12 (command) holds 3.0 GiB``."""
        size = "an unknown amount" if self.size_bytes is None else format_bytes(self.size_bytes)
        return f"pid {self.pid} ({self.command or 'command unknown'}) holds {size}"


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device as NVML tells it. None: this driver or device does not offer it."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    driver_version: str
    holders: tuple[MemoryHolder, ...]
    uncorrected_ecc_count: int | None
    needs_reset: bool | None
    power_limit_w: float | None = None

    @property
    def free_bytes(self) -> int:
        """Memory that a new engine could have."""
        return self.total_bytes - self.used_bytes


_Value = TypeVar("_Value")
DeviceReader = Callable[[], tuple[DeviceState, ...]]


def nvml_reader(indices: tuple[int, ...] = (), *, nvml: Any = None) -> DeviceReader:
    """A function that reads the devices (all of them without ``indices``). ``nvml`` is the pynvml module, another one in tests.

    The function raises PreflightError when NVML cannot be loaded or a device does not answer.
    """

    def read() -> tuple[DeviceState, ...]:
        module = nvml
        try:
            if module is None:
                module = importlib.import_module("pynvml")
            module.nvmlInit()
        except Exception as error:  # pynvml raises classes of its own, and OSError without the library
            raise PreflightError(f"NVML is not to be had: {error}. Install the NVIDIA driver or choose a CPU target") from error
        try:
            wanted = indices or tuple(range(module.nvmlDeviceGetCount()))
            return tuple(_state(module, index) for index in wanted)
        except module.NVMLError as error:
            raise PreflightError(f"a device does not answer NVML: {error}. See `nvidia-smi` and the kernel's log for Xid errors") from error
        finally:
            with suppress(module.NVMLError):
                module.nvmlShutdown()

    return read


def _state(nvml: Any, index: int) -> DeviceState:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return DeviceState(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total),
        used_bytes=int(memory.used),
        driver_version=_text(nvml.nvmlSystemGetDriverVersion()),
        holders=tuple(
            MemoryHolder(int(process.pid), command_of(int(process.pid)), process.usedGpuMemory)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ),
        uncorrected_ecc_count=_optional(
            nvml,
            lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)),
        ),
        needs_reset=_optional(nvml, lambda: _rows_need_reset(nvml, handle)),
        power_limit_w=_optional(nvml, lambda: float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1e3),
    )


def _rows_need_reset(nvml: Any, handle: Any) -> bool:
    """A row remapping is pending or has failed: the device must be reset or replaced before its numbers mean anything."""
    _correctable, _uncorrectable, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return bool(pending or failed)


def _optional(nvml: Any, read: Callable[[], _Value]) -> _Value | None:
    try:
        return read()
    except (nvml.NVMLError, AttributeError):  # AttributeError: an older pynvml, which has no such call
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
