"""NVML -> one frozen sample a device. The ``DeviceSource`` protocol is what the sampler
needs; ``NvmlSource`` is the real one.

A value that a device or driver does not offer is None in the sample. One that was
refused or could not be read is None too, and ``unread`` holds NVML's words for it. NVML
being absent, or a device being gone, is a ``DevicesLost`` with its reason; the sampler
turns it into readings without a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from k3perf.nvml import Cause, Nvml, NvmlError, Unread, Value, offered


class DevicesLost(Exception):
    """NVML cannot be loaded, or a device stopped answering, in NVML's words."""


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One device at one moment. Memory in bytes, power in watts, energy in joules since
    the driver was loaded, clocks in MHz.

    ``process_bytes`` None: the device does not say who uses it, which does not mean
    that it is unused. ``unread``: field name to NVML's words, for fields that the
    device may offer and that could not be read this time.
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
    unread: Mapping[str, str] = field(default_factory=dict)


_NUMBERS: Final[Mapping[str, Callable[[Any, Any], float]]] = {
    "power_w": lambda handle, nvml: float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1e3,
    "energy_j": lambda handle, nvml: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3,
    "sm_clock_mhz": lambda handle, nvml: float(
        nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
    ),
    "memory_clock_mhz": lambda handle, nvml: float(
        nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)
    ),
    "temperature_c": lambda handle, nvml: float(
        nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    ),
}


class DeviceSource(Protocol):
    """Where device samples come from."""

    def indices(self) -> tuple[int, ...]:
        """All devices there are. Raises DevicesLost."""

    def sample(self, index: int, at_ns: int, *, with_energy: bool) -> DeviceSample:
        """One device now; its energy only when asked for. Raises DevicesLost when it
        does not answer at all.
        """

    def close(self) -> None:
        """Give the library back."""


class NvmlSource:
    """NVML through nvidia-ml-py. ``nvml`` is the pynvml module, another one in tests.
    Raises DevicesLost when it cannot be loaded.
    """

    def __init__(self, nvml: Any = None) -> None:
        try:
            self._nvml = Nvml(nvml)
        except NvmlError as error:
            raise DevicesLost(f"NVML cannot be loaded: {error}") from None
        self._handles: dict[int, Any] = {}

    def indices(self) -> tuple[int, ...]:
        """All devices that NVML counts; one that is lost is among them."""
        try:
            return tuple(range(self._nvml.device_count()))
        except NvmlError as error:
            raise _lost(error.unread) from None

    def sample(self, index: int, at_ns: int, *, with_energy: bool) -> DeviceSample:
        """One device now. A device that refuses its memory to this process is as good
        as lost: it is another's, or a MIG slice.

        On an H200 the energy counter costs 3.9 ms of CPU time and everything else
        together 0.35 ms, so energy is read seldom.
        """
        handle = self._handle(index)
        memory = self._nvml.memory(handle)
        if isinstance(memory, Unread) and memory.cause is not Cause.NOT_OFFERED:
            raise _lost(memory)
        unread: dict[str, str] = {}

        def of(name: str, answer: Value | Unread) -> Value | None:
            if isinstance(answer, Unread):
                if answer.gone:
                    raise _lost(answer)
                if answer.cause is not Cause.NOT_OFFERED:
                    unread[name] = answer.words
            return offered(answer)

        numbers = {
            name: of(name, self._nvml.look(partial(read, handle)))
            for name, read in _NUMBERS.items()
            if with_energy or name != "energy_j"
        }
        throttle_bits = of(
            "throttle_bits",
            self._nvml.look(lambda nvml: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))),
        )
        return DeviceSample(
            at_ns=at_ns,
            index=index,
            used_bytes=None if isinstance(memory, Unread) else memory.used_bytes,
            process_bytes=of("process_bytes", self._nvml.process_bytes(handle)),
            power_w=numbers["power_w"],
            energy_j=numbers.get("energy_j"),
            sm_clock_mhz=numbers["sm_clock_mhz"],
            memory_clock_mhz=numbers["memory_clock_mhz"],
            temperature_c=numbers["temperature_c"],
            throttle_bits=throttle_bits,
            uncorrected_ecc_count=of(
                "uncorrected_ecc_count", self._nvml.uncorrected_ecc_count(handle)
            ),
            unread=unread,
        )

    def close(self) -> None:
        """Shut NVML down; a library that is gone already is no trouble here."""
        self._nvml.close()

    def _handle(self, index: int) -> Any:
        if index not in self._handles:
            handle = self._nvml.handle(index)
            if isinstance(handle, Unread):
                raise _lost(handle)
            self._handles[index] = handle
        return self._handles[index]


def _lost(unread: Unread) -> DevicesLost:
    how = "refuses the device" if unread.cause is Cause.REFUSED else "does not answer"
    return DevicesLost(f"NVML {how}: {unread.words}")
