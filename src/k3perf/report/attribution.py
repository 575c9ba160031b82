"""Which part of a lost cell moved, and what changed with it: evidence from the readings
of this run and of what it is compared with. Pure.

``cause_scores`` has the arithmetic. With the server's times a share of the slowdown is
given. Without them (older recordings, other servers) TTFT and TPOT decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from k3perf.errors import shortened
from k3perf.metrics.arm_parts import PartValue, arm_parts
from k3perf.metrics.drift import config_differences
from k3perf.metrics.server_times import (
    DECODE,
    END_TO_END,
    FRONT_END,
    GAP_ALONE,
    GAP_LOADED,
    PER_KILOTOKEN,
    PREEMPTIONS,
    PREFILL,
    QUEUE,
    STEP_TOKENS,
    TOKENS,
)
from k3perf.records.attribution import Attribution, Cause, CauseFinding
from k3perf.records.baseline import Baseline
from k3perf.records.measurement import CellMeasurement
from k3perf.records.metric_definitions import METRICS, Family
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm
from k3perf.records.verdict import CellVerdict, ConfigDifference, MetricVerdict
from k3perf.report.cause_scores import BATCH_KEYS, Parts, change, less_cache, noise, scores
from k3perf.report.numbers import value_text

_SHOWN_SHARE: Final = 0.05
_SHOWN_CHANGES: Final = 30
_TIMES: Final = (Family.THROUGHPUT, Family.LATENCY, Family.CACHE, Family.ENERGY)
_SERVER: Final = (QUEUE, PREFILL, DECODE)

_TEXT: Final = {
    Cause.SLOW_PREFILL: "Prefill takes longer",
    Cause.SLOW_DECODE: "Decode steps take longer",
    Cause.SMALLER_CACHE: "The KV cache is smaller",
    Cause.PREFIX_CACHE: "The prefix cache finds less",
    Cause.BATCH_LIMIT: "The batch limit is lower",
    Cause.QUEUE: "Requests wait longer before they run",
    Cause.FRONT_END: "The front end takes longer",
    Cause.MEMORY: "The engine holds more memory",
    Cause.START_UP: "The start takes longer",
}

_EVIDENCE: Final[dict[Cause, tuple[tuple[str, str, str], ...]]] = {
    Cause.SLOW_PREFILL: (
        (PREFILL, "prefill time a request (server)", "ms"),
        (PER_KILOTOKEN, "TTFT per 1,000 prompt tokens", "ms"),
        ("itl_p99_ms", "longest gaps between tokens (p99)", "ms"),
        ("itl_p50_ms", "gap between tokens (p50)", "ms"),
        (QUEUE, "queue time a request (server)", "ms"),
        ("ttft_mean_ms", "TTFT", "ms"),
    ),
    Cause.SLOW_DECODE: (
        ("itl_p50_ms", "gap between tokens (p50)", "ms"),
        (DECODE, "decode time a request (server)", "ms"),
        (GAP_ALONE, "gap between tokens, one request running", "ms"),
        (GAP_LOADED, "gap between tokens, several running", "ms"),
        (PREFILL, "prefill time a request (server)", "ms"),
        ("tpot_mean_ms", "TPOT", "ms"),
    ),
    Cause.SMALLER_CACHE: (
        ("kv_capacity_tokens", "KV capacity", "tokens"),
        (PREEMPTIONS, "preemptions a round", ""),
        (QUEUE, "queue time a request (server)", "ms"),
        ("prefix_hit_ratio", "prefix hit ratio", "ratio"),
        ("weights_bytes", "weights", "bytes"),
        ("peak_activation_bytes", "peak activations", "bytes"),
        ("graph_pool_bytes", "graph pool", "bytes"),
        ("non_torch_bytes", "memory outside the allocator", "bytes"),
    ),
    Cause.PREFIX_CACHE: (
        ("prefix_hit_ratio", "prefix hit ratio", "ratio"),
        (PREFILL, "prefill time a request (server)", "ms"),
        ("ttft_mean_ms", "TTFT", "ms"),
    ),
    Cause.BATCH_LIMIT: (
        (QUEUE, "queue time a request (server)", "ms"),
        (STEP_TOKENS, "tokens per engine step", ""),
        (PREFILL, "prefill time a request (server)", "ms"),
        ("ttft_mean_ms", "TTFT", "ms"),
    ),
    Cause.QUEUE: (
        (QUEUE, "queue time a request (server)", "ms"),
        (STEP_TOKENS, "tokens per engine step", ""),
        ("itl_p50_ms", "gap between tokens (p50)", "ms"),
    ),
    Cause.FRONT_END: (
        (FRONT_END, "time outside the engine core", "ms"),
        (QUEUE, "queue time a request (server)", "ms"),
        (PREFILL, "prefill time a request (server)", "ms"),
        (DECODE, "decode time a request (server)", "ms"),
    ),
    Cause.MEMORY: (
        ("weights_bytes", "weights", "bytes"),
        ("peak_activation_bytes", "peak activations", "bytes"),
        ("graph_pool_bytes", "graph pool", "bytes"),
        ("non_torch_bytes", "memory outside the allocator", "bytes"),
        ("kv_cache_bytes", "KV cache", "bytes"),
    ),
    Cause.START_UP: (),
}


def attributed(
    cell: CellVerdict, measurement: CellMeasurement, baseline: Baseline | None
) -> Attribution | None:
    """The attribution of a cell that is REGRESSED or SUSPECT. None for another, and
    where nothing is known to compare with.
    """
    lost = [metric for metric in cell.metrics if metric.outcome in _LOST]
    if not lost:
        return None
    was, compared_with = expected_parts(measurement, baseline)
    if not was:
        return None
    now = arm_parts(measurement.arm(Arm.CANDIDATE))
    differences = _differences(cell, measurement)
    return attribute(
        was,
        now,
        lost=lost,
        differences=differences,
        compared_with=compared_with,
        changed=(*map(_difference_text, differences), *_environment(measurement, baseline)),
    )


_LOST: Final = (Outcome.REGRESSED, Outcome.SUSPECT)


def expected_parts(measurement: CellMeasurement, baseline: Baseline | None) -> tuple[Parts, str]:
    """What the candidate's parts would be without a loss, and where that is from.

    ``ab``: the base. ``reference``: the reference arm of this run, times the recorded
    ratio of the two arms. ``baseline``: the recorded parts, else the baseline's values.
    """
    recorded = baseline.workload(measurement.workload) if baseline is not None else None
    beside = arm_parts(measurement.arm(Arm.REFERENCE))
    if measurement.mode == "ab":
        return beside, "the base, measured side by side"
    if measurement.mode == "reference":
        ratios = _ratios(recorded.parts if recorded is not None else {})
        text = "the reference arm of this run"
        if ratios:
            text += ", times the recorded ratio of the two arms"
        scaled = {
            name: PartValue(part.value * ratios.get(name, 1.0), part.error * ratios.get(name, 1.0))
            for name, part in beside.items()
        }
        return scaled, text
    if recorded is not None and Arm.CANDIDATE in recorded.parts:
        kept = recorded.parts[Arm.CANDIDATE]
        return {name: PartValue(value) for name, value in kept.items()}, "the baseline"
    entries = (*recorded.metrics, *baseline.exact) if recorded and baseline else ()
    values = {
        entry.metric: PartValue(sum(one.value for one in entry.sessions) / len(entry.sessions))
        for entry in entries
        if entry.basis == "absolute"
    }
    return values, "the baseline, which holds no times of the server" if values else ""


def _ratios(parts: Mapping[Arm, Mapping[str, float]]) -> dict[str, float]:
    candidate, reference = parts.get(Arm.CANDIDATE, {}), parts.get(Arm.REFERENCE, {})
    return {
        name: value / reference[name]
        for name, value in candidate.items()
        if reference.get(name, 0.0) > 0 and value > 0
    }


def attribute(
    was: Parts,
    now: Parts,
    *,
    lost: Iterable[MetricVerdict],
    differences: Iterable[ConfigDifference] = (),
    compared_with: str = "",
    changed: Iterable[str] = (),
) -> Attribution:
    """The causes that explain the lost metrics, the likeliest first."""
    lost, differences = tuple(lost), tuple(differences)
    families = {METRICS[metric.metric].family for metric in lost if metric.metric in METRICS}
    causes: list[CauseFinding] = []
    unexplained = None
    if families & set(_TIMES):
        causes, unexplained = _of_times(was, now, differences)
    known = {finding.cause for finding in causes}
    capacity = families & {Family.CAPACITY} or any(one.metric == "kv_cache_bytes" for one in lost)
    if capacity and Cause.SMALLER_CACHE not in known and less_cache(was, now):
        causes.append(_finding(Cause.SMALLER_CACHE, was, now, differences))
    if families & {Family.MEMORY} and not any(
        finding.cause is Cause.SMALLER_CACHE for finding in causes
    ):
        causes.append(_finding(Cause.MEMORY, was, now, differences))
    if families & {Family.STARTUP}:
        causes.append(_finding(Cause.START_UP, was, now, differences))
    return Attribution(compared_with, tuple(causes), unexplained, tuple(changed)[:_SHOWN_CHANGES])


def _of_times(
    was: Parts, now: Parts, differences: tuple[ConfigDifference, ...]
) -> tuple[list[CauseFinding], float | None]:
    if not all(name in was and name in now for name in (*_SERVER, END_TO_END)):
        return _of_client(was, now, differences), None
    found = scores(was, now, lower_batch_limit=bool(_lower_limits(differences)))
    total_ms = max(found.slower_ms, sum(found.by_cause.values()))
    if total_ms <= 0:
        return [], None
    ranked = sorted(found.by_cause.items(), key=lambda entry: -entry[1])
    causes = [
        _finding(cause, was, now, differences, min(ms / total_ms, 1.0))
        for cause, ms in ranked
        if ms >= _SHOWN_SHARE * total_ms
    ]
    explained = sum(finding.share_ratio or 0.0 for finding in causes)
    return causes, max(0.0, min(1.0, 1.0 - explained))


def _of_client(
    was: Parts, now: Parts, differences: tuple[ConfigDifference, ...]
) -> list[CauseFinding]:
    """Without the server's times: first token against the tokens after it."""
    first_ms = _beyond(was, now, "ttft_mean_ms")
    later_ms = _beyond(was, now, "tpot_mean_ms")
    tokens = now[TOKENS].value if TOKENS in now else _tokens_of(now)
    decode_ms = later_ms * max(tokens - 1.0, 1.0)
    before = Cause.SLOW_PREFILL
    if less_cache(was, now):
        before = Cause.SMALLER_CACHE
    elif _lower_limits(differences):
        before = Cause.BATCH_LIMIT
    sizes = {Cause.SLOW_DECODE: decode_ms, before: first_ms}
    ranked = sorted(sizes.items(), key=lambda entry: -entry[1])
    return [_finding(cause, was, now, differences) for cause, size in ranked if size > 0]


