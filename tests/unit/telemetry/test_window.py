from __future__ import annotations

import pytest

from k3perf.records.samples import TelemetryReading
from k3perf.telemetry.host import CpuTimes, HostSample
from k3perf.telemetry.window import (
    DeviceOwnership,
    around,
    device_readings,
    energy_j,
    host_readings,
)
from tests.unit.telemetry.fake_devices import device_sample

S = 1_000_000_000
OURS = DeviceOwnership(frozenset({4242}), exists=lambda pid: pid < 10_000)


def host(
    at_s: float,
    *,
    busy: int = 0,
    steal: int = 0,
    total: int = 0,
    ticks: dict[int, int] | None = None,
    **changes: object,
) -> HostSample:
    values: dict[str, object] = {
        "wall_ns": 10**18 + int(at_s * S),
        "psi_cpu_some_us": 0,
        "psi_memory_some_us": 0,
        "resident_bytes": 100,
        "swapped_bytes": 0,
        "process_ticks": ticks or {},
        "cpu": CpuTimes(busy, steal, total),
    }
    return HostSample(at_ns=int(at_s * S), **{**values, **changes})  # type: ignore[arg-type]


def values(readings: tuple[TelemetryReading, ...]) -> dict[str, float | None]:
    return {reading.name: reading.value for reading in readings}


def test_the_window_is_widened_by_one_sample_on_each_side() -> None:
    samples = [host(at_s) for at_s in (0, 1, 2, 3, 4)]
    assert around(samples, int(1.5 * S), int(2.5 * S)) == (1, 4)
    assert around(samples, -S, 9 * S) == (0, 5)
    assert around(samples, S, 2 * S) == (1, 3)


def test_ratios_are_differences_over_the_time_between() -> None:
    before = host(0, busy=1000, steal=10, total=4000, ticks={1: 100}, psi_cpu_some_us=1_000_000)
    after = host(
        2, busy=1400, steal=30, total=4400, ticks={1: 350, 2: 50}, psi_cpu_some_us=1_500_000
    )
    seen = values(host_readings([before, after]))
    assert seen["steal_ratio"] == pytest.approx(20 / 400)
    assert seen["foreign_cpu_ratio"] == pytest.approx(
        (400 - 250) / 400
    )  # process 2 was not seen before, so what it used is nobody's
    assert seen["psi_cpu_some_ratio"] == pytest.approx(0.25)


def test_a_process_that_starts_inside_the_window_counts_from_its_first_sample() -> None:
    samples = [
        host(0, busy=0, total=0, ticks={1: 0}),
        host(1, busy=200, total=200, ticks={1: 100, 2: 40}),
        host(2, busy=400, total=400, ticks={1: 200, 2: 140}),
    ]
    assert values(host_readings(samples))["foreign_cpu_ratio"] == pytest.approx(
        (400 - 200 - 100) / 400
    )


def test_extremes_come_from_all_samples() -> None:
    samples = [host(0), host(1, resident_bytes=900, swapped_bytes=4096), host(2)]
    seen = values(host_readings(samples))
    assert seen["engine_rss_max_bytes"] == 900
    assert seen["swap_used_bytes"] == 4096


def test_a_jump_of_the_wall_clock_is_seen() -> None:
    samples = [
        host(0),
        host(1, wall_ns=10**18 + S + 70_000_000),
        host(2, wall_ns=10**18 + 2 * S + 70_000_000),
    ]
    assert values(host_readings(samples))["clock_jump_ms"] == pytest.approx(70.0)


def test_one_sample_gives_readings_without_a_value() -> None:
    readings = host_readings([host(0)])
    assert all(reading.value is None for reading in readings)
    assert "1 samples in the window, 2 needed" in readings[0].source


def test_what_proc_does_not_offer_is_none_and_says_so() -> None:
    readings = host_readings(
        [host(0, cpu=None, psi_cpu_some_us=None), host(1, cpu=None, psi_cpu_some_us=None)]
    )
    by_name = {reading.name: reading for reading in readings}
    assert by_name["steal_ratio"].value is None
    assert by_name["psi_cpu_some_ratio"].value is None
    assert "not offered" in by_name["steal_ratio"].source
    assert by_name["psi_memory_some_ratio"].value == 0.0


def test_device_extremes_and_all_throttle_bits() -> None:
    samples = [
        device_sample(0, sm_clock_mhz=1980.0, throttle_bits=4, temperature_c=50.0, power_w=600.0),
        device_sample(
            S, sm_clock_mhz=1300.0, throttle_bits=0x20, temperature_c=88.0, power_w=400.0
        ),
        device_sample(2 * S, throttle_bits=0, uncorrected_ecc_count=2),
    ]
    seen = values(device_readings(0, samples, 0, 2 * S, OURS))
    assert seen["sm_clock_min_mhz"] == 1300.0
    assert seen["throttle_reasons_bits"] == 0x24
    assert seen["temperature_max_c"] == 88.0
    assert seen["power_mean_w"] == 500.0
    assert seen["ecc_errors_count"] == 2.0


def test_samples_outside_the_window_do_not_count() -> None:
    samples = [
        device_sample(at_s * S, sm_clock_mhz=200.0 if at_s in (0, 9) else 1800.0)
        for at_s in range(10)
    ]
    assert values(device_readings(0, samples, 3 * S, 6 * S, OURS))["sm_clock_min_mhz"] == 1800.0


def test_energy_is_mean_power_times_the_window() -> None:
    samples = [
        device_sample(0, energy_j=1000.0),
        device_sample(2 * S),
        device_sample(10 * S, energy_j=6000.0),
    ]
    assert energy_j(samples, 2 * S, 6 * S)[0] == pytest.approx(2000.0)
    assert energy_j(samples[:2], 0, S)[0] is None
    assert energy_j([], 0, S)[0] is None


def test_a_stranger_on_the_device_is_counted() -> None:
    samples = [device_sample(0), device_sample(S, process_bytes={4242: 1, 555: 1})]
    assert values(device_readings(0, samples, 0, S, OURS))["foreign_device_processes_count"] == 1.0


def test_process_ids_of_another_namespace_are_taken_for_the_engines() -> None:
    hidden = [
        device_sample(0, process_bytes={70_001: 1}),
        device_sample(S, process_bytes={70_001: 1}),
    ]
    assert values(device_readings(0, hidden, 0, S, OURS))["foreign_device_processes_count"] == 0.0
    more = [device_sample(0, process_bytes={70_001: 1, 70_002: 1})] * 2
    assert values(device_readings(0, more, 0, S, OURS))["foreign_device_processes_count"] == 1.0


def test_a_device_that_does_not_tell_who_uses_it_is_not_said_to_be_unused() -> None:
    untold = [device_sample(0, process_bytes=None), device_sample(S, process_bytes=None)]
    seen = {
        entry.name: entry
        for entry in device_readings(0, untold, 0, S, DeviceOwnership(frozenset({4242})))
    }
    assert seen["foreign_device_processes_count"].value is None
    assert seen["foreign_device_processes_count"].source.endswith("not offered here")
    once = [device_sample(0, process_bytes=None), device_sample(S, process_bytes={555: 1})]
    seen = {
        entry.name: entry
        for entry in device_readings(
            0, once, 0, S, DeviceOwnership(frozenset({4242}), exists=lambda pid: True)
        )
    }
    assert seen["foreign_device_processes_count"].value == 1.0
