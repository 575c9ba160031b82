"""Metrics that are free of the client, of the API server or of prefill. Reported, not
gated by this suite's tolerances. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from k3perf.records.measurement import MetricValue
from k3perf.records.samples import RequestSample, RequestStatus
from k3perf.units import ns_to_s

HISTOGRAMS: Final = {
    "server_itl_mean_ms": "vllm:inter_token_latency_seconds",
    "server_prefill_mean_ms": "vllm:request_prefill_time_seconds",
    "server_queue_mean_ms": "vllm:request_queue_time_seconds",
}
"""Metric to the server's histogram. Its times come from the engine core's clock."""

_MS_PER_S: Final = 1000.0


def server_times(counters: Mapping[str, float]) -> dict[str, MetricValue]:
    """Sum over count of each histogram in the round, in milliseconds. None where the
    server has no such histogram or counted nothing.
    """
    values = {}
    for metric, name in HISTOGRAMS.items():
        total_s, count = counters.get(f"{name}_sum"), counters.get(f"{name}_count")
        if total_s is None or count is None:
            values[metric] = MetricValue(None, 0, {"no_counter": 1})
        elif count <= 0:
            values[metric] = MetricValue(None, 0, {"nothing_counted": 1})
        else:
            values[metric] = MetricValue(_MS_PER_S * total_s / count, int(count))
    return values


def decode_tokens_per_s(samples: tuple[RequestSample, ...]) -> MetricValue:
    """Output tokens per second while every request of the round decodes: from the last
    first token to the first last token. No prefill runs in that time.

    None if the requests never decode all at once, as under a closed loop of fewer than
    all requests, or if one did not end OK.
    """
    failed = sum(sample.status is not RequestStatus.OK for sample in samples)
    firsts_ns = [one.first_token_ns for one in samples if one.first_token_ns is not None]
    lasts_ns = [one.last_token_ns for one in samples if one.last_token_ns is not None]
    if failed or not samples or len(firsts_ns) < len(samples):
        return MetricValue(None, 0, {"not_ok": max(failed, len(samples) - len(firsts_ns))})
    begin_ns, end_ns = max(firsts_ns), min(lasts_ns)
    if end_ns <= begin_ns:
        return MetricValue(None, 0, {"never_all_at_once": len(samples)})
    token_count = sum(
        chunk.token_count
        for sample in samples
        for chunk in sample.chunks
        if begin_ns < chunk.at_ns <= end_ns
    )
    return MetricValue(token_count / ns_to_s(end_ns - begin_ns), token_count)
