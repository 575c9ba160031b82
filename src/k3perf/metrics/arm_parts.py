"""Sessions of one arm to one value and standard error for each part of
``metrics.server_times``, and the latency and capacity metrics that explain a loss.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Final

from k3perf.metrics.server_times import PARTS
from k3perf.records.measurement import SessionMetrics

ROUND_PARTS: Final = (
    "ttft_mean_ms",
    "tpot_mean_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "e2e_mean_ms",
    "prefix_hit_ratio",
)
SESSION_PARTS: Final = (
    "weights_bytes",
    "kv_cache_bytes",
    "kv_capacity_tokens",
    "peak_activation_bytes",
    "graph_pool_bytes",
    "non_torch_bytes",
)


@dataclass(frozen=True, slots=True)
class PartValue:
    """Mean over sessions of each session's median round, with its standard error (0
    for one value, which shows no spread).
    """

    value: float
    error: float = 0.0


def arm_parts(sessions: Iterable[SessionMetrics]) -> dict[str, PartValue]:
    """By name, over the valid sessions and rounds. A part without a reading is
    missing.
    """
    of_sessions: dict[str, list[float]] = {}
    of_rounds: dict[str, list[float]] = {}
    for session in sessions:
        if session.invalid_reasons:
            continue
        for name, values in _round_values(session).items():
            of_rounds.setdefault(name, []).extend(values)
            of_sessions.setdefault(name, []).append(median(values))
        for name in SESSION_PARTS:
            value = session.values.get(name)
            if value is not None and value.value is not None:
                of_sessions.setdefault(name, []).append(value.value)
    return {
        name: PartValue(fmean(values), _error(values, of_rounds.get(name, [])))
        for name, values in of_sessions.items()
    }


def _error(of_sessions: list[float], of_rounds: list[float]) -> float:
    """Of the mean, from the sessions and from the rounds: the larger. Rounds of one
    process are too alike, two sessions are too few.
    """
    found = [
        stdev(values) / math.sqrt(len(values))
        for values in (of_sessions, of_rounds)
        if len(values) > 1
    ]
    return max(found, default=0.0)


def _round_values(session: SessionMetrics) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {}
    for measured in session.rounds:
        if measured.invalid_reasons:
            continue
        for name in ROUND_PARTS:
            value = measured.values.get(name)
            if value is not None and value.value is not None:
                found.setdefault(name, []).append(value.value)
        for reading in measured.readings:
            if reading.name in PARTS and reading.value is not None:
                found.setdefault(reading.name, []).append(reading.value)
    return found


def recorded_parts(sessions: Iterable[SessionMetrics]) -> dict[str, float]:
    """As ``arm_parts``, rounded to nine digits as a baseline keeps values."""
    return {name: float(f"{part.value:.9g}") for name, part in sorted(arm_parts(sessions).items())}
