"""Where the time of a round's requests went: the server's own histograms (queue,
prefill, decode, tokens per engine step), the front end's rest, and how the client's
times depend on prompt length and load. Pure.

Readings explain a change. Nothing is judged by them. vLLM takes queue, prefill and
decode times from the engine core's clock, so the client's end-to-end time minus the
three is what front end, network and client add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

from k3perf.metrics.latency import ttft_ns
from k3perf.records.samples import RequestSample, RequestStatus, RoundRecord, TelemetryReading
from k3perf.units import MS_PER_S, NS_PER_MS

QUEUE: Final = "server_queue_mean_ms"
PREFILL: Final = "server_prefill_mean_ms"
DECODE: Final = "server_decode_mean_ms"
FRONT_END: Final = "front_end_mean_ms"
END_TO_END: Final = "request_mean_ms"
STEP_TOKENS: Final = "server_step_tokens_mean"
STEPS: Final = "server_steps_count"
PREEMPTIONS: Final = "server_preemptions_count"
TOKENS: Final = "output_tokens_mean"
AT_NO_PROMPT: Final = "ttft_at_no_prompt_ms"
PER_KILOTOKEN: Final = "ttft_per_1000_tokens_ms"
GAP_ALONE: Final = "token_gap_alone_p50_ms"
GAP_LOADED: Final = "token_gap_loaded_p50_ms"

PARTS: Final = (
    QUEUE,
    PREFILL,
    DECODE,
    FRONT_END,
    END_TO_END,
    STEP_TOKENS,
    PREEMPTIONS,
    TOKENS,
    AT_NO_PROMPT,
    PER_KILOTOKEN,
    GAP_ALONE,
    GAP_LOADED,
)
"""The readings that a baseline keeps, to say later which part moved."""

_HISTOGRAMS: Final = {
    QUEUE: "vllm:request_queue_time_seconds",
    PREFILL: "vllm:request_prefill_time_seconds",
    DECODE: "vllm:request_decode_time_seconds",
}
_STEP_HISTOGRAM: Final = "vllm:iteration_tokens_total"
_PREEMPTIONS_COUNTER: Final = "vllm:num_preemptions_total"
_CLIENT: Final = "client"
_FEWEST_REQUESTS: Final = 8
_FEWEST_GAPS: Final = 20


def part_readings(record: RoundRecord) -> tuple[TelemetryReading, ...]:
    """Every part that can be read of the round. What cannot be read is missing, never
    0.
    """
    answered = [sample for sample in record.samples if sample.status is RequestStatus.OK]
    found = _server(record.counters)
    if answered:
        found |= _client(answered)
    counts = {record.counters.get(f"{name}_count") for name in _HISTOGRAMS.values()}
    # another client's requests, or lost ones, would make the difference of two means
    # the difference of two sets of requests
    if END_TO_END in found and counts == {float(len(record.samples))}:
        served_ms = sum(found[name][0] for name in _HISTOGRAMS)
        rest_ms = found[END_TO_END][0] - served_ms
        found[FRONT_END] = (rest_ms, f"{_CLIENT} minus server")
    return tuple(TelemetryReading(name, value, source) for name, (value, source) in found.items())


def _server(counters: Mapping[str, float]) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}
    for name, histogram in _HISTOGRAMS.items():
        mean_s = _mean(counters, histogram)
        if mean_s is not None:
            found[name] = (MS_PER_S * mean_s, histogram)
    step_tokens = _mean(counters, _STEP_HISTOGRAM)
    if step_tokens is not None:
        found[STEP_TOKENS] = (step_tokens, _STEP_HISTOGRAM)
        found[STEPS] = (counters[f"{_STEP_HISTOGRAM}_count"], _STEP_HISTOGRAM)
    if _PREEMPTIONS_COUNTER in counters:
        found[PREEMPTIONS] = (counters[_PREEMPTIONS_COUNTER], _PREEMPTIONS_COUNTER)
    return found


def _mean(counters: Mapping[str, float], histogram: str) -> float | None:
    total, count = counters.get(f"{histogram}_sum"), counters.get(f"{histogram}_count")
    return None if total is None or not count else total / count


def _client(answered: Sequence[RequestSample]) -> dict[str, tuple[float, str]]:
    found = {TOKENS: fmean(sample.output_token_count for sample in answered)}
    spans_ns = [
        sample.last_token_ns - sample.sent_ns
        for sample in answered
        if sample.last_token_ns is not None and sample.sent_ns is not None
    ]
    if len(spans_ns) == len(answered):
        found[END_TO_END] = fmean(spans_ns) / NS_PER_MS
    found |= _by_length(answered)
    found |= _by_load(answered)
    return {name: (value, _CLIENT) for name, value in found.items()}


def _by_length(answered: Sequence[RequestSample]) -> dict[str, float]:
    """Least squares of TTFT on the prompt tokens that were not cached. Empty without
    enough requests or two lengths.
    """
    import numpy as np

    points = [
        (sample.prompt_token_count - (sample.cached_prompt_token_count or 0), first_ns)
        for sample in answered
        if (first_ns := ttft_ns(sample)) is not None
    ]
    lengths = np.array([length for length, _ in points], dtype=np.float64)
    if len(points) < _FEWEST_REQUESTS or lengths.std() <= 0.1 * lengths.mean():
        return {}
    slope, intercept = np.polyfit(lengths, [first_ns / NS_PER_MS for _, first_ns in points], 1)
    return {AT_NO_PROMPT: float(intercept), PER_KILOTOKEN: 1000 * float(slope)}


def _by_load(answered: Sequence[RequestSample]) -> dict[str, float]:
    """Median gap between tokens while one request was in flight, and while several
    were.
    """
    import numpy as np

    sequences = [sample for sample in answered if sample.sequence_count == 1]
    sends = np.sort([sample.sent_ns for sample in answered if sample.sent_ns is not None])
    ends = np.sort([sample.end_ns for sample in answered])
    before = np.array([one.at_ns for sample in sequences for one in sample.chunks[:-1]])
    after = np.array([one.at_ns for sample in sequences for one in sample.chunks[1:]])
    tokens = np.array([one.token_count for sample in sequences for one in sample.chunks[1:]])
    if not len(after):
        return {}
    in_flight = np.searchsorted(sends, after) - np.searchsorted(ends, after)
    gaps_ms = (after - before) / tokens / NS_PER_MS
    found = {}
    for name, chosen in ((GAP_ALONE, in_flight <= 1), (GAP_LOADED, in_flight > 1)):
        if int(chosen.sum()) >= _FEWEST_GAPS:
            found[name] = float(np.median(gaps_ms[chosen]))
    return found
