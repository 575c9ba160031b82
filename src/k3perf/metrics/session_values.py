"""Session records to SESSION metrics: memory of the worst rank, capacity, start-up.
Pure.

A part that one rank did not report makes the metric None, since that rank may be the
worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from k3perf.records.baseline import MetricBaseline
from k3perf.records.measurement import MetricValue, SessionMetrics
from k3perf.records.samples import RankMemory, SessionRecord

_RANK_PARTS: dict[str, Callable[[RankMemory], int | None]] = {
    "weights_bytes": lambda rank: rank.weights_bytes,
    "kv_cache_bytes": lambda rank: rank.kv_cache_bytes,
    "peak_activation_bytes": lambda rank: rank.peak_activation_bytes,
    "graph_pool_bytes": lambda rank: rank.graph_pool_bytes,
    "non_torch_bytes": lambda rank: rank.non_torch_bytes,
    "peak_allocated_bytes": lambda rank: rank.peak_allocated_bytes,
}

RANK_METRICS: Final = frozenset((*_RANK_PARTS, "kv_bytes_per_token"))
"""Metrics of the worst rank. The ``n`` of their values is the number of ranks read."""

KV_METRICS: Final = frozenset(
    {"kv_cache_bytes", "kv_capacity_tokens", "kv_bytes_per_token", "max_concurrency_ratio"}
)
"""Metrics that follow from the size of the KV cache."""

SERVING_METRICS: Final = frozenset({"peak_allocated_bytes", "engine_peak_rss_bytes"})
"""Memory that depends on the workload. All other exact metrics are settled when the
engine starts.
"""


def session_values(record: SessionRecord) -> dict[str, MetricValue]:
    """Every SESSION metric by name. A value that was not offered or not read is None,
    with the reason counted.
    """
    values = {name: _worst_rank(record.memory, part) for name, part in _RANK_PARTS.items()}
    values["engine_peak_rss_bytes"] = _single(record.engine_peak_resident_bytes)
    values["kv_capacity_tokens"] = _single(record.kv_capacity_tokens)
    values["kv_bytes_per_token"] = _bytes_per_token(
        values["kv_cache_bytes"], record.kv_capacity_tokens
    )
    values["max_concurrency_ratio"] = _single(record.kv_max_concurrency_ratio)
    values |= _start_up(record)
    return values | _quality(record)


def _quality(record: SessionRecord) -> dict[str, MetricValue]:
    """The answers' metrics of a target that declares ``quality``."""
    found = {} if record.quality is None else record.quality.values
    return {
        name: MetricValue(one.value, one.n, {one.reason: 1} if one.reason else {})
        for name, one in found.items()
    }


def _single(value: float | None) -> MetricValue:
    return (
        MetricValue(None, 0, {"not_offered": 1}) if value is None else MetricValue(float(value), 1)
    )


def _worst_rank(
    ranks: tuple[RankMemory, ...], part: Callable[[RankMemory], int | None]
) -> MetricValue:
    seen = [value for rank in ranks if (value := part(rank)) is not None]
    unseen_count = len(ranks) - len(seen)
    if unseen_count or not seen:
        return MetricValue(
            None, 0, {"rank_without_it": unseen_count} if ranks else {"no_rank_seen": 1}
        )
    return MetricValue(float(max(seen)), len(seen))


def _bytes_per_token(kv_cache: MetricValue, capacity_tokens: int | None) -> MetricValue:
    if kv_cache.value is None or not capacity_tokens:
        return MetricValue(None, 0, {"not_offered": 1})
    return MetricValue(kv_cache.value / capacity_tokens, kv_cache.n)


_START_UP: Final = {False: "startup_cold_s", True: "startup_warm_s", None: "startup_uncompiled_s"}
"""The name of a start's time by the state of the compile cache. None: the engine's log
reports no compiled graph.
"""


def _start_up(record: SessionRecord) -> dict[str, MetricValue]:
    """Process start to ready, under the name of the compile cache's state: cold, warm,
    or no compiled graphs. The other names are None.

    All are None for a process that imported vLLM ahead of its turn.
    """
    name = _START_UP[record.compile_cache_warm]
    why = "imported_ahead" if record.imported_ahead else "other_cache_state"
    values = dict.fromkeys(_START_UP.values(), MetricValue(None, 0, {why: 1}))
    if record.stages and not record.imported_ahead:
        values[name] = MetricValue(sum(stage.duration_s for stage in record.stages), 1)
    return values


def rank_counts(name: str, sessions: Iterable[SessionMetrics]) -> frozenset[int]:
    """Of how many ranks the sessions' values of the metric are the worst. Empty for a
    metric without ranks.
    """
    if name not in RANK_METRICS:
        return frozenset()
    found = [session.values[name] for session in sessions if name in session.values]
    return frozenset(value.n for value in found if value.value is not None and value.n)


def rank_notes(recorded: Iterable[MetricBaseline], sessions: Sequence[SessionMetrics]) -> list[str]:
    """Where several ranks were read and an older baseline does not say of how many its
    values are the worst.
    """
    names = [
        entry.metric
        for entry in recorded
        if not entry.rank_counts and max(rank_counts(entry.metric, sessions), default=0) > 1
    ]
    text = f"number of ranks not recorded in the baseline of {', '.join(names)}, so not compared"
    return [f"{text}; k3perf baseline propose records it"] if names else []


def ranks_text(counts: frozenset[int]) -> str:
    """How many ranks, or which numbers of them where sessions differ; at least one."""
    return f"{' or '.join(map(str, sorted(counts)))} rank{'' if counts == {1} else 's'}"
