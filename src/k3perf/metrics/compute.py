"""Round and session records to metric sets: every metric of
``records.metric_definitions``, each with its n and its exclusions. Pure.

Judges nothing. An invalid round keeps its values and its reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from k3perf.config.workload_spec import ServiceLevel
from k3perf.metrics.decode_only import decode_tokens_per_s, server_times
from k3perf.metrics.environment import environment_of, without_environment
from k3perf.metrics.latency import latency_observations, summarise_ms, tpot_ns, ttft_ns
from k3perf.metrics.server_times import part_readings
from k3perf.metrics.session_values import session_values
from k3perf.metrics.speculation import acceptance_values
from k3perf.records.measurement import MetricValue, RoundMetrics, SessionMetrics
from k3perf.records.samples import (
    RequestSample,
    RequestStatus,
    RoundKind,
    RoundRecord,
    SessionRecord,
    TelemetryReading,
)
from k3perf.units import NS_PER_MS, ns_to_s

_SERVER_CPU_COUNTER: Final = "process_cpu_seconds_total"


def session_metrics(
    record: SessionRecord, *, service_level: ServiceLevel | None = None
) -> SessionMetrics:
    """The session's SESSION metrics and the ROUND metrics of its measured rounds, in
    order of time, without warm-up rounds.

    ``service_level`` is the workload's. Without one goodput is None, not 0.
    """
    measured = sorted(
        (entry for entry in record.rounds if entry.kind is RoundKind.MEASURED),
        key=lambda entry: entry.start_ns,
    )
    return SessionMetrics(
        session_id=record.session_id,
        arm=record.arm,
        pair_id=record.pair_id,
        rounds=tuple(round_metrics(entry, service_level=service_level) for entry in measured),
        values=session_values(record),
        resolved_config=without_environment(record.resolved_config),
        invalid_reasons=record.invalid_reasons,
        started_at_utc=record.started_at_utc,
        environment=environment_of(record.environment, record.resolved_config),
        host=record.identity.host,
        stages=record.stages,
    )


def round_metrics(
    record: RoundRecord, *, service_level: ServiceLevel | None = None
) -> RoundMetrics:
    """Every ROUND metric of one round. Rates use the time from the first send to the
    last token.
    """
    values = _throughput(record.samples, service_level)
    for prefix, observations in latency_observations(record.samples).items():
        values |= {
            f"{prefix}_{name}_ms": value for name, value in summarise_ms(observations).items()
        }
    values["decode_tokens_per_s"] = decode_tokens_per_s(record.samples)
    values |= server_times(record.counters)
    values["prefix_hit_ratio"] = _prefix_hit_ratio(record)
    values["energy_per_output_token_j"] = _energy_per_token(record)
    values |= acceptance_values(record)
    return RoundMetrics(
        record.round_index,
        record.pair_index,
        values,
        record.invalid_reasons,
        ns_to_s(record.end_ns - record.start_ns),
        _readings(record),
    )


def _readings(record: RoundRecord) -> tuple[TelemetryReading, ...]:
    """The round's telemetry, the CPU time that the server counted for itself, and where
    its requests' time went.
    """
    server_cpu_s = record.counters.get(_SERVER_CPU_COUNTER)
    own = (
        ()
        if server_cpu_s is None
        else (TelemetryReading("server_cpu_s", server_cpu_s, _SERVER_CPU_COUNTER),)
    )
    return (*record.telemetry, *own, *part_readings(record))


def meets_service_level(sample: RequestSample, service_level: ServiceLevel) -> bool:
    """Whether the request ended OK, with its first token in time and TPOT within its
    bound. A reply of one token has no TPOT.
    """
    first_ns = ttft_ns(sample)
    if (
        sample.status is not RequestStatus.OK
        or first_ns is None
        or first_ns > service_level.ttft_ms * NS_PER_MS
    ):
        return False
    per_token_ns = tpot_ns(sample)
    return per_token_ns is None or per_token_ns <= service_level.tpot_ms * NS_PER_MS


def window_s(samples: tuple[RequestSample, ...]) -> float | None:
    """Seconds from the first send to the last token. None without either."""
    sends_ns = [sample.sent_ns for sample in samples if sample.sent_ns is not None]
    lasts_ns = [sample.last_token_ns for sample in samples if sample.last_token_ns is not None]
    if not sends_ns or not lasts_ns or max(lasts_ns) <= min(sends_ns):
        return None
    return ns_to_s(max(lasts_ns) - min(sends_ns))


def _throughput(
    samples: tuple[RequestSample, ...], service_level: ServiceLevel | None
) -> dict[str, MetricValue]:
    """Tokens count whatever the status of their request, since the engine made them in
    this time. Requests count if they ended OK.
    """
    duration_s = window_s(samples)
    failed = dict(
        Counter(sample.status.value for sample in samples if sample.status is not RequestStatus.OK)
    )

    def rate(amount: Callable[[RequestSample], int], excluded: dict[str, int]) -> MetricValue:
        if duration_s is None:
            return MetricValue(None, 0, excluded)
        return MetricValue(
            sum(map(amount, samples)) / duration_s, len(samples) - sum(excluded.values()), excluded
        )

    values = {
        "output_tokens_per_s": rate(lambda sample: sample.output_token_count, {}),
        "total_tokens_per_s": rate(
            lambda sample: (
                sample.output_token_count + (sample.prompt_token_count if sample.chunks else 0)
            ),
            {},
        ),
        "requests_per_s": rate(lambda sample: sample.status is RequestStatus.OK, failed),
    }
    if service_level is None:
        values["goodput_requests_per_s"] = MetricValue(None, 0, {"no_service_level": len(samples)})
    else:
        values["goodput_requests_per_s"] = rate(
            lambda sample: meets_service_level(sample, service_level), failed
        )
    return values


def _prefix_hit_ratio(record: RoundRecord) -> MetricValue:
    hits = record.counters.get("vllm:prefix_cache_hits_total")
    queries = record.counters.get("vllm:prefix_cache_queries_total")
    if hits is None or not queries:
        return MetricValue(
            None, 0, {"no_counter": 1} if hits is None or queries is None else {"nothing_asked": 1}
        )
    return MetricValue(hits / queries, int(queries))


def _energy_per_token(record: RoundRecord) -> MetricValue:
    """The devices' energy, summed. None if one of them could not be read."""
    readings = [reading.value for reading in record.telemetry if reading.name == "energy_j"]
    tokens = sum(sample.output_token_count for sample in record.samples)
    if not readings or not tokens:
        return MetricValue(None, 0, {"no_device": 1} if not readings else {"no_token": 1})
    seen = [value for value in readings if value is not None]
    if len(seen) < len(readings):
        return MetricValue(None, 0, {"unreadable": len(readings) - len(seen)})
    return MetricValue(sum(seen) / tokens, tokens)
