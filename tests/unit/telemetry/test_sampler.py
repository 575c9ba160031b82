from __future__ import annotations

import os
import threading
import time

import pytest

from k3perf.errors import MeasurementInvalid
from k3perf.records.samples import TelemetryReading
from k3perf.telemetry.devices import DevicesLost, DeviceSource
from k3perf.telemetry.host import HostReader
from k3perf.telemetry.sampler import Sampler
from tests.processes import WAIT_S
from tests.unit.telemetry.fake_devices import FakeSource

S = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def no_library() -> DeviceSource:
    raise DevicesLost("NVML cannot be loaded: no driver")


def sampler(
    source: FakeSource | None, clock: Clock, devices: tuple[int, ...] | None = None
) -> Sampler:
    opened = no_library if source is None else lambda: source
    return Sampler(
        lambda: (os.getpid(),), devices, interval_s=3600, open_source=opened, now_ns=clock
    )


def by_name(readings: tuple[TelemetryReading, ...]) -> dict[str, list[TelemetryReading]]:
    found: dict[str, list[TelemetryReading]] = {}
    for reading in readings:
        found.setdefault(reading.name, []).append(reading)
    return found


def test_without_nvml_no_device_is_judged_and_the_count_says_why() -> None:
    clock = Clock()
    with sampler(None, clock) as running:
        clock.ns = 2 * S
        seen = by_name(running.window(0, S))
    assert seen["devices_count"][0].value == 0.0
    assert "no driver" in seen["devices_count"][0].source
    assert "temperature_max_c" not in seen
    assert seen["engine_rss_max_bytes"][0].value is not None


def test_a_device_that_was_asked_for_and_is_not_there_has_readings_without_a_value() -> None:
    clock = Clock()
    with sampler(None, clock, devices=(0, 1)) as running:
        clock.ns = 2 * S
        seen = by_name(running.window(0, S))
    assert [reading.value for reading in seen["temperature_max_c"]] == [None, None]
    assert "no driver" in seen["temperature_max_c"][0].source


def test_one_of_two_asked_for_devices_is_missing() -> None:
    clock = Clock()
    with sampler(FakeSource(1), clock, devices=(0, 1)) as running:
        clock.ns = 2 * S
        seen = by_name(running.window(0, S))
    assert [reading.value for reading in seen["temperature_max_c"]] == [60.0, None]
    assert "there is no device 1" in seen["temperature_max_c"][1].source


def test_a_device_lost_while_running_is_told() -> None:
    clock = Clock()
    with sampler(FakeSource(1, lost_after=1), clock) as running:
        clock.ns = 2 * S
        seen = by_name(running.window(0, S))
    assert seen["power_mean_w"][0].value is None
    assert "GPU is lost" in seen["power_mean_w"][0].source
    assert seen["devices_count"][0].value == 0.0


def test_energy_of_a_window_and_how_seldom_it_is_read() -> None:
    clock = Clock()
    source = FakeSource(2, watts=400.0)
    with sampler(source, clock) as running:
        for _ in range(16):
            clock.ns += S // 2
            running.sample()
        read_while_running = source.energy_reads[2:]
        seen = by_name(running.window(2 * S, 6 * S))
    assert [reading.value for reading in seen["energy_j"]] == [
        pytest.approx(1600.0),
        pytest.approx(1600.0),
    ]
    assert len(read_while_running) == 4
    assert set(read_while_running) == {0, 1}


def test_the_thread_samples_by_itself_and_ends_with_the_block() -> None:
    source = FakeSource(1)
    reached = threading.Event()
    sample = source.sample

    def counted(index: int, at_ns: int, *, with_energy: bool) -> object:
        if source.sampled_count >= 4:
            reached.set()
        return sample(index, at_ns, with_energy=with_energy)

    source.sample = counted  # type: ignore[method-assign,assignment]
    with Sampler(lambda: (os.getpid(),), interval_s=0.001, open_source=lambda: source) as running:
        assert reached.wait(WAIT_S)
        start_ns = time.monotonic_ns()
        assert running.window(start_ns - S, start_ns)
    assert source.closed
    assert not any(thread.name == "k3perf-sampler" for thread in threading.enumerate())


def test_the_processes_are_asked_for_seldom_and_for_every_window() -> None:
    clock = Clock()
    asked: list[int] = []

    def pids() -> tuple[int, ...]:
        asked.append(clock.ns)
        return (os.getpid(),)

    with Sampler(pids, interval_s=3600, open_source=no_library, now_ns=clock) as running:
        for _ in range(19):
            clock.ns += S // 2
            running.sample()
        assert asked == [0, 5 * S]
        running.window(0, clock.ns)
    assert asked == [0, 5 * S, 9 * S + S // 2]


def test_proportional_memory_is_read_seldom_and_tells_its_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, sizes = Clock(), [1000, 2000]
    monkeypatch.setattr(HostReader, "proportional_bytes", lambda _: sizes.pop(0))
    seen = []
    with sampler(None, clock) as running:
        for at_s in (2, 30, 302):
            clock.ns = at_s * S
            seen.append(by_name(running.window(clock.ns - S, clock.ns))["engine_pss_bytes"][0])
    assert [(reading.value, reading.source) for reading in seen] == [
        (1000.0, "/proc"),
        (1000.0, "/proc, read 28 s ago"),
        (2000.0, "/proc"),
    ]


def test_proportional_memory_that_could_not_be_read_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, sizes = Clock(), [None, 1000]
    monkeypatch.setattr(HostReader, "proportional_bytes", lambda _: sizes.pop(0))
    seen = []
    with sampler(None, clock) as running:
        for _ in range(2):
            clock.ns += S
            seen.append(
                by_name(running.window(clock.ns - S, clock.ns))["engine_pss_bytes"][0].value
            )
    assert seen == [None, 1000.0]


def test_proportional_memory_of_one_engine_is_never_told_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, engines, sizes = Clock(), [(1,)], {(1,): 1000, (2,): 2000, (): None}
    monkeypatch.setattr(HostReader, "proportional_bytes", lambda _: sizes[engines[-1]])
    seen = []
    with Sampler(
        lambda: engines[-1], interval_s=3600, open_source=no_library, now_ns=clock
    ) as running:
        for engine, after_s in (
            ((1,), 1),
            ((2,), 1),
            ((), 1),
            ((1,), 1),
            ((2,), 300),
            ((1,), 1),
            ((), 300),
        ):
            engines.append(engine)
            clock.ns += after_s * S
            seen.append(by_name(running.window(clock.ns - S, clock.ns))["engine_pss_bytes"][0])
    assert [reading.value for reading in seen] == [1000.0, None, None, 1000.0, 2000.0, None, None]
    assert seen[1].source == "/proc: not read, the last reading (1 s ago) was of other processes"
    assert seen[3].source == "/proc, read 3 s ago"
    assert "cannot be read" in seen[6].source


def test_a_sampler_that_ended_by_itself_makes_no_window_look_quiet() -> None:
    asked = threading.Event()

    def pids() -> tuple[int, ...]:
        if threading.current_thread().name != "k3perf-sampler":
            return ()
        asked.set()
        raise RuntimeError("the list changed")

    later = iter(range(0, 10**6 * S, 6 * S))  # processes are asked for at every sample
    with Sampler(
        pids, interval_s=0.001, open_source=no_library, now_ns=lambda: next(later)
    ) as running:
        assert asked.wait(30)
        running._thread.join(30)
        with pytest.raises(
            MeasurementInvalid,
            match="telemetry stopped: RuntimeError: the list changed",
        ):
            running.window(0, S)
