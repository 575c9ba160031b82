"""Differences between the ranks and devices of one engine: the worst rank of each
memory part, the spread, the slowest device's clock, and the gain from parallelism.

Pure. A part that some rank does not report has no worst. A maximum over the others
could hide the rank that grew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from k3perf.metrics.round_readings import NOT_OFFERED
from k3perf.records.samples import RankMemory, RoundKind, RoundRecord
from k3perf.units import format_bytes

PARTS: Final = tuple(name for name in RankMemory.__dataclass_fields__ if name.endswith("_bytes"))
CLOCK_READING: Final = "sm_clock_min_mhz"

DeviceClocks = dict[str, float | None]
"""Lowest SM clock in MHz by place. None if it could not be read in some round.
"""


@dataclass(frozen=True, slots=True)
class RankSpread:
    """One memory part over all ranks, in bytes. The worst rank has the most, and judges
    the part's metric.
    """

    part: str
    worst_rank: int
    worst_bytes: int
    smallest_bytes: int
    rank_count: int

    @property
    def spread_ratio(self) -> float:
        """(worst - smallest) / worst. 0 if all are equal or all are 0, near 1 if very
        unequal.
        """
        return (
            (self.worst_bytes - self.smallest_bytes) / self.worst_bytes if self.worst_bytes else 0.0
        )

    @property
    def text(self) -> str:
        """The worst rank's figure and its distance from the smallest."""
        more = format_bytes(self.worst_bytes - self.smallest_bytes)
        return (
            f"{self.part} {format_bytes(self.worst_bytes)} on rank {self.worst_rank} (spread"
            f" {more}, {self.spread_ratio:.2%})"
        )


@dataclass(frozen=True, slots=True)
class RankReport:
    """``spreads`` by part. ``incomplete`` names each part that only some ranks report,
    with the ranks that do not.
    """

    spreads: dict[str, RankSpread]
    incomplete: dict[str, tuple[int, ...]]


def rank_report(memory: tuple[RankMemory, ...]) -> RankReport:
    """The spread of every part that all ranks report. Parts that none reports are
    omitted. The lowest rank wins among equal worst ones.
    """
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


def memory_note(sessions: Sequence[tuple[RankMemory, ...]], rank_count: int) -> str:
    """A cell's ranks in a sentence: equal parts, the worst rank and spread of the
    others, parts that some rank does not report, and unread ranks.

    ``rank_count`` is the number of ranks. Data-parallel engines on another host cannot
    be read (``ServerProbe.every_rank``). Of several sessions, the one with a part's
    largest spread counts. Empty for engines of one rank and without readings.
    """
    answered = [memory for memory in sessions if memory]
    if rank_count < 2 or not answered:
        return ""
    seen_count = min(map(len, answered))
    told = _told([rank_report(memory) for memory in answered]) if seen_count > 1 else []
    if seen_count < rank_count:
        told.append("the other ranks' readings are missing and are not judged")
        return f"memory of {seen_count} of {rank_count} ranks: {'; '.join(told)}"
    return f"memory of {rank_count} ranks: {'; '.join(told) or 'no rank reports any'}"


def _told(reports: Sequence[RankReport]) -> list[str]:
    equal: list[str] = []
    worst: list[str] = []
    silent: list[str] = []
    for part in PARTS:
        ranks = sorted({rank for report in reports for rank in report.incomplete.get(part, ())})
        spreads = [report.spreads[part] for report in reports if part in report.spreads]
        widest = max(spreads, key=lambda spread: spread.spread_ratio, default=None)
        if ranks:
            silent.append(f"{part} not reported by {_ranks_text(ranks)}, so no worst")
        elif widest is not None and widest.spread_ratio:
            worst.append(widest.text)
        elif widest is not None:
            equal.append(part)
    parts = [f"equal in {', '.join(equal)}"] if equal else []
    return parts + ([f"worst {', '.join(worst)}"] if worst else []) + silent


def device_clocks(rounds: Iterable[RoundRecord]) -> DeviceClocks:
    """Clocks of the valid measured rounds. A device without such a clock is omitted."""
    found: DeviceClocks = {}
    for record in rounds:
        if record.kind is not RoundKind.MEASURED or not record.valid:
            continue
        for reading in record.telemetry:
            if reading.name == CLOCK_READING and not reading.source.endswith(NOT_OFFERED):
                place = reading.source.partition(":")[0]
                found[place] = _lower(found.get(place, reading.value), reading.value)
    return found


def clock_note(sessions: Sequence[DeviceClocks]) -> str:
    """A cell's devices in a sentence, the slowest first. ``sm_clock_min_mhz`` judges
    its clock. Empty for fewer than two devices.
    """
    lowest: DeviceClocks = {}
    for clocks in sessions:
        for place, clock_mhz in clocks.items():
            lowest[place] = _lower(lowest.get(place, clock_mhz), clock_mhz)
    if len(lowest) < 2:
        return ""
    ordered = sorted(lowest.items(), key=lambda item: (item[1] is None, item[1] or 0.0, item[0]))
    listed = [
        f"{place} not read in every round" if clock is None else f"{clock:.0f} MHz on {place}"
        for place, clock in ordered
    ]
    return f"lowest SM clock of each device, the slowest is judged: {', '.join(listed)}"


def scaling_efficiency_ratio(
    throughput_per_s: float, device_count: int, single_throughput_per_s: float
) -> float:
    """Throughput of ``device_count`` devices over ``device_count`` times that of one.
    1.0 is perfect. Measure both alike.

    Raises ValueError unless the throughput of one device and the device count are above
    0.
    """
    if single_throughput_per_s <= 0 or device_count < 1:
        raise ValueError(
            f"no efficiency from {single_throughput_per_s} per second on one device and"
            f" {device_count} devices"
        )
    return throughput_per_s / (device_count * single_throughput_per_s)


def _spread(part: str, values: dict[int, int]) -> RankSpread:
    worst = max(values.values())
    return RankSpread(
        part,
        min(rank for rank, value in values.items() if value == worst),
        worst,
        min(values.values()),
        len(values),
    )


def _ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _lower(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)
