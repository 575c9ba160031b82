"""Samples and probes to metric sets. Pure: knows no baseline and judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from k3perf.config.workload_spec import ServiceLevel
from k3perf.metrics.values import MetricValue, RoundMetrics, SessionMetrics
from k3perf.samples import RankMemory, RequestSample, RequestStatus, RoundKind, RoundRecord, SessionRecord
from k3perf.units import ns_to_ms, ns_to_s


def round_metrics(record: RoundRecord, service_level: ServiceLevel | None = None) -> RoundMetrics:
    """Every ROUND metric of one round. Requests that did not end OK are excluded from latencies and counted under their status."""
    good = [sample for sample in record.samples if sample.status is RequestStatus.OK]
    excluded = dict(Counter(str(sample.status) for sample in record.samples if sample.status is not RequestStatus.OK))
    values = {
        **_throughput(record.samples, good, excluded, service_level),
        **_statistics("ttft", [value for sample in good if (value := _ttft_ms(sample)) is not None], excluded),
        **_statistics("tpot", [value for sample in good if (value := _tpot_ms(sample)) is not None], excluded),
        **_statistics("itl", [gap for sample in good for gap in _itl_ms(sample)], excluded),
        **_statistics("e2e", [value for sample in good if (value := _e2e_ms(sample)) is not None], excluded),
        "prefix_hit_ratio": _ratio(record.counters, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        "energy_per_output_token_j": _energy(record, good),
    }
    return RoundMetrics(record.round_index, record.pair_index, values, record.invalid_reasons)


def session_metrics(record: SessionRecord, service_level: ServiceLevel | None = None) -> SessionMetrics:
    """The measured rounds' metrics and every SESSION metric. Memory parts are the worst rank's; one that no rank offers is absent."""
    rounds = tuple(round_metrics(entry, service_level) for entry in record.rounds if entry.kind is RoundKind.MEASURED)
    values = {
        "weights_bytes": _worst(record.memory, "weights_bytes"),
        "kv_cache_bytes": _worst(record.memory, "kv_cache_bytes"),
        "peak_activation_bytes": _worst(record.memory, "peak_activation_bytes"),
        "graph_pool_bytes": _worst(record.memory, "graph_pool_bytes"),
        "non_torch_bytes": _worst(record.memory, "non_torch_bytes"),
        "peak_allocated_bytes": _worst(record.memory, "peak_allocated_bytes"),
        "engine_peak_rss_bytes": _single(record.engine_peak_resident_bytes),
        "kv_capacity_tokens": _single(record.kv_capacity_tokens),
        "kv_bytes_per_token": _kv_bytes_per_token(record),
        "max_concurrency_ratio": _single(record.kv_max_concurrency_ratio),
        **_startup(record),
    }
    return SessionMetrics(record.session_id, record.arm, record.pair_id, rounds, values, dict(record.resolved_config), record.invalid_reasons)


def _throughput(
    samples: Sequence[RequestSample], good: Sequence[RequestSample], excluded: dict[str, int], service_level: ServiceLevel | None
) -> dict[str, MetricValue]:
    sent = [sample.sent_ns for sample in samples if sample.sent_ns is not None]
    ends = [sample.last_token_ns for sample in good if sample.last_token_ns is not None]
    span_s = ns_to_s(max(ends) - min(sent)) if sent and ends else 0.0
    amounts = {
        "output_tokens_per_s": float(sum(sample.output_token_count for sample in good)),
        "total_tokens_per_s": float(sum(sample.output_token_count + sample.prompt_token_count for sample in good)),
        "requests_per_s": float(len(good)),
    }
    if service_level is not None:
        amounts["goodput_requests_per_s"] = float(sum(1 for sample in good if _within(sample, service_level)))
    absent = MetricValue(None, len(good), excluded)
    return {name: MetricValue(amount / span_s, len(good), excluded) if span_s > 0 else absent for name, amount in amounts.items()}


def _within(sample: RequestSample, level: ServiceLevel) -> bool:
    ttft_ms, tpot_ms = _ttft_ms(sample), _tpot_ms(sample)
    return ttft_ms is not None and ttft_ms <= level.ttft_ms and (tpot_ms is None or tpot_ms <= level.tpot_ms)


def _ttft_ms(sample: RequestSample) -> float | None:
    if sample.first_token_ns is None or sample.sent_ns is None:
        return None
    return ns_to_ms(sample.first_token_ns - sample.sent_ns)


def _e2e_ms(sample: RequestSample) -> float | None:
    if sample.last_token_ns is None or sample.sent_ns is None:
        return None
    return ns_to_ms(sample.last_token_ns - sample.sent_ns)


def _tpot_ms(sample: RequestSample) -> float | None:
    """Time per output token after the first chunk's tokens; None for a request that came in one chunk."""
    if len(sample.chunks) < 2:
        return None
    later_count = sum(chunk.token_count for chunk in sample.chunks[1:])
    return ns_to_ms(sample.chunks[-1].at_ns - sample.chunks[0].at_ns) / later_count