def _tokens_of(parts: Parts) -> float:
    """Tokens of a request, from its length in time."""
    if not all(name in parts for name in ("e2e_mean_ms", "ttft_mean_ms", "tpot_mean_ms")):
        return 2.0
    after_ms = parts["e2e_mean_ms"].value - parts["ttft_mean_ms"].value
    return 1.0 + after_ms / parts["tpot_mean_ms"].value if parts["tpot_mean_ms"].value else 2.0


def _beyond(was: Parts, now: Parts, name: str) -> float:
    grown = change(was, now, name)
    return grown if grown > noise(was, now, name) else 0.0


def _finding(
    cause: Cause,
    was: Parts,
    now: Parts,
    differences: tuple[ConfigDifference, ...],
    share_ratio: float | None = None,
) -> CauseFinding:
    share = "" if share_ratio is None else f" ({share_ratio:.0%} of the slowdown)"
    evidence = [
        line
        for name, label, unit in _EVIDENCE[cause]
        if (line := _compared(was, now, name, label, unit))
    ]
    pointing = [one for one in differences if _points_to(cause, one.key)]
    evidence += [f"setting {_difference_text(one)}" for one in pointing]
    return CauseFinding(cause, f"{_TEXT[cause]}{share}", share_ratio, tuple(evidence))


