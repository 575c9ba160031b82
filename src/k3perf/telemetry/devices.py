"""NVML -> one frozen sample a device. The ``DeviceSource`` protocol is what the sampler needs; ``NvmlSource`` is the real one.

A value that a device or driver does not offer is None in the sample. NVML being absent, or lost while running, is a ``DevicesLost`` with
its reason; the sampler turns it into readings without a value.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Value = TypeVar("Value")


class DevicesLost(Exception):
    """NVML cannot be loaded, or a device stopped answering; the message is NVML's own."""


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One device at one moment. Memory in bytes, power in watts, energy in joules since the driver was loaded, clocks in MHz.

    ``process_bytes`` None: the device does not tell who uses it, which is not nobody.
    """

    at_ns: int
    index: int
    used_bytes: int | None
    process_bytes: dict[int, int | None] | None
    power_w: float | None
    energy_j: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    throttle_bits: int | None
    uncorrected_ecc_count: int | None


class DeviceSource(Protocol):
    """Where device samples come from."""

    def indices(self) -> tuple[int, ...]:
        """All devices there are. Raises DevicesLost."""

    def sample(self, index: int, at_ns: int, *, with_energy: bool) -> DeviceSample:
        """One device now; its energy only when asked for. Raises DevicesLost when it does not answer at all."""

    def close(self) -> None:
        """Give the library back."""


class NvmlSource:
    """NVML through nvidia-ml-py. ``nvml`` is the pynvml module, another one in tests. Raises DevicesLost when it cannot be loaded."""

    def __init__(self, nvml: Any = None) -> None:
        try:
            self._nvml = importlib.import_module("pynvml") if nvml is None else nvml
            self._nvml.nvmlInit()
        except Exception as error:  # pynvml raises classes of its own, and OSError without the library
            raise DevicesLost(f"NVML cannot be loaded: {error}") from None
        self._handles: dict[int, Any] = {}

    def indices(self) -> tuple[int, ...]:
        """All devices that NVML sees."""
        return tuple(range(self._ask(lambda: int(self._nvml.nvmlDeviceGetCount()))))

    def sample(self, index: int, at_ns: int, *, with_energy: bool) -> DeviceSample:
        """One device now. Memory must answer, everything else may be None.

        On an H200 the energy counter costs 3.9 ms of processor time and everything else together 0.35 ms, so energy is read seldom.
        """
        nvml = self._nvml
        if index not in self._handles:
            self._handles[index] = self._ask(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
        handle = self._handles[index]
        used = self._ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used))
        return DeviceSample(
            at_ns=at_ns,
            index=index,
            used_bytes=used,
            process_bytes=self._offered(lambda: self._processes(handle)),
            power_w=self._offered(lambda: float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1e3),
            energy_j=self._offered(lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3) if with_energy else None,
            sm_clock_mhz=self._offered(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            memory_clock_mhz=self._offered(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            temperature_c=self._offered(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            throttle_bits=self._offered(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))),
            uncorrected_ecc_count=self._offered(
                lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC))
            ),
        )

    def close(self) -> None:
        """Shut NVML down; a library that is gone already is no trouble here."""
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _processes(self, handle: Any) -> dict[int, int | None]:
        return {int(entry.pid): entry.usedGpuMemory for entry in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)}

    def _ask(self, read: Callable[[], Value]) -> Value:
        try:
            return read()
        except self._nvml.NVMLError as error:
            raise DevicesLost(f"NVML does not answer: {error}") from None

    def _offered(self, read: Callable[[], Value]) -> Value | None:
        """None when the device does not offer the value; DevicesLost when it is gone."""
        try:
            return read()
        except self._nvml.NVMLError as error:
            if isinstance(error, self._gone()):
                raise DevicesLost(f"NVML does not answer: {error}") from None
            return None

    def _gone(self) -> tuple[type[Exception], ...]:
        names = ("NVMLError_GpuIsLost", "NVMLError_Uninitialized", "NVMLError_DriverNotLoaded")
        return tuple(getattr(self._nvml, name) for name in names if hasattr(self._nvml, name))