def _itl_ms(sample: RequestSample) -> Iterable[float]:
    """One gap per token after the first chunk; the tokens of one chunk share its gap equally."""
    for before, chunk in zip(sample.chunks, sample.chunks[1:], strict=False):
        gap_ms = ns_to_ms(chunk.at_ns - before.at_ns) / chunk.token_count
        yield from [gap_ms] * chunk.token_count


def _statistics(prefix: str, values_ms: list[float], excluded: dict[str, int]) -> dict[str, MetricValue]:
    """Mean and percentiles (linear interpolation between order statistics, numpy's default) with their n."""
    import numpy as np

    names = [f"{prefix}_{name}_ms" for name in ("mean", "p50", "p90", "p99")]
    if not values_ms:
        return {name: MetricValue(None, 0, excluded) for name in names}
    array = np.asarray(values_ms, dtype=np.float64)
    numbers = [float(array.mean()), *(float(value) for value in np.percentile(array, [50, 90, 99]))]
    return {name: MetricValue(value, len(values_ms), excluded) for name, value in zip(names, numbers, strict=True)}


def _ratio(counters: dict[str, float], part: str, whole: str) -> MetricValue:
    total = counters.get(whole)
    if not total or part not in counters:
        return MetricValue(None, 0)
    return MetricValue(counters[part] / total, int(total))


def _energy(record: RoundRecord, good: Sequence[RequestSample]) -> MetricValue:
    energy_j = next((reading.value for reading in record.telemetry if reading.name == "energy_j"), None)
    token_count = sum(sample.output_token_count for sample in good)
    if energy_j is None or not token_count:
        return MetricValue(None, 0)
    return MetricValue(energy_j / token_count, token_count)


def _worst(memory: Sequence[RankMemory], name: str) -> MetricValue:
    offered = [value for rank in memory if (value := getattr(rank, name)) is not None]
    absent_count = len(memory) - len(offered)
    excluded = {"not offered": absent_count} if absent_count else {}
    return MetricValue(float(max(offered)) if offered else None, len(offered), excluded)


def _single(value: float | None) -> MetricValue:
    return MetricValue(None, 0) if value is None else MetricValue(float(value), 1)


def _kv_bytes_per_token(record: SessionRecord) -> MetricValue:
    kv_bytes = _worst(record.memory, "kv_cache_bytes").value
    if kv_bytes is None or not record.kv_capacity_tokens:
        return MetricValue(None, 0)
    return MetricValue(kv_bytes / record.kv_capacity_tokens, 1)


def _startup(record: SessionRecord) -> dict[str, MetricValue]:
    """Cold and warm starts are two metrics; a start whose cache state the log does not tell is neither."""
    total_s = sum(stage.duration_s for stage in record.stages)
    known = {True: "startup_warm_s", False: "startup_cold_s"}
    if record.compile_cache_warm is None or not record.stages:
        return {}
    return {known[record.compile_cache_warm]: MetricValue(total_s, 1)}
