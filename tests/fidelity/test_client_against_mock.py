"""What the client reports against what the mock server did, on the machine's own clock:
two contrasting profiles, a burst, a schedule.

A busy machine can only make the client look worse. So a bound on the mean counts as
held when one of a few attempts holds it; where the machine was too busy to tell, which
a thread that does nothing but wake up shows, the most punctual readings are held
against it. ``test_client_on_a_still_clock`` asks the same without the machine's clock.
"""

from __future__ import annotations

import re
import threading
import time
from itertools import pairwise
from statistics import fmean, median

import pytest

from k3perf.load.generator import run_round
from k3perf.load.mock_server import Behaviour, Delay
from k3perf.load.mock_server.truth import prompt_crc32
from k3perf.metrics.compute import round_metrics
from k3perf.records.samples import RequestStatus, RoundKind, RoundRecord
from k3perf.workload.request_plan import expand
from tests.unit.workload.specs import small_spec

ATTEMPTS = 6


def measure(server, behaviour, round_index=0, **spec):
    """(plan, round, metrics, server's truth) of one round."""
    plan = expand(small_spec(**spec), vocabulary_size=4096).for_round(round_index)
    server.behave(behaviour)
    seen = run_round(plan, base_url=server.base_url, model_name="mock")
    record = RoundRecord(round_index, RoundKind.MEASURED, seen.start_ns, seen.end_ns, seen.samples)
    return plan, seen, round_metrics(record).values, server.truth()


class Waker(threading.Thread):
    """How late this process is woken: the share of 2 ms sleeps that took 0.5 ms too
    long tells whether the machine has time for it.
    """

    def __init__(self):
        super().__init__(daemon=True)
        self.late_ms = []
        self.ended = threading.Event()

    def run(self):
        while not self.ended.is_set():
            before_ns = time.monotonic_ns()
            time.sleep(0.002)
            self.late_ms.append((time.monotonic_ns() - before_ns) / 1e6 - 2)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()

    @property
    def calm(self):
        return sum(late > 0.5 for late in self.late_ms) <= 0.1 * len(self.late_ms)


def best_of(attempts, measure_errors_ms, bound_ms):
    """``measure_errors_ms(attempt)`` gives (error of the mean, error of the most
    punctual readings).
    """
    seen = []
    for attempt in range(attempts):
        with Waker() as waker:
            mean_ms, least_ms = measure_errors_ms(attempt)
        if mean_ms <= bound_ms:
            return
        seen.append((round(mean_ms, 3), round(least_ms, 3), waker.calm))
        busy_count = sum(not calm for _, _, calm in seen)
        if (
            busy_count >= 3
            and busy_count > len(seen) / 2
            and min(least for _, least, _ in seen) <= bound_ms
        ):
            return
    pytest.fail(
        f"no attempt within {bound_ms} ms (mean, most punctual, whether the machine was calm):"
        f" {seen}"
    )


def true_means_ms(plan, seen, truth):
    """Mean TTFT from the client's send to the server's first write, and mean gap
    between the server's writes.
    """
    by_prompt = {record["prompt_crc32"]: record for record in truth}
    ttfts, gaps = [], []
    for request, sample in zip(plan.requests, seen.samples, strict=True):
        written = by_prompt[prompt_crc32(request.prompt_token_ids)]["write_ns"]
        ttfts.append(written[0] - sample.sent_ns)
        gaps += [after - before for before, after in pairwise(written)]
    return fmean(ttfts) / 1e6, fmean(gaps) / 1e6


