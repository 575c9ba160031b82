"""A level's samples to its values: rates, percentiles, turns, objectives. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from k3perf.config.workload_spec import ServiceLevel
from k3perf.errors import UsageError, shortened
from k3perf.metrics.compute import meets_service_level, round_metrics
from k3perf.metrics.latency import Observations, latency_observations
from k3perf.records.load_result import Objective, ObjectiveVerdict, TurnValues
from k3perf.records.measurement import MetricValue
from k3perf.records.samples import RequestSample, RequestStatus, RoundKind, RoundRecord
from k3perf.units import NS_PER_MS

PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0)
LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")
RATES: Final = (
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "goodput_requests_per_s",
)
RATIOS: Final = ("error_ratio", "goodput_ratio", "prefix_hit_ratio", "spec_acceptance_ratio")
_LATENCY_NAME: Final = re.compile(r"(ttft|tpot|itl|e2e)_(mean|max|p(\d{1,2}(?:\.\d{1,3})?))_ms")
_OBJECTIVE: Final = re.compile(r"\s*([a-z0-9_.]+)\s*(<=|>=)\s*([0-9.eE+-]+)\s*")
_ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"
_DRAFTED: Final = "vllm:spec_decode_num_draft_tokens_total"
_DRAFTS: Final = "vllm:spec_decode_num_drafts_total"


def parse_objective(text: str) -> Objective:
    """Parse ``ttft_p99_ms<=500``. Raises UsageError for an unknown value or bound."""
    match = _OBJECTIVE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--slo {shortened(text)!r}: write NAME<=NUMBER or NAME>=NUMBER, such as"
            " ttft_p99_ms<=500"
        )
    name, bound, number = match.groups()
    known = (*RATES, *RATIOS, "spec_accepted_length_tokens")
    if name not in known and _LATENCY_NAME.fullmatch(name) is None:
        raise UsageError(
            f"--slo {shortened(text)!r}: unknown value {name!r}. Choose ttft, tpot, itl or e2e with"
            f" _mean_ms, _max_ms or _pNN_ms, or one of {', '.join(known)}."
        )
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise UsageError(f"--slo {shortened(text)!r}: {number!r} is not a number")
    return Objective(name, "<=" if bound == "<=" else ">=", limit)


def level_values(
    samples: tuple[RequestSample, ...],
    counters: Mapping[str, float],
    *,
    objectives: Sequence[Objective] = (),
    service_level: ServiceLevel | None = None,
) -> dict[str, MetricValue]:
    """Every value of a level. ``counters``: increases of the server's counters, empty
    if it has none.
    """
    record = RoundRecord(0, RoundKind.MEASURED, 0, 0, samples, counters=dict(counters))
    whole = round_metrics(record, service_level=service_level).values
    values = {name: whole[name] for name in RATES}
    values |= _shares(samples, service_level)
    values["prefix_hit_ratio"] = _prefix_hits(samples, whole["prefix_hit_ratio"])
    values |= _speculation(counters)
    return values | latency_values(samples, objectives)


def latency_values(
    samples: Sequence[RequestSample], objectives: Sequence[Objective] = ()
) -> dict[str, MetricValue]:
    """Mean, maximum and percentiles of each latency, and the percentiles that
    objectives name.
    """
    found = latency_observations(samples)
    values: dict[str, MetricValue] = {}
    for name in LATENCIES:
        asked = [
            float(match[3])
            for objective in objectives
            if (match := _LATENCY_NAME.fullmatch(objective.value_name))
            and match[1] == name
            and match[3] is not None
        ]
        values |= _statistics(name, found[name], sorted({*PERCENTILES, *asked}))
    return values


def turn_values(
    samples: Sequence[RequestSample], turn_of: Mapping[int, int]
) -> tuple[TurnValues, ...]:
    """Latencies by turn. ``turn_of``: the turn of a request, from 1. Nothing where
    there is one turn only.
    """
    turns = sorted(set(turn_of.values()))
    if len(turns) < 2:
        return ()
    return tuple(
        TurnValues(
            turn,
            latency_values([sample for sample in samples if turn_of[sample.request_index] == turn]),
        )
        for turn in turns
    )


def judge_objectives(
    objectives: Sequence[Objective], values: Mapping[str, MetricValue]
) -> tuple[ObjectiveVerdict, ...]:
    """Compare each objective with its value. Without a value it is not met."""
    verdicts = []
    for objective in objectives:
        value = values[objective.value_name].value if objective.value_name in values else None
        met = value is not None and (
            value <= objective.limit if objective.bound == "<=" else value >= objective.limit
        )
        verdicts.append(ObjectiveVerdict(objective, value, met))
    return tuple(verdicts)


def _statistics(
    name: str, observations: Observations, percentiles: Sequence[float]
) -> dict[str, MetricValue]:
    names = [f"{name}_mean_ms", f"{name}_max_ms", *(f"{name}_p{p:g}_ms" for p in percentiles)]
    n = sum(observations.weights)
    excluded = dict(observations.excluded)
    if not n:
        return {each: MetricValue(None, 0, excluded) for each in names}
    values_ms = np.repeat(np.asarray(observations.values_ns) / NS_PER_MS, observations.weights)
    numbers = (values_ms.mean(), values_ms.max(), *np.percentile(values_ms, percentiles))
    return {
        each: MetricValue(float(number), n, excluded)
        for each, number in zip(names, numbers, strict=True)
    }


def _shares(
    samples: Sequence[RequestSample], service_level: ServiceLevel | None
) -> dict[str, MetricValue]:
    n = len(samples)
    failed = Counter(
        sample.status.value for sample in samples if sample.status is not RequestStatus.OK
    )
    errors = MetricValue(failed.total() / n if n else None, n, dict(failed))
    if service_level is None or not n:
        return {"error_ratio": errors, "goodput_ratio": MetricValue(None, 0)}
    met = sum(meets_service_level(sample, service_level) for sample in samples)
    return {"error_ratio": errors, "goodput_ratio": MetricValue(met / n, n)}


def _prefix_hits(samples: Sequence[RequestSample], counted: MetricValue) -> MetricValue:
    """The counters' ratio, else that of the usage of single replies."""
    if counted.value is not None:
        return counted
    known = [sample for sample in samples if sample.cached_prompt_token_count is not None]
    prompts = sum(sample.prompt_token_count for sample in known)
    if not prompts:
        return counted
    cached = sum(sample.cached_prompt_token_count or 0 for sample in known)
    return MetricValue(cached / prompts, prompts)


def _speculation(counters: Mapping[str, float]) -> dict[str, MetricValue]:
    """Accepted over drafted tokens, and tokens per step: the accepted ones and the one
    that the step itself makes. None for a server that does not speculate.
    """
    accepted = counters.get(_ACCEPTED)

    def over(name: str, amend: Callable[[float], float]) -> MetricValue:
        count = counters.get(name)
        if accepted is None or not count:
            return MetricValue(None, 0)
        return MetricValue(amend(accepted / count), int(count))

    return {
        "spec_acceptance_ratio": over(_DRAFTED, lambda ratio: ratio),
        "spec_accepted_length_tokens": over(_DRAFTS, lambda ratio: 1 + ratio),
    }