def _compared(was: Parts, now: Parts, name: str, label: str, unit: str) -> str:
    if name not in was:
        return ""
    if name not in now:
        vanished = f"{label}: was {value_text(was[name].value, unit)}, not counted now"
        return vanished if name == "prefix_hit_ratio" else ""
    before, after = was[name].value, now[name].value
    ratio = f" ({after / before - 1:+.1%})" if before > 0 else ""
    return f"{label}: was {_text(before, unit)}, is {_text(after, unit)}{ratio}"


def _text(value: float, unit: str) -> str:
    return value_text(value, unit) if unit else f"{value:.3g}"


_SETTINGS: Final = {
    Cause.SMALLER_CACHE: (
        "gpu_memory_utilization",
        "num_gpu_blocks",
        "kv_cache_memory",
        "cache_dtype",
        "KVCACHE_SPACE",
    ),
    Cause.PREFIX_CACHE: ("prefix",),
    Cause.BATCH_LIMIT: BATCH_KEYS,
    Cause.SLOW_PREFILL: ("backend", "chunked_prefill", "version."),
    Cause.SLOW_DECODE: ("backend", "cudagraph", "compilation", "enforce_eager", "version."),
}


def _points_to(cause: Cause, key: str) -> bool:
    return any(part in key for part in _SETTINGS.get(cause, ()))


def _lower_limits(differences: Iterable[ConfigDifference]) -> list[ConfigDifference]:
    return [
        one
        for one in differences
        if any(key in one.key for key in BATCH_KEYS)
        and isinstance(one.was, int)
        and isinstance(one.now, int)
        and one.now < one.was
    ]


def _differences(cell: CellVerdict, measurement: CellMeasurement) -> tuple[ConfigDifference, ...]:
    """Of the verdict. Without a drift the baseline's settings are the candidate's."""
    if cell.differences or measurement.mode != "ab":
        return cell.differences
    arms = (measurement.arm(Arm.REFERENCE), measurement.arm(Arm.CANDIDATE))
    if not all(arms):
        return ()
    return config_differences(arms[0][0].resolved_config, arms[1][0].resolved_config)


def _difference_text(one: ConfigDifference) -> str:
    return f"{one.key}: was {shortened(repr(one.was))}, is {shortened(repr(one.now))}"


def _environment(measurement: CellMeasurement, baseline: Baseline | None) -> list[str]:
    """What the machine brings that no recorded session had: driver, libraries, host."""
    candidates = measurement.arm(Arm.CANDIDATE)
    if not candidates:
        return []
    now = candidates[-1].environment
    if measurement.mode == "ab":
        references = measurement.arm(Arm.REFERENCE)
        known = [references[-1].environment] if references else []
    else:
        known = [one.values for one in baseline.environments] if baseline is not None else []
    lines = []
    for key, value in sorted(now.items()):
        before = sorted({entry[key] for entry in known if key in entry})
        if before and value not in before:
            lines.append(f"{key}: was {shortened(' or '.join(before))}, is {shortened(value)}")
    return lines
