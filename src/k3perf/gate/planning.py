"""Selected cells to a plan: what fits into a budget of device minutes, and how it is split over runners. Pure and deterministic.

Cells of one (target, config) share an engine's start, so they stay together on one runner ("engines whole").
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from k3perf.config.suite import Cell, Suite
from k3perf.gate.selection import Priority, SelectedCell
from k3perf.metrics.definitions import METRICS, Comparison
from k3perf.samples import Arm, SessionRecord
from k3perf.units import ns_to_s

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# What a cell or a start is assumed to take before any run has recorded it.
UNRECORDED_CELL_S = 300.0
UNRECORDED_START_S = 120.0

_MAXIMUM_REFINEMENTS = 10_000


class RecordedCosts(BaseModel):
    """``perf_tests/costs.json``: seconds of earlier runs. ``engine_start_s`` is keyed ``target/config``, ``cell_s`` by cell id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    engine_start_s: dict[str, Seconds] = Field(default_factory=dict)
    cell_s: dict[str, Seconds] = Field(default_factory=dict)


def record_costs(sessions: Iterable[SessionRecord]) -> RecordedCosts:
    """What finished sessions took: the median start of each engine, and for each cell its candidates' time from first to last round.

    A candidate's rounds span the reference's where both alternate, so the reference's time is in its cells' costs.
    """
    starts: dict[str, list[float]] = {}
    cells: dict[str, float] = {}
    for session in sessions:
        start_s = sum(stage.duration_s for stage in session.stages)
        if start_s > 0:
            starts.setdefault(f"{session.target}/{session.config}", []).append(start_s)
        if session.rounds and session.arm is Arm.CANDIDATE:
            span_ns = max(record.end_ns for record in session.rounds) - min(record.start_ns for record in session.rounds)
            cell = f"{session.target}-{session.config}-{session.workload}"
            cells[cell] = cells.get(cell, 0.0) + ns_to_s(span_ns)
    return RecordedCosts(
        engine_start_s={key: round(median(values), 3) for key, values in sorted(starts.items())},
        cell_s={key: round(value, 3) for key, value in sorted(cells.items()) if value > 0},
    )


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """The cells that one engine serves, and what they take: seconds on the runner, seconds times devices of the budget."""

    target: str
    config: str
    hardware_class: str
    cells: tuple[SelectedCell, ...]
    start_s: float
    cells_s: tuple[float, ...]
    device_count: int

    @property
    def duration_s(self) -> float:
        """The engine's start and all its cells."""
        return self.start_s + sum(self.cells_s)

    @property
    def device_s(self) -> float:
        """Duration times devices: what the budget is spent in."""
        return self.duration_s * self.device_count


@dataclass(frozen=True, slots=True)
class Fitted:
    """The groups inside the budget, the cells left out with the reason, and whether the nearest cells alone exceed the budget."""

    groups: tuple[EngineGroup, ...]
    left_out: tuple[tuple[Cell, str], ...]
    over_budget: bool


