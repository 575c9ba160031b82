"""Selected cells to a plan: what fits into a budget of device minutes, and how it is
split over runners. Pure and deterministic.

Cells of one (target, config) share an engine's start, so they stay together on one
runner ("engines whole").
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from k3perf.ci.costs import CostBasis, CostModel
from k3perf.ci.selection import Priority, SelectedCell
from k3perf.config.gated import check_metric_names, statistical_metric_count
from k3perf.config.suite import Cell, Suite

_MAXIMUM_REFINEMENTS = 10_000


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """The cells that one engine serves, and what they take: seconds on the runner,
    seconds times devices of the budget.
    """

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
    """The groups inside the budget, the omitted cells with the reason, and whether the
    nearest cells alone exceed the budget.
    """

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


def group_engines(cells: Iterable[SelectedCell], costs: CostModel) -> tuple[EngineGroup, ...]:
    """One group per (target, config), in the order of their first cells."""
    gathered: dict[tuple[str, str], list[SelectedCell]] = {}
    for selected in cells:
        gathered.setdefault((selected.cell.target.name, selected.cell.config.name), []).append(
            selected
        )
    return tuple(
        EngineGroup(
            target=target,
            config=config,
            hardware_class=members[0].cell.target.hardware.hardware_class,
            cells=tuple(members),
            start_s=costs.engine_s(members[0].cell),
            cells_s=tuple(costs.cell_s(member.cell) for member in members),
            device_count=members[0].cell.target.hardware.device_count,
        )
        for (target, config), members in gathered.items()
    )


@dataclass(frozen=True, slots=True)
class Importance:
    """Which of equally near cells a tight budget measures first: those with a baseline,
    then those of ``targets_first``, then by a turn that ``seed`` (the commit) decides,
    so that every cell has its turn.
    """

    with_baseline: frozenset[str] = frozenset()
    targets_first: tuple[str, ...] = ()
    seed: str = ""

    def __call__(self, cell: Cell) -> tuple[bool, int, str]:
        """A sort key of a cell's engine, the smallest first."""
        names = self.targets_first
        place = names.index(cell.target.name) if cell.target.name in names else len(names)
        turn = f"{self.seed} {cell.target.name}/{cell.config.name}" if self.seed else ""
        digest = hashlib.sha256(turn.encode()).hexdigest() if turn else ""
        return cell.cell_id not in self.with_baseline, place, digest


def fit_budget(
    cells: Iterable[SelectedCell],
    costs: CostModel,
    budget_device_s: float | None,
    importance: Importance | None = None,
) -> Fitted:
    """As many cells as the budget holds, nearest to the change first. Every config gets
    a first workload before any gets a second. ``importance`` orders the wide ones.

    Directly touched cells stay even when they alone exceed the budget
    (``over_budget``). A gate that drops them would pass what it never measured.
    """
    chosen = tuple(cells)
    if budget_device_s is None:
        return Fitted(group_engines(chosen, costs), (), over_budget=False)
    kept: set[str] = set()
    started: set[tuple[str, str]] = set()
    left_out: list[tuple[Cell, str]] = []
    spent_s = 0.0
    for selected in _by_need(chosen, importance or Importance()):
        cell = selected.cell
        engine = (cell.target.name, cell.config.name)
        devices = cell.target.hardware.device_count  # of all hosts together
        price_s = devices * (
            costs.cell_s(cell) + (0.0 if engine in started else costs.engine_s(cell))
        )
        if selected.priority is not Priority.DIRECT and spent_s + price_s > budget_device_s:
            guessed = "" if costs.basis(cell) is CostBasis.MEASURED else " by estimate"
            left_s = max(0.0, budget_device_s - spent_s)
            left_out.append(
                (
                    cell,
                    (
                        f"needs {price_s / 60:.1f} device minutes{guessed}, {left_s / 60:.1f} of"
                        " the budget are left"
                    ),
                )
            )
            continue
        spent_s += price_s
        started.add(engine)
        kept.add(cell.cell_id)
    inside = tuple(selected for selected in chosen if selected.cell.cell_id in kept)
    return Fitted(
        group_engines(inside, costs), tuple(left_out), over_budget=spent_s > budget_device_s
    )


def _by_need(cells: tuple[SelectedCell, ...], importance: Importance) -> list[SelectedCell]:
    seen: dict[tuple[str, str], int] = {}
    keyed = []
    for position, selected in enumerate(cells):
        engine = (selected.cell.target.name, selected.cell.config.name)
        turn = seen.get(engine, 0)
        seen[engine] = turn + 1
        wide = importance(selected.cell) if selected.priority is Priority.WIDE else ()
        keyed.append((selected.priority, wide[:2], turn, wide[2:], position, selected))
    return [selected for *_, selected in sorted(keyed, key=lambda entry: entry[:5])]


def split(groups: Iterable[EngineGroup], shard_count: int) -> tuple[Shard, ...]:
    """At most ``shard_count`` shards for each hardware class, balanced by duration,
    engines whole. No shard is empty.

    Longest processing time first (Graham 1969, within 4/3 of the best), then single
    moves and swaps while they shorten the longest.
    """
    by_class: dict[str, list[EngineGroup]] = {}
    for group in groups:
        by_class.setdefault(group.hardware_class, []).append(group)
    parts = [
        (name, part)
        for name, members in by_class.items()
        for part in _balance(members, shard_count)
    ]
    return tuple(Shard(index, name, tuple(part)) for index, (name, part) in enumerate(parts))


def gated_metric_count(suite: Suite, groups: Iterable[EngineGroup]) -> int:
    """Gated statistical metrics over all groups: what every shard divides the suite's
    error budgets by, so that splitting keeps them. Raises ConfigFileError for a
    tolerance of no metric.
    """
    check_metric_names(suite)
    return statistical_metric_count(
        suite, (selected.cell for group in groups for selected in group.cells)
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
    """Move or swap one group from the longest part so that the longer of the two parts
    becomes shorter. False when nothing helps.
    """
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
