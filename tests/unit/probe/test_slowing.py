from __future__ import annotations

import pytest

from k3perf_probe import slowing
from k3perf_probe.slowing import HostDelay
from tests.unit.probe.fakes import FakeWorker


class Clock:
    """A clock that only sleeping moves; ``overshoot_ns`` is what every sleep takes too
    long.
    """

    def __init__(self, overshoot_ns: int = 0) -> None:
        self.ns = 0
        self.overshoot_ns = overshoot_ns
        self.sleeps: list[float] = []

    def now_ns(self) -> int:
        return self.ns

    def sleep_s(self, duration_s: float) -> None:
        self.sleeps.append(duration_s)
        self.ns += round(duration_s * 1e9) + self.overshoot_ns


def delay(ratio: float, clock: Clock) -> HostDelay:
    return HostDelay(ratio, now_ns=clock.now_ns, sleep_s=clock.sleep_s)


@pytest.mark.parametrize("overshoot_ns", [0, 60_000, 500_000])
@pytest.mark.parametrize(
    "durations", [[10_000_000] * 50, [300_000] * 800, [1_000_000, 90_000_000, 20_000] * 40]
)
def test_the_share_is_exact_on_average(overshoot_ns: int, durations: list[int]) -> None:
    clock = Clock(overshoot_ns)
    host = delay(0.1, clock)
    for duration_ns in durations:
        host.after(duration_ns)
    wanted_ns = 0.1 * sum(durations)
    assert host.waited_ns == clock.ns
    assert clock.ns == pytest.approx(wanted_ns, abs=700_000)


def test_what_is_too_short_to_sleep_is_carried_over() -> None:
    clock = Clock()
    host = delay(0.1, clock)
    for _ in range(8):
        host.after(99_000)
    assert clock.sleeps == []
    host.after(99_000)
    assert clock.sleeps == [pytest.approx(89_100e-9)]


def test_both_parts_of_a_step_are_slowed_and_their_results_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slowed: list[int] = []
    monkeypatch.setattr(
        slowing.HostDelay, "after", lambda _, duration_ns: slowed.append(duration_ns)
    )
    worker = FakeWorker()
    assert worker.k3perf_slow_down("15") == {"rank": 3, "percent": 15.0, "how": "host"}
    assert worker.execute_model("batch") == "ran batch"
    assert worker.sample_tokens(grammar=None) == "sampled None"
    assert worker.calls == ["execute_model", "sample_tokens"]
    assert len(slowed) == 2
    assert all(duration_ns > 0 for duration_ns in slowed)


def test_setting_it_twice_does_not_add_up_and_zero_ends_it() -> None:
    worker = FakeWorker()
    original = worker.execute_model.__func__  # type: ignore[attr-defined]
    worker.k3perf_slow_down(10)
    worker.k3perf_slow_down(20)
    assert worker.k3perf_host_delay.ratio == 0.2  # type: ignore[attr-defined]
    worker.execute_model("x")
    assert worker.calls == ["execute_model"]
    assert worker.k3perf_slow_down(0)["how"] == "off"
    assert worker.execute_model.__func__ is original  # type: ignore[attr-defined]


def test_a_step_really_takes_longer() -> None:
    """On the wall clock, with steps long enough that the machine's own noise is small
    beside them.
    """
    import time

    worker = FakeWorker()
    worker_class = type(worker)

    def busy(_: FakeWorker, scheduled: object) -> str:
        time.sleep(0.01)
        return str(scheduled)

    class Busy(worker_class):  # type: ignore[misc,valid-type]
        execute_model = busy

    slow = Busy()
    slow.k3perf_slow_down(100)
    for _ in range(10):
        slow.execute_model("x")
    assert slow.k3perf_host_delay.waited_ns >= 0.09 * 1e9


@pytest.mark.parametrize("percent", [-1, 1001, float("nan")])
def test_senseless_percentages_are_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="must lie between 0 and 1000"):
        FakeWorker().k3perf_slow_down(percent)