@dataclass(frozen=True, slots=True)
class Shard:
    """What one runner measures."""

    index: int
    hardware_class: str
    groups: tuple[EngineGroup, ...]

    @property
    def cell_ids(self) -> tuple[str, ...]:
        """The shard's cells, engine by engine."""
        return tuple(selected.cell.cell_id for group in self.groups for selected in group.cells)

    @property
    def duration_s(self) -> float:
        """The sum of its engines."""
        return sum(group.duration_s for group in self.groups)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Recorded seconds, with the median of the nearest recorded relatives where a cell has none of its own."""

    recorded: RecordedCosts

    def cell_s(self, cell: Cell) -> float:
        """Seconds to measure the cell once its engine is ready."""
        known = self.recorded.cell_s.get(cell.cell_id)
        if known is not None:
            return known
        prefix, suffix = f"{cell.target.name}-", f"-{cell.workload.name}"
        near = [cost for key, cost in self.recorded.cell_s.items() if key.startswith(prefix) and key.endswith(suffix)]
        return median(near) if near else UNRECORDED_CELL_S

    def start_s(self, cell: Cell) -> float:
        """Seconds from process start to ready."""
        known = self.recorded.engine_start_s.get(f"{cell.target.name}/{cell.config.name}")
        if known is not None:
            return known
        near = [cost for key, cost in self.recorded.engine_start_s.items() if key.startswith(f"{cell.target.name}/")]
        return median(near) if near else UNRECORDED_START_S


def group_engines(cells: Iterable[SelectedCell], costs: CostModel) -> tuple[EngineGroup, ...]:
    """One group per (target, config), in the order of their first cells."""
    gathered: dict[tuple[str, str], list[SelectedCell]] = {}
    for selected in cells:
        gathered.setdefault((selected.cell.target.name, selected.cell.config.name), []).append(selected)
    return tuple(
        EngineGroup(
            target=target,
            config=config,
            hardware_class=members[0].cell.target.hardware.hardware_class,
            cells=tuple(members),
            start_s=costs.start_s(members[0].cell),
            cells_s=tuple(costs.cell_s(member.cell) for member in members),
            device_count=members[0].cell.target.hardware.device_count * members[0].cell.target.hardware.host_count,
        )
        for (target, config), members in gathered.items()
    )


def fit_budget(cells: Iterable[SelectedCell], costs: CostModel, budget_device_s: float | None) -> Fitted:
    """As many cells as the budget holds, nearest to the change first; every config gets a first workload before any gets a second.

    Directly touched cells stay even when they alone exceed the budget (``over_budget`` tells): a gate that drops what was changed
    would pass what it never measured.
    """
    chosen = tuple(cells)
    if budget_device_s is None:
        return Fitted(group_engines(chosen, costs), (), over_budget=False)
    kept: set[str] = set()
    started: set[tuple[str, str]] = set()
    left_out: list[tuple[Cell, str]] = []
    spent_s = 0.0
    for selected in _by_need(chosen):
        cell = selected.cell
        engine = (cell.target.name, cell.config.name)
        devices = cell.target.hardware.device_count * cell.target.hardware.host_count
        price_s = devices * (costs.cell_s(cell) + (0.0 if engine in started else costs.start_s(cell)))
        if selected.priority is not Priority.DIRECT and spent_s + price_s > budget_device_s:
            needed = f"needs {price_s / 60:.1f} device minutes, {max(0.0, budget_device_s - spent_s) / 60:.1f} of the budget are left"
            left_out.append((cell, needed))
            continue
        spent_s += price_s
        started.add(engine)
        kept.add(cell.cell_id)
    inside = tuple(selected for selected in chosen if selected.cell.cell_id in kept)
    return Fitted(group_engines(inside, costs), tuple(left_out), over_budget=spent_s > budget_device_s)


def _by_need(cells: tuple[SelectedCell, ...]) -> list[SelectedCell]:
    seen: dict[tuple[str, str], int] = {}
    keyed = []
    for position, selected in enumerate(cells):
        engine = (selected.cell.target.name, selected.cell.config.name)
        turn = seen.get(engine, 0)
        seen[engine] = turn + 1
        keyed.append((selected.priority, turn, position, selected))
    return [selected for *_, selected in sorted(keyed, key=lambda entry: entry[:3])]


def split(groups: Iterable[EngineGroup], shard_count: int) -> tuple[Shard, ...]:
    """At most ``shard_count`` shards for each hardware class, balanced by duration, engines whole; no shard is empty.

    Longest processing time first (Graham 1969, within 4/3 of the best), then single moves and swaps while they shorten the longest.
    """
    by_class: dict[str, list[EngineGroup]] = {}
    for group in groups:
        by_class.setdefault(group.hardware_class, []).append(group)
    parts = [(name, part) for name, members in by_class.items() for part in _balance(members, shard_count)]
    return tuple(Shard(index, name, tuple(part)) for index, (name, part) in enumerate(parts))


def gated_metric_count(suite: Suite, groups: Iterable[EngineGroup]) -> int:
    """Gated statistical metrics over all groups: what every shard divides the suite's error budgets by, so that splitting keeps them."""
    return sum(
        1
        for group in groups
        for selected in group.cells
        for name in suite.tolerances.for_cell(group.target, selected.cell.workload.name)
        if name in METRICS and METRICS[name].comparison is Comparison.STATISTICAL
    )


def _balance(groups: list[EngineGroup], shard_count: int) -> list[list[EngineGroup]]:
    order = sorted(groups, key=lambda group: (-group.duration_s, group.target, group.config))
    parts: list[list[EngineGroup]] = [[] for _ in range(min(shard_count, len(order)))]
    heap = [(0.0, index) for index in range(len(parts))]
    for group in order:
        load_s, index = heapq.heappop(heap)
        parts[index].append(group)
        heapq.heappush(heap, (load_s + group.duration_s, index))
    rounds = 0
    while rounds < _MAXIMUM_REFINEMENTS and _improve(parts):
        rounds += 1
    return [part for part in parts if part]


def _improve(parts: list[list[EngineGroup]]) -> bool:
    """Moves or swaps one group from the longest part so that the longer of the two parts becomes shorter; False when nothing helps."""
    loads = [sum(group.duration_s for group in part) for part in parts]
    longest = max(range(len(parts)), key=loads.__getitem__)
    for other in sorted(range(len(parts)), key=loads.__getitem__):
        gap_s = loads[longest] - loads[other]
        if other == longest or gap_s <= 0:
            continue
        for mine in parts[longest]:
            for theirs in (None, *parts[other]):
                shifted_s = mine.duration_s - (theirs.duration_s if theirs is not None else 0.0)
                if 1e-9 < shifted_s < gap_s - 1e-9:
                    parts[longest].remove(mine)
                    parts[other].append(mine)
                    if theirs is not None:
                        parts[other].remove(theirs)
                        parts[longest].append(theirs)
                    return True
    return False
