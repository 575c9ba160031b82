"""Play levels of load against running servers: plan, client processes, the server's
counters, values and verdict of each level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from k3perf.config.workload_spec import ServiceLevel
from k3perf.errors import EngineError, MeasurementInvalid
from k3perf.load.client_count import ClientProcesses, client_process_count
from k3perf.load.generator import run_round
from k3perf.load.live_counts import CountsListener
from k3perf.load.request_form import RequestForm
from k3perf.load.round_samples import RoundSamples
from k3perf.load.wire import Endpoint
from k3perf.metrics.load_summary import judge_objectives, level_values, turn_values
from k3perf.metrics.validity import ROUND_RULES
from k3perf.records.load_result import EndpointShare, LoadLevel, Objective
from k3perf.records.samples import RequestSample, RequestStatus, RoundKind, RoundRecord
from k3perf.telemetry.counters import counter_difference
from k3perf.telemetry.server import ServerProbe
from k3perf.units import ns_to_ms, ns_to_s
from k3perf.workload.load_plan import turn_of_requests
from k3perf.workload.request_plan import Plan
from k3perf.workload.text_prompts import PromptText

_GENERATED = "vllm:generation_tokens_total"
_UNREACHED = (RequestStatus.REFUSED, RequestStatus.RESET)
_METRICS_TIMEOUT_S = 5.0
_LAG_RULES = ("client_lag_p99_ms", "client_lag_share_ratio")


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What one level sends. ``texts`` are empty where prompts are not from a file."""

    level: float
    kind: Literal["concurrency", "rate_per_s", "workload"]
    plan: Plan
    texts: tuple[PromptText, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Where levels are sent and how they are judged."""

    base_urls: tuple[str, ...]
    model_name: str
    form: RequestForm
    objectives: tuple[Objective, ...] = ()
    service_level: ServiceLevel | None = None
    client_processes: ClientProcesses = "auto"


@dataclass(frozen=True, slots=True)
class PlayedLevel:
    """A level's record and its samples, for files of single requests."""

    record: LoadLevel
    samples: tuple[RequestSample, ...]
    turn_of: dict[int, int]
    start_ns: int


def play_level(
    settings: LoadSettings,
    level: LoadPlan,
    *,
    on_counts: CountsListener | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> PlayedLevel:
    """Play one level. Raises MeasurementInvalid if no server answers or a client
    process dies.
    """
    before = [_counters(url) for url in settings.base_urls]
    processes = client_process_count(level.plan, settings.client_processes)
    seen = run_round(
        level.plan,
        base_url=settings.base_urls,
        model_name=settings.model_name,
        process_count=processes,
        stop=should_stop,
        form=replace(settings.form, texts=level.texts),
        on_counts=on_counts,
        own_process=True,
    )
    _check_reached(seen.samples, settings.base_urls)
    turn_of = turn_of_requests(level.plan)
    counters, notes = _increase(settings.base_urls, before, seen)
    values = level_values(
        seen.samples,
        counters,
        objectives=settings.objectives,
        service_level=settings.service_level,
    )
    record = LoadLevel(
        level=level.level,
        kind=level.kind,
        request_count=len(seen.samples),
        statuses=_statuses(seen.samples),
        values=values,
        turns=turn_values(seen.samples, turn_of),
        objectives=judge_objectives(settings.objectives, values),
        endpoints=tuple(
            EndpointShare(load.base_url, load.request_count, load.output_token_count)
            for load in seen.endpoints
        ),
        first_detail=_first_detail(seen.samples),
        client_process_count=processes,
        client_lag_p99_ms=ns_to_ms(seen.client_lag_p99_ns),
        client_cpu_s=ns_to_s(seen.client_cpu_ns),
        notes=notes,
        invalid_reasons=_invalid_reasons(seen, settings.objectives),
    )
    return PlayedLevel(record, seen.samples, turn_of, seen.start_ns)


def _statuses(samples: Sequence[RequestSample]) -> dict[str, int]:
    counts = {status.value: 0 for status in RequestStatus}
    for sample in samples:
        counts[sample.status.value] += 1
    return {name: count for name, count in counts.items() if count}


def _first_detail(samples: Sequence[RequestSample]) -> str:
    failed = [sample for sample in samples if sample.status is not RequestStatus.OK]
    if not failed:
        return ""
    first = next((sample for sample in failed if sample.detail), failed[0])
    return f"{first.status.value}: {first.detail or 'no detail'}"


def _check_reached(samples: Sequence[RequestSample], base_urls: Sequence[str]) -> None:
    if samples and all(sample.status in _UNREACHED and not sample.chunks for sample in samples):
        reason = samples[0].detail.removeprefix("cannot connect: ")
        raise MeasurementInvalid(
            f"no server answers at {', '.join(base_urls)}: {reason.lower()}. Start it, or correct"
            " the address."
        )


def _invalid_reasons(seen: RoundSamples, objectives: Sequence[Objective]) -> tuple[str, ...]:
    """Why a level says nothing: failed requests that no objective allows, or a client
    that was late.
    """
    reasons = []
    failed = [sample for sample in seen.samples if sample.status is not RequestStatus.OK]
    allowed = any(objective.value_name == "error_ratio" for objective in objectives)
    if failed and (not allowed or len(failed) == len(seen.samples)):
        reasons.append(
            f"{len(failed)} of {len(seen.samples)} requests failed; set --slo 'error_ratio<=SHARE'"
            " to allow a share"
            if len(failed) < len(seen.samples)
            else f"all {len(failed)} requests failed"
        )
    if seen.stopped:
        reasons.append("the level was stopped before its end")
    record = RoundRecord(
        0,
        RoundKind.MEASURED,
        seen.start_ns,
        seen.end_ns,
        seen.samples,
        client_lag_p99_ns=seen.client_lag_p99_ns,
    )
    reasons += [
        f"{reason.text}. Set --client-processes, or run on a machine with free CPUs"
        for rule in ROUND_RULES
        if rule.name in _LAG_RULES and (reason := rule.judge(record)) is not None
    ]
    return tuple(reasons)


def _counters(base_url: str) -> dict[str, float] | None:
    """The counters of a server that offers them on plain http, else None."""
    endpoint = Endpoint.parse(base_url)
    if endpoint.secure or endpoint.path:
        return None
    with suppress(EngineError, OSError):
        return ServerProbe(endpoint.base_url, timeout_s=_METRICS_TIMEOUT_S).counters()
    return None


def _increase(
    base_urls: Sequence[str], before: Sequence[dict[str, float] | None], seen: RoundSamples
) -> tuple[dict[str, float], tuple[str, ...]]:
    """What the counters of all servers grew by, and a note where one has none."""
    total: dict[str, float] = {}
    silent = []
    for url, first, load in zip(base_urls, before, seen.endpoints, strict=True):
        if first is None or _GENERATED not in first:
            silent.append(url)
            continue
        try:
            probe = ServerProbe(Endpoint.parse(url).base_url, timeout_s=_METRICS_TIMEOUT_S)
            last = probe.counters_after(first, _GENERATED, load.output_token_count)
        except (EngineError, OSError):
            silent.append(url)
            continue
        for name, value in counter_difference(first, last).values.items():
            total[name] = total.get(name, 0.0) + value
    if silent:
        return {}, (
            f"no vLLM counters at {', '.join(silent)}: prefix hits and speculative"
            " decoding are not reported",
        )
    return total, ()
