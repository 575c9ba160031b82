"""Stands in for NVML: a source of device samples for the sampler, and a pynvml module
for ``NvmlSource``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from k3perf.telemetry.devices import DeviceSample, DevicesLost


def device_sample(at_ns: int, index: int = 0, **changes: object) -> DeviceSample:
    values: dict[str, object] = {
        "used_bytes": 50 << 30,
        "process_bytes": {4242: 49 << 30},
        "power_w": 500.0,
        "energy_j": None,
        "sm_clock_mhz": 1800.0,
        "memory_clock_mhz": 3201.0,
        "temperature_c": 60.0,
        "throttle_bits": 0,
        "uncorrected_ecc_count": 0,
    }
    return DeviceSample(at_ns=at_ns, index=index, **{**values, **changes})  # type: ignore[arg-type]


class FakeSource:
    """``lost_after``: how many samples are answered before the device falls off the
    bus.
    """

    def __init__(
        self, count: int = 1, *, lost_after: int | None = None, watts: float = 500.0
    ) -> None:
        self.count = count
        self.lost_after = lost_after
        self.watts = watts
        self.energy_reads: list[int] = []
        self.sampled_count = 0
        self.closed = False

    def indices(self) -> tuple[int, ...]:
        return tuple(range(self.count))

    def sample(self, index: int, at_ns: int, *, with_energy: bool) -> DeviceSample:
        if self.lost_after is not None and self.sampled_count >= self.lost_after:
            raise DevicesLost("NVML does not answer: GPU is lost")
        self.sampled_count += 1
        if with_energy:
            self.energy_reads.append(index)
        return device_sample(
            at_ns,
            index,
            energy_j=self.watts * at_ns / 1e9 if with_energy else None,
            power_w=self.watts,
        )

    def close(self) -> None:
        self.closed = True


class NVMLError(Exception):
    pass


class NVMLError_GpuIsLost(NVMLError):  # noqa: N801  (pynvml's own spelling)
    pass


def fake_pynvml(**changes: Callable[..., object]) -> SimpleNamespace:
    """The calls that ``NvmlSource`` makes, with one healthy device; ``changes``
    replaces some.
    """

    def answer(value: object) -> Callable[..., object]:
        return lambda *_: value

    calls: dict[str, object] = {
        "NVMLError": NVMLError,
        "NVMLError_GpuIsLost": NVMLError_GpuIsLost,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "nvmlInit": answer(None),
        "nvmlShutdown": answer(None),
        "nvmlDeviceGetCount": answer(1),
        "nvmlDeviceGetHandleByIndex": answer("handle"),
        "nvmlDeviceGetMemoryInfo": answer(SimpleNamespace(used=7 << 30, total=140 << 30)),
        "nvmlDeviceGetComputeRunningProcesses": answer(
            [SimpleNamespace(pid=11, usedGpuMemory=6 << 30)]
        ),
        "nvmlDeviceGetPowerUsage": answer(250_500),
        "nvmlDeviceGetTotalEnergyConsumption": answer(9_000_000),
        "nvmlDeviceGetClockInfo": lambda _, kind: 1700 if kind == 1 else 3201,
        "nvmlDeviceGetTemperature": answer(55),
        "nvmlDeviceGetCurrentClocksEventReasons": answer(4),
        "nvmlDeviceGetTotalEccErrors": answer(0),
    }
    return SimpleNamespace(**{**calls, **changes})
