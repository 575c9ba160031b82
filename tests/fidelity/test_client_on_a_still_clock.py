"""What the client reports is what the server did, to the nanosecond, on a clock that
stands still while they work (``simulated``).

However busy the machine is, these hold; a time that is taken at the wrong place, or a
wait that is not asked for, breaks them.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise

import pytest

from k3perf.load import clock, gathering
from k3perf.load.mock_server import Behaviour, Delay
from k3perf.load.mock_server.truth import prompt_crc32
from k3perf.metrics.compute import round_metrics
from k3perf.records.samples import RequestStatus, RoundKind, RoundRecord
from k3perf.workload.request_plan import expand
from tests.fidelity.simulated import Simulation
from tests.unit.workload.specs import small_spec


@pytest.fixture
def simulation(monkeypatch):
    return Simulation(monkeypatch)


def play(simulation, behaviour, **spec):
    """(plan, round, metrics, truth in the plan's order)."""
    plan = expand(small_spec(**spec), vocabulary_size=4096)
    seen, truth = simulation.play(plan, behaviour)
    assert {sample.status for sample in seen.samples} == {RequestStatus.OK}
    record = RoundRecord(0, RoundKind.MEASURED, seen.start_ns, seen.end_ns, seen.samples)
    by_prompt = {record["prompt_crc32"]: record for record in truth}
    in_order = [by_prompt[prompt_crc32(request.prompt_token_ids)] for request in plan.requests]
    return plan, seen, round_metrics(record).values, in_order


def lateness_ns(seen, truth):
    """Of every chunk: the client's time minus the server's."""
    return [
        chunk.at_ns - written_ns
        for sample, record in zip(seen.samples, truth, strict=True)
        for chunk, written_ns in zip(sample.chunks, record["write_ns"], strict=True)
    ]


STREAMS = {
    "requests": 64,
    "arrival": {"kind": "closed_loop", "concurrency": 64},
    "output_tokens": {"kind": "fixed", "tokens": 24},
}
SPREAD = Behaviour(
    ttft=Delay(kind="lognormal", mean_ms=30, spread=0.5), itl=Delay(kind="exponential", mean_ms=2)
)


@pytest.mark.parametrize(
    ("behaviour", "spec"),
    [
        (Behaviour(ttft=Delay(mean_ms=20), itl=Delay(mean_ms=5)), STREAMS),
        (Behaviour(ttft=Delay(mean_ms=200), itl=Delay(mean_ms=1)), STREAMS),
        (
            Behaviour(ttft=Delay(mean_ms=0), itl=Delay(mean_ms=1)),
            {"requests": 256, "arrival": {"kind": "all_at_once"}},
        ),
        (SPREAD, {"requests": 48, "arrival": {"kind": "closed_loop", "concurrency": 16}}),
        (Behaviour(ttft=Delay(mean_ms=10), itl=Delay(mean_ms=4), chunk_tokens=4), STREAMS),
        (Behaviour(ttft=Delay(mean_ms=60), itl=Delay(mean_ms=1), empty_chunks=3), {}),
    ],
    ids=[
        "ttft-20-itl-5",
        "ttft-200-itl-1",
        "burst",
        "distributed",
        "four-token-chunks",
        "empty-first-chunks",
    ],
)
def test_every_token_is_timed_when_it_was_written(simulation, monkeypatch, behaviour, spec):
    monkeypatch.setattr(
        gathering, "BUSY_READS_PER_S", 1 << 62
    )  # no rests: the next test is about them
    _, seen, values, truth = play(simulation, behaviour, **spec)
    assert set(lateness_ns(seen, truth)) == {0}
    assert all(
        sample.sent_ns == record["received_ns"]
        for sample, record in zip(seen.samples, truth, strict=True)
    )
    ttfts_ms = sorted((record["write_ns"][0] - record["received_ns"]) / 1e6 for record in truth)
    assert values["ttft_mean_ms"].value == pytest.approx(sum(ttfts_ms) / len(ttfts_ms))
    middle = len(ttfts_ms) // 2
    assert values["ttft_p50_ms"].value == pytest.approx(
        (ttfts_ms[middle - 1] + ttfts_ms[middle]) / 2
    )
    gaps_ns = [after - before for record in truth for before, after in pairwise(record["write_ns"])]
    tokens = sum(sum(record["write_tokens"][1:]) for record in truth)
    assert values["itl_mean_ms"].value == pytest.approx(sum(gaps_ns) / tokens / 1e6)
    if behaviour.ttft.kind == "fixed":
        assert values["ttft_mean_ms"].value >= behaviour.ttft.mean_ms


def test_a_rest_takes_a_quarter_of_a_millisecond_at_most(simulation):
    """64 streams of 1,000 tokens a second: the client rests between reads, and no time
    is late by more than a rest.
    """
    _, seen, _, truth = play(
        simulation, Behaviour(ttft=Delay(mean_ms=200), itl=Delay(mean_ms=1)), **STREAMS
    )
    assert simulation.rests_s, "nothing rested: this is not the busy case"
    assert max(simulation.rests_s) <= 0.00025
    assert 0 <= min(lateness_ns(seen, truth)) <= max(lateness_ns(seen, truth)) <= 250_000
    assert seen.client_lag_p99_ns <= 250_000


def test_a_schedule_is_kept_to_the_nanosecond(simulation):
    plan, seen, _, _ = play(
        simulation, Behaviour(), requests=40, arrival={"kind": "poisson", "rate_per_s": 100}
    )
    assert [sample.sent_ns for sample in seen.samples] == [
        sample.scheduled_ns for sample in seen.samples
    ]
    offsets_ns = [sample.sent_ns - seen.start_ns for sample in seen.samples]
    assert offsets_ns == pytest.approx(
        [request.offset_ns for request in plan.requests], abs=2
    )  # the loop's clock is a float


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere an event loop's own timers have to do"
)
def test_alarms_are_set_to_the_nanosecond_on_the_kernels_timer(monkeypatch):
    """An event loop rounds its own timers to whole milliseconds, which a schedule would
    show as lag.
    """
    armed = []
    real = clock._set_timerfd
    monkeypatch.setattr(
        clock, "_set_timerfd", lambda fd, due_ns: (armed.append(due_ns), real(fd, due_ns))
    )

    async def wait() -> int:
        rung: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        timer = clock.PreciseTimer(
            asyncio.get_running_loop(), lambda: rung.set_result(clock.monotonic_ns())
        )
        due_ns = clock.monotonic_ns() + 3_456_789
        timer.arm(due_ns)
        try:
            return await rung - due_ns
        finally:
            timer.close()
            assert armed[0] == due_ns

    assert asyncio.run(wait()) >= 0


def test_a_closed_loop_sends_when_a_slot_becomes_free(simulation):
    _, seen, _, _ = play(
        simulation, Behaviour(ttft=Delay(mean_ms=10), itl=Delay(mean_ms=2)), requests=12
    )
    ends_ns = sorted(sample.end_ns for sample in seen.samples)
    sent_ns = sorted(sample.sent_ns for sample in seen.samples)
    assert sent_ns == [seen.start_ns] * 4 + ends_ns[:8]
