"""What the ranks of one engine differ in: the worst rank of each memory part, the spread beside it, and what parallelism brought.

Pure. A part that some rank does not report has no worst: a maximum over the others could hide the very rank that grew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from k3perf.samples import RankMemory

# Less is worse for what serves requests, more is worse for what is taken from it.
LESS_IS_WORSE: Final = frozenset({"kv_cache_bytes"})
PARTS: Final = tuple(name for name in RankMemory.__dataclass_fields__ if name.endswith("_bytes"))


@dataclass(frozen=True, slots=True)
class RankSpread:
    """One memory part over all ranks, in bytes. ``spread_ratio`` is (largest - smallest) / largest; 0 when all are equal or all are 0."""

    part: str
    worst_rank: int
    worst_bytes: int
    smallest_bytes: int
    largest_bytes: int
    rank_count: int

    @property
    def spread_ratio(self) -> float:
        """0 for equal ranks, towards 1 the more unequal."""
        return (self.largest_bytes - self.smallest_bytes) / self.largest_bytes if self.largest_bytes else 0.0


@dataclass(frozen=True, slots=True)
class RankReport:
    """``spreads`` by part; ``incomplete`` names each part that only some ranks report, with the ranks that do not."""

    spreads: dict[str, RankSpread]
    incomplete: dict[str, tuple[int, ...]]


def rank_report(memory: tuple[RankMemory, ...]) -> RankReport:
    """The spread of every part that all ranks report; parts that none reports are left out. The lowest rank wins among equal worst ones."""
    spreads: dict[str, RankSpread] = {}
    incomplete: dict[str, tuple[int, ...]] = {}
    for part in PARTS:
        values = {rank.rank: getattr(rank, part) for rank in memory}
        silent = tuple(sorted(rank for rank, value in values.items() if value is None))
        if silent and len(silent) < len(values):
            incomplete[part] = silent
        if values and not silent:
            spreads[part] = _spread(part, values)
    return RankReport(spreads, incomplete)


def scaling_efficiency_ratio(throughput_per_s: float, device_count: int, single_throughput_per_s: float) -> float:
    """Throughput of ``device_count`` devices over ``device_count`` times that of one; 1.0 is perfect. Both must be measured alike.

    Raises ValueError for a throughput of one device or a device count that is not above 0: a ratio to nothing says nothing.
    """
    if single_throughput_per_s <= 0 or device_count < 1:
        raise ValueError(f"no efficiency from {single_throughput_per_s} per second on one device and {device_count} devices")
    return throughput_per_s / (device_count * single_throughput_per_s)


def balance_ratio(requests_by_endpoint: dict[str, int]) -> float | None:
    """The busiest endpoint's share over the even share: 1.0 is balanced, the number of endpoints is one taking all. None without requests."""
    total = sum(requests_by_endpoint.values())
    return max(requests_by_endpoint.values()) * len(requests_by_endpoint) / total if total else None


def _spread(part: str, values: dict[int, int]) -> RankSpread:
    smallest, largest = min(values.values()), max(values.values())
    worst = smallest if part in LESS_IS_WORSE else largest
    worst_rank = min(rank for rank, value in values.items() if value == worst)
    return RankSpread(part, worst_rank, worst, smallest, largest, len(values))
