from __future__ import annotations

import pytest

from k3perf.telemetry.devices import DevicesLost, NvmlSource
from tests.unit.telemetry.fake_devices import NVMLError, NVMLError_GpuIsLost, fake_pynvml


def _raise(error: Exception) -> object:
    def call(*_: object) -> object:
        raise error

    return call


def test_a_sample_is_in_base_units() -> None:
    sample = NvmlSource(fake_pynvml()).sample(0, 5, with_energy=True)
    assert (sample.at_ns, sample.index, sample.used_bytes) == (5, 0, 7 << 30)
    assert sample.power_w == 250.5
    assert sample.energy_j == 9000.0
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz, sample.temperature_c) == (
        1700.0,
        3201.0,
        55.0,
    )
    assert (sample.throttle_bits, sample.uncorrected_ecc_count) == (4, 0)
    assert sample.process_bytes == {11: 6 << 30}


def test_energy_is_not_read_unless_asked_for() -> None:
    nvml = fake_pynvml(nvmlDeviceGetTotalEnergyConsumption=_raise(AssertionError("read")))
    assert NvmlSource(nvml).sample(0, 5, with_energy=False).energy_j is None


def test_a_value_that_is_not_offered_is_none_and_the_rest_stands() -> None:
    nvml = fake_pynvml(nvmlDeviceGetTotalEccErrors=_raise(NVMLError("Not Supported")))
    sample = NvmlSource(nvml).sample(0, 5, with_energy=False)
    assert sample.uncorrected_ecc_count is None
    assert sample.temperature_c == 55.0


@pytest.mark.parametrize(
    "changes",
    [
        {"nvmlDeviceGetMemoryInfo": _raise(NVMLError("Unknown Error"))},
        {"nvmlDeviceGetPowerUsage": _raise(NVMLError_GpuIsLost("GPU is lost"))},
    ],
)
def test_a_lost_device_is_told_apart_from_a_missing_value(changes: dict[str, object]) -> None:
    with pytest.raises(DevicesLost, match="NVML does not answer"):
        NvmlSource(fake_pynvml(**changes)).sample(0, 5, with_energy=False)  # type: ignore[arg-type]


def test_a_machine_without_the_library_says_so() -> None:
    with pytest.raises(DevicesLost, match="cannot be loaded: no driver"):
        NvmlSource(fake_pynvml(nvmlInit=_raise(OSError("no driver"))))  # type: ignore[arg-type]
