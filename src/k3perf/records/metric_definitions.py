"""Every metric, defined once: name with unit, direction, scope, how it is compared.
``docs/metrics.md`` is generated from this table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Direction(StrEnum):
    """Which way is a loss."""

    HIGHER_IS_BETTER = "higher_is_better"
    LOWER_IS_BETTER = "lower_is_better"


class Scope(StrEnum):
    """A ROUND metric has a value per valid round; a SESSION metric one per session."""

    ROUND = "round"
    SESSION = "session"


class Comparison(StrEnum):
    """STATISTICAL metrics vary from run to run and are judged with an interval; EXACT
    ones are compared as they are.
    """

    STATISTICAL = "statistical"
    EXACT = "exact"


class Family(StrEnum):
    """What a metric is about; one test module each, and the report groups by it."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    MEMORY = "memory"
    CAPACITY = "capacity"
    STARTUP = "startup"
    CACHE = "cache"
    ENERGY = "energy"


@dataclass(frozen=True, slots=True)
class MetricDef:
    """One metric: what it is called, which way is a loss, per what it has a value, and
    how it is compared.
    """

    name: str
    unit: str
    direction: Direction
    scope: Scope
    comparison: Comparison
    family: Family
    description: str

    def loss(self, was: float, now: float) -> float:
        """The change in the metric's unit; positive is worse."""
        return now - was if self.direction is Direction.LOWER_IS_BETTER else was - now

    def loss_ratio(self, was: float, now: float) -> float | None:
        """``loss`` as a share of ``was``. None where ``was`` is 0, since no share of 0
        says how much, and where the result is not finite.
        """
        ratio = self.loss(was, now) / abs(was) if was else math.nan
        return ratio if math.isfinite(ratio) else None


def _round(
    name: str, unit: str, direction: Direction, family: Family, description: str
) -> MetricDef:
    return MetricDef(
        name, unit, direction, Scope.ROUND, Comparison.STATISTICAL, family, description
    )


_HIGHER = Direction.HIGHER_IS_BETTER
_LOWER = Direction.LOWER_IS_BETTER


def _latency(prefix: str, label: str) -> tuple[MetricDef, ...]:
    return tuple(
        _round(
            f"{prefix}_{statistic}_ms",
            "ms",
            _LOWER,
            Family.LATENCY,
            f"{label}, {statistic} over the round's requests",
        )
        for statistic in ("mean", "p50", "p90", "p99")
    )


METRIC_TABLE: Final[tuple[MetricDef, ...]] = (
    _round(
        "output_tokens_per_s",
        "tokens/s",
        _HIGHER,
        Family.THROUGHPUT,
        "Output tokens over the time from first send to last token",
    ),
    _round(
        "total_tokens_per_s",
        "tokens/s",
        _HIGHER,
        Family.THROUGHPUT,
        "Prompt and output tokens over the same time",
    ),
    _round(
        "requests_per_s",
        "requests/s",
        _HIGHER,
        Family.THROUGHPUT,
        "Requests that ended OK over the same time",
    ),
    _round(
        "goodput_requests_per_s",
        "requests/s",
        _HIGHER,
        Family.THROUGHPUT,
        "Requests within the workload's service level over the same time",
    ),
    *_latency("ttft", "Time from send to the first token of any channel"),
    *_latency(
        "tpot",
        "Time per output token after the first: (last token - first token) / (tokens - 1), per"
        " request",
    ),
    *_latency("itl", "Time between successive tokens; a chunk's tokens share its gap equally"),
    *_latency("e2e", "Time from send to the last token"),
    MetricDef(
        "weights_bytes",
        "bytes",
        _LOWER,
        Scope.SESSION,
        Comparison.EXACT,
        Family.MEMORY,
        "Model weights of the worst rank",
    ),
    MetricDef(
        "kv_cache_bytes",
        "bytes",
        _LOWER,
        Scope.SESSION,
        Comparison.EXACT,
        Family.MEMORY,
        "Allocated KV cache storage of the worst rank",
    ),
    MetricDef(
        "peak_activation_bytes",
        "bytes",
        _LOWER,
        Scope.SESSION,
        Comparison.EXACT,
        Family.MEMORY,
        "Peak activation memory of the profile run, worst rank",
    ),
    MetricDef(
        "graph_pool_bytes",
        "bytes",
        _LOWER,
        Scope.SESSION,
        Comparison.EXACT,
        Family.MEMORY,
        "CUDA-graph pool of the worst rank",
    ),
    MetricDef(
        "non_torch_bytes",
        "bytes",
        _LOWER,
        Scope.SESSION,
        Comparison.EXACT,
        Family.MEMORY,
        "Device memory held outside torch's allocator, worst rank",
    ),
    MetricDef(
        "peak_allocated_bytes",
        "bytes",
        _LOWER,
        Scope.SESSION,
        Comparison.EXACT,
        Family.MEMORY,
        "Allocator peak during the measured rounds, worst rank",
    ),
    MetricDef(
        "engine_peak_rss_bytes",
        "bytes",
        _LOWER,
        Scope.SESSION,
        Comparison.EXACT,
        Family.MEMORY,
        "Peak resident memory summed over the engine's processes",
    ),
    MetricDef(
        "kv_capacity_tokens",
        "tokens",
        _HIGHER,
        Scope.SESSION,
        Comparison.EXACT,
        Family.CAPACITY,
        "Tokens that the KV cache holds",
    ),
    MetricDef(
        "kv_bytes_per_token",
        "bytes/token",
        _LOWER,
        Scope.SESSION,
        Comparison.EXACT,
        Family.CAPACITY,
        "KV cache bytes over KV capacity",
    ),
    MetricDef(
        "max_concurrency_ratio",
        "requests",
        _HIGHER,
        Scope.SESSION,
        Comparison.EXACT,
        Family.CAPACITY,
        "Requests of the full context length that fit at once",
    ),
    MetricDef(
        "startup_cold_s",
        "s",
        _LOWER,
        Scope.SESSION,
        Comparison.STATISTICAL,
        Family.STARTUP,
        "Process start to ready with a cold compile cache",
    ),
    MetricDef(
        "startup_warm_s",
        "s",
        _LOWER,
        Scope.SESSION,
        Comparison.STATISTICAL,
        Family.STARTUP,
        "Process start to ready with a warm compile cache",
    ),
    MetricDef(
        "startup_uncompiled_s",
        "s",
        _LOWER,
        Scope.SESSION,
        Comparison.STATISTICAL,
        Family.STARTUP,
        "Process start to ready of an engine that compiles no graphs",
    ),
    _round(
        "prefix_hit_ratio",
        "ratio",
        _HIGHER,
        Family.CACHE,
        "Prompt tokens found in the prefix cache over prompt tokens asked for",
    ),
    _round(
        "energy_per_output_token_j",
        "J/token",
        _LOWER,
        Family.ENERGY,
        "Device energy over the round divided by output tokens",
    ),
)

METRICS: Final[dict[str, MetricDef]] = {metric.name: metric for metric in METRIC_TABLE}
