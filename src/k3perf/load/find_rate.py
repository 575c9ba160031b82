"""Search the highest request rate at which a server meets a service level: short runs,
doubling, then bisection on the log scale.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k3perf.config.workload_spec import ClosedLoop, Poisson, ServiceLevel, WorkloadSpec
from k3perf.errors import MeasurementInvalid
from k3perf.load.client_count import ClientProcesses, client_process_count
from k3perf.load.generator import run_round
from k3perf.metrics.compute import meets_service_level
from k3perf.metrics.latency import latency_observations, summarise_ms
from k3perf.metrics.validity import ROUND_RULES
from k3perf.records.samples import RequestSample, RequestStatus
from k3perf.units import ns_to_ms
from k3perf.workload.request_plan import expand

_MOST_TRIALS = 40
_SLOW = frozenset({RequestStatus.OK, RequestStatus.TIMED_OUT, RequestStatus.STALLED})
_WARM_UP_REQUESTS = 8
_WARM_UP_ROUND = 1 << 20  # content that no trial uses


@dataclass(frozen=True, slots=True)
class RateTrial:
    """One short run at one rate: how many requests met the service level, and its
    readings.
    """

    rate_per_s: float
    request_count: int
    met_count: int
    attainment_ratio: float
    ttft_p99_ms: float | None
    tpot_p99_ms: float | None
    passed: bool


@dataclass(frozen=True, slots=True)
class RateSearch:
    """Limits of the search. ``attainment_ratio`` is the share of requests that must
    meet the service level.
    """

    service_level: ServiceLevel
    attainment_ratio: float = 0.95
    lowest_rate_per_s: float = 0.25
    highest_rate_per_s: float = 1024.0
    precision_ratio: float = 0.05


@dataclass(frozen=True, slots=True)
class FoundRate:
    """The highest rate that passed, the lowest that failed (None if the search's
    ceiling passed), and all trials in order.
    """

    rate_per_s: float
    failed_rate_per_s: float | None
    trials: tuple[RateTrial, ...]


def find_rate(search: RateSearch, run_trial: Callable[[float, int], RateTrial]) -> FoundRate:
    """Search with ``run_trial(rate_per_s, trial_index)`` until the bracket is within
    ``precision_ratio``.

    Attainment falls with the rate, up to noise. The result is one boundary, not a
    statement about every lower rate. Raises MeasurementInvalid if even the lowest rate
    fails.
    """
    trials: list[RateTrial] = []

    def passes(rate_per_s: float) -> bool:
        trials.append(run_trial(rate_per_s, len(trials)))
        return trials[-1].passed

    low, high = search.lowest_rate_per_s, None
    if not passes(low):
        worst = trials[-1]
        raise MeasurementInvalid(
            f"the service level is not met even at {low:g} requests/s: {worst.met_count} of"
            f" {worst.request_count} requests met it; loosen the level, shorten the requests or"
            " lower --lowest-rate"
        )
    while high is None and low < search.highest_rate_per_s:
        candidate = min(low * 2, search.highest_rate_per_s)
        if passes(candidate):
            low = candidate
        else:
            high = candidate
    while (
        high is not None and high / low > 1 + search.precision_ratio and len(trials) < _MOST_TRIALS
    ):
        middle = math.sqrt(low * high)
        if passes(middle):
            low = middle
        else:
            high = middle
    return FoundRate(low, high, tuple(trials))


def warm_up(spec: WorkloadSpec, *, base_url: str, model_name: str, vocabulary_size: int) -> None:
    """Send a few of the workload's requests, so that the first trial does not include
    an engine's one-time work.

    Raises MeasurementInvalid if none of them reaches a server.
    """
    arrival = ClosedLoop(kind="closed_loop", concurrency=_WARM_UP_REQUESTS)
    few = spec.model_copy(update={"arrival": arrival, "requests": _WARM_UP_REQUESTS})
    seen = run_round(
        expand(few, vocabulary_size=vocabulary_size).for_round(_WARM_UP_ROUND),
        base_url=base_url,
        model_name=model_name,
    )
    _check_reached(seen.samples, base_url)


def live_trial(
    spec: WorkloadSpec,
    search: RateSearch,
    *,
    base_url: str,
    model_name: str,
    vocabulary_size: int,
    duration_s: float,
    least_requests: int,
    client_processes: ClientProcesses = 1,
) -> Callable[[float, int], RateTrial]:
    """A trial on a live server: the workload's lengths under Poisson arrivals for about
    ``duration_s``, with fresh prompts each time.

    A trial raises MeasurementInvalid if a request ended in another way than by being
    slow, or if the client sent late: such a trial says nothing about a rate.
    """

    def run_trial(rate_per_s: float, trial_index: int) -> RateTrial:
        count = max(least_requests, math.ceil(rate_per_s * duration_s))
        trial_spec = spec.model_copy(
            update={"arrival": Poisson(kind="poisson", rate_per_s=rate_per_s), "requests": count}
        )
        plan = expand(trial_spec, vocabulary_size=vocabulary_size).for_round(trial_index)
        seen = run_round(
            plan,
            base_url=base_url,
            model_name=model_name,
            process_count=client_process_count(plan, client_processes),
        )
        if trial_index == 0:
            _check_reached(seen.samples, base_url)
        _check_served(seen.samples, rate_per_s)
        _check_client(seen.client_lag_p99_ns, rate_per_s)
        met = sum(meets_service_level(sample, search.service_level) for sample in seen.samples)
        latencies = {
            name: summarise_ms(found) for name, found in latency_observations(seen.samples).items()
        }
        return RateTrial(
            rate_per_s=rate_per_s,
            request_count=count,
            met_count=met,
            attainment_ratio=met / count,
            ttft_p99_ms=latencies["ttft"]["p99"].value,
            tpot_p99_ms=latencies["tpot"]["p99"].value,
            passed=met / count >= search.attainment_ratio,
        )

    return run_trial


def _check_reached(samples: Sequence[RequestSample], base_url: str) -> None:
    """Raise MeasurementInvalid for a server that is not running. It would miss every
    bound, which says nothing about a rate.
    """
    if all(
        sample.status in (RequestStatus.REFUSED, RequestStatus.RESET) and not sample.chunks
        for sample in samples
    ):
        reason = samples[0].detail.removeprefix("cannot connect: ")
        raise MeasurementInvalid(
            f"no server answers at {base_url}: {reason.lower()}. Start it, or correct the address."
        )


def _check_served(samples: Sequence[RequestSample], rate_per_s: float) -> None:
    failed = [sample for sample in samples if sample.status not in _SLOW]
    if not failed:
        return
    counts = Counter(sample.status.value for sample in failed)
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    detail = next((sample.detail for sample in failed if sample.detail), "no detail")
    raise MeasurementInvalid(
        f"the trial at {rate_per_s:g} requests/s is not valid: {len(failed)} of {len(samples)}"
        f" requests failed ({kinds}); the first said: {detail}. Look into the server's log, and"
        " check --model-name and --base-url."
    )


def _check_client(lag_p99_ns: int, rate_per_s: float) -> None:
    limit_ms = next(rule.limit for rule in ROUND_RULES if rule.name == "client_lag_p99_ms")
    lag_ms = ns_to_ms(lag_p99_ns)
    if limit_ms is not None and lag_ms > limit_ms:
        raise MeasurementInvalid(
            f"the trial at {rate_per_s:g} requests/s is not valid: the client sent {lag_ms:.0f} ms"
            f" late (99th percentile), at most {limit_ms:g} ms are allowed. Run it on a machine"
            " with a free core, or lower --highest-rate."
        )
