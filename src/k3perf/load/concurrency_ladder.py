"""A concurrency ladder: the workload as a closed loop at rising numbers of requests in
flight, several passes, and the concurrency at which throughput saturates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k3perf.config.workload_spec import ClosedLoop, WorkloadSpec
from k3perf.errors import MeasurementInvalid
from k3perf.load.generator import run_round
from k3perf.metrics.latency import latency_observations, summarise_ms
from k3perf.records.samples import RequestStatus
from k3perf.workload.request_plan import expand

ROUNDS_IN_FLIGHT = 3
"""Requests of a step for each one in flight, so that the loop's ends weigh little."""

_STATISTICS = ("p50", "p99")


@dataclass(frozen=True, slots=True)
class LadderStep:
    """One pass over one step. Latencies are of all its requests."""

    concurrency: int
    pass_index: int
    request_count: int
    output_tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float | None


def ladder_order(concurrencies: Sequence[int], passes: int) -> list[tuple[int, int]]:
    """``(pass, concurrency)``: up, then down, so that a steady drift cancels."""
    return [
        (number, concurrency)
        for number in range(passes)
        for concurrency in (concurrencies if number % 2 == 0 else tuple(reversed(concurrencies)))
    ]


def climb(
    spec: WorkloadSpec,
    concurrencies: Sequence[int],
    *,
    passes: int,
    base_url: str,
    model_name: str,
    vocabulary_size: int,
    seen: Callable[[LadderStep], None],
) -> tuple[LadderStep, ...]:
    """Measure every step in every pass. Raises MeasurementInvalid for a step with a
    request that did not end OK: such a step has no throughput.
    """
    found = []
    for number, (pass_index, concurrency) in enumerate(ladder_order(concurrencies, passes)):
        arrival = ClosedLoop(kind="closed_loop", concurrency=concurrency)
        requests = max(spec.requests or 0, ROUNDS_IN_FLIGHT * concurrency)
        step_spec = spec.model_copy(update={"arrival": arrival, "requests": requests})
        plan = expand(step_spec, vocabulary_size=vocabulary_size).for_round(number)
        seen_round = run_round(plan, base_url=base_url, model_name=model_name)
        failed = [one for one in seen_round.samples if one.status is not RequestStatus.OK]
        if failed:
            detail = next((one.detail for one in failed if one.detail), "no detail")
            raise MeasurementInvalid(
                f"concurrency {concurrency}: {len(failed)} of {requests} requests failed"
                f" ({failed[0].status.value}: {detail}). Look into the server's log, or lower"
                " --concurrency."
            )
        sent = [one.sent_ns for one in seen_round.samples if one.sent_ns is not None]
        last = [one.last_token_ns for one in seen_round.samples if one.last_token_ns is not None]
        tokens = sum(one.output_token_count for one in seen_round.samples)
        latencies = latency_observations(seen_round.samples)
        ttft, tpot = (summarise_ms(latencies[name]) for name in ("ttft", "tpot"))
        step = LadderStep(
            concurrency,
            pass_index,
            requests,
            tokens / ((max(last) - min(sent)) / 1e9),
            ttft["p50"].value or math.nan,
            ttft["p99"].value or math.nan,
            tpot["p50"].value,
        )
        seen(step)
        found.append(step)
    return tuple(found)