def least_lateness_ms(plan, seen, truth):
    """Of the most punctual twentieth of the chunks, the latest: the client's time minus
    the server's.
    """
    by_prompt = {record["prompt_crc32"]: record for record in truth}
    late_ns = []
    for request, sample in zip(plan.requests, seen.samples, strict=True):
        written = by_prompt[prompt_crc32(request.prompt_token_ids)]["write_ns"]
        late_ns += [
            chunk.at_ns - at_ns for chunk, at_ns in zip(sample.chunks, written, strict=True)
        ]
    assert min(late_ns) >= 0, "a token cannot be read before it was written"
    return sorted(late_ns)[len(late_ns) // 20] / 1e6


@pytest.mark.parametrize(
    "profile",
    [
        Behaviour(ttft=Delay(mean_ms=20), itl=Delay(mean_ms=5)),
        Behaviour(ttft=Delay(mean_ms=200), itl=Delay(mean_ms=1)),
    ],
    ids=["ttft-20-itl-5", "ttft-200-itl-1"],
)
def test_ttft_and_itl_are_the_truth(mock_server, profile):
    def errors_ms(attempt):
        plan, seen, values, truth = measure(
            mock_server,
            profile,
            attempt,
            requests=64,
            arrival={"kind": "closed_loop", "concurrency": 64},
            output_tokens={"kind": "fixed", "tokens": 24},
        )
        assert all(
            sample.status is RequestStatus.OK and sample.output_token_count == 24
            for sample in seen.samples
        )
        assert sum(sum(record["write_tokens"]) for record in truth) == 64 * 24
        true_ttft_ms, true_itl_ms = true_means_ms(plan, seen, truth)
        assert values["ttft_mean_ms"].n == 64
        assert values["itl_mean_ms"].n == 64 * 23
        # the engine cannot have answered before its delay was over, whatever the client
        # says
        assert values["ttft_mean_ms"].value >= profile.ttft.mean_ms
        mean_ms = max(
            abs(values["ttft_mean_ms"].value - true_ttft_ms),
            abs(values["itl_mean_ms"].value - true_itl_ms),
        )
        return mean_ms, least_lateness_ms(plan, seen, truth)

    best_of(ATTEMPTS, errors_ms, 0.5)


def test_a_burst_is_timed_from_each_send(mock_server):
    def errors_ms(attempt):
        plan, seen, values, truth = measure(
            mock_server,
            Behaviour(ttft=Delay(mean_ms=0), itl=Delay(mean_ms=1)),
            attempt,
            requests=256,
            arrival={"kind": "all_at_once"},
        )
        true_ttft_ms, _ = true_means_ms(plan, seen, truth)
        return abs(values["ttft_mean_ms"].value - true_ttft_ms), least_lateness_ms(
            plan, seen, truth
        )

    best_of(ATTEMPTS, errors_ms, 5)


def test_distributed_delays_keep_their_percentiles(mock_server):
    def errors_ms(attempt):
        profile = Behaviour(
            ttft=Delay(kind="lognormal", mean_ms=30, spread=0.5),
            itl=Delay(kind="exponential", mean_ms=2),
        )
        plan, seen, values, truth = measure(
            mock_server,
            profile,
            attempt,
            requests=48,
            arrival={"kind": "closed_loop", "concurrency": 16},
        )
        by_prompt = {record["prompt_crc32"]: record for record in truth}
        true_ms = sorted(
            (by_prompt[prompt_crc32(request.prompt_token_ids)]["write_ns"][0] - sample.sent_ns)
            / 1e6
            for request, sample in zip(plan.requests, seen.samples, strict=True)
        )
        middle_ms = (true_ms[23] + true_ms[24]) / 2
        return abs(values["ttft_p50_ms"].value - middle_ms), least_lateness_ms(plan, seen, truth)

    best_of(ATTEMPTS, errors_ms, 0.5)


def test_multi_token_chunks_keep_the_time_per_token(mock_server):
    def errors_ms(attempt):
        profile = Behaviour(ttft=Delay(mean_ms=10), itl=Delay(mean_ms=4), chunk_tokens=4)
        plan, seen, values, truth = measure(
            mock_server, profile, attempt, output_tokens={"kind": "fixed", "tokens": 24}
        )
        assert {chunk.token_count for sample in seen.samples for chunk in sample.chunks} == {4}
        return abs(values["itl_mean_ms"].value - 4), least_lateness_ms(plan, seen, truth)

    best_of(ATTEMPTS, errors_ms, 0.5)


def test_empty_first_chunks_do_not_shorten_the_ttft(mock_server):
    profile = Behaviour(ttft=Delay(mean_ms=60), itl=Delay(mean_ms=1), empty_chunks=3)
    _, _, values, _ = measure(mock_server, profile)
    assert values["ttft_mean_ms"].value >= 60


def test_a_schedule_is_kept(mock_server):
    def lags_ms(attempt):
        _, seen, _, _ = measure(
            mock_server,
            Behaviour(),
            attempt,
            requests=40,
            arrival={"kind": "poisson", "rate_per_s": 100},
        )
        lags_ns = sorted(sample.sent_ns - sample.scheduled_ns for sample in seen.samples)
        return median(lags_ns) / 1e6, lags_ns[len(lags_ns) // 20] / 1e6

    best_of(
        ATTEMPTS, lags_ms, 0.4
    )  # an event loop's own timers, rounded up to whole milliseconds, lie above this


def test_a_blocked_client_reports_its_own_lag(mock_server, monkeypatch):
    """A client that is slow on purpose must say so: the reading behind the validity
    rule on client lag.
    """
    from k3perf.load.exchange import Connection

    original = Connection.data_received
    monkeypatch.setattr(
        Connection, "data_received", lambda self, data: (time.sleep(0.01), original(self, data))
    )
    _, seen, _, _ = measure(mock_server, Behaviour())
    assert seen.client_lag_p99_ns > 8_000_000


def test_the_servers_own_metrics_tell_the_same(mock_server):
    _, seen, values, truth = measure(
        mock_server, Behaviour(), requests=32, arrival={"kind": "closed_loop", "concurrency": 8}
    )
    text = mock_server.metrics_text()

    def value(name):
        return float(
            re.search(rf"^{re.escape(name)}{{[^}}]*}} (\S+)$", text, re.MULTILINE).group(1)
        )

    assert value("vllm:generation_tokens_total") == sum(
        sample.output_token_count for sample in seen.samples
    )
    assert value("vllm:prompt_tokens_total") == sum(
        sample.prompt_token_count for sample in seen.samples
    )
    assert value("vllm:time_to_first_token_seconds_count") == 32
    server_ttft_ms = 1e3 * value("vllm:time_to_first_token_seconds_sum") / 32
    assert server_ttft_ms == pytest.approx(
        fmean(r["write_ns"][0] - r["received_ns"] for r in truth) / 1e6
    )
    assert values["ttft_mean_ms"].value >= server_ttft_ms
