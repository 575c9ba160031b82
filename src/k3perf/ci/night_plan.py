"""The cells of one night: red ones first, then those that were not measured for the
longest time, as many as the runners' hours hold. Pure and deterministic.

Cells of one (target, config) share an engine's start where they are in one shard. What
does not fit tonight is older tomorrow, so it comes earlier. Cells without a baseline
are recorded, in separate shards, since one run either judges or records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from k3perf.ci.costs import CostModel
from k3perf.ci.planning import EngineGroup, Shard, group_engines
from k3perf.ci.selection import SelectedCell
from k3perf.config.suite import Cell

NEW_CELLS_SHARE: Final = 0.25
"""Of the runners' hours, at most, for cells without a baseline."""

NEW_CELL_SESSIONS: Final = 2
"""Sessions that a night records of a cell without a baseline. A baseline then has
sessions of several days.
"""


@dataclass(frozen=True, slots=True)
class Hours:
    """What the runners of each hardware class have for a night."""

    shard_count: int
    shard_limit_s: float


@dataclass(frozen=True, slots=True)
class FittedNight:
    """Shards that judge, shards that record, and what does not fit, with the reason."""

    judged: tuple[Shard, ...]
    recording: tuple[Shard, ...]
    left_out: tuple[tuple[Cell, str], ...]

    @property
    def groups(self) -> tuple[EngineGroup, ...]:
        """The engines of the judged cells."""
        return tuple(group for shard in self.judged for group in shard.groups)


@dataclass(frozen=True, slots=True)
class NightOrder:
    """What decides which cells come first: ids of red cells, and when each cell was
    last measured (ISO 8601, absent: never).
    """

    red: Collection[str]
    last_measured: Mapping[str, str]

    def __call__(self, cell: Cell) -> tuple[bool, str, str]:
        """A sort key: red, then the oldest. Equal ones by id."""
        name = cell.cell_id
        return name not in self.red, self.last_measured.get(name, ""), name


def fit_night(
    cells: Sequence[SelectedCell],
    *,
    with_baseline: Collection[str],
    order: NightOrder,
    costs: CostModel,
    recording_costs: CostModel,
    hours: Hours,
) -> FittedNight:
    """Fill the shards of each hardware class. ``with_baseline``: ids of the cells that
    can be judged. ``recording_costs`` prices the others.
    """
    judged: list[Shard] = []
    recording: list[Shard] = []
    left_out: list[tuple[Cell, str]] = []
    classes = dict.fromkeys(one.cell.target.hardware.hardware_class for one in cells)
    for name in classes:
        mine = sorted(
            (one for one in cells if one.cell.target.hardware.hardware_class == name),
            key=lambda one: order(one.cell),
        )
        old = [one for one in mine if one.cell.cell_id in with_baseline]
        new = [one for one in mine if one.cell.cell_id not in with_baseline]
        share = NEW_CELLS_SHARE if old and new else float(bool(new))
        fresh = _Filling(name, recording_costs, 1, hours.shard_count * hours.shard_limit_s * share)
        fresh.limit_s = min(fresh.limit_s, hours.shard_limit_s)
        left_out += fresh.fill(new)
        spent_s = sum(shard.duration_s for shard in fresh.shards(0))
        rest_s = hours.shard_limit_s - spent_s / hours.shard_count
        filling = _Filling(name, costs, hours.shard_count, rest_s)
        left_out += filling.fill(old)
        judged += filling.shards(len(judged))
        recording += fresh.shards(len(recording))
    return FittedNight(tuple(judged), tuple(recording), tuple(left_out))


class _Filling:
    """The shards of one hardware class while they are filled."""

    def __init__(self, hardware_class: str, costs: CostModel, count: int, limit_s: float) -> None:
        self._class, self._costs = hardware_class, costs
        self.limit_s = limit_s
        self._cells: list[list[SelectedCell]] = [[] for _ in range(count)]
        self._loads_s = [0.0] * count

    def fill(self, cells: Sequence[SelectedCell]) -> list[tuple[Cell, str]]:
        """Take each cell that fits, in order. Returns the others with the reason."""
        left_out = []
        for one in cells:
            if not self._take(one):
                left_out.append((one.cell, self._why_not(one)))
        return left_out

    def _take(self, one: SelectedCell) -> bool:
        by_load = sorted(range(len(self._cells)), key=self._loads_s.__getitem__)
        started = [index for index in by_load if self._engine_in(index, one.cell)]
        for index in (*started, *(other for other in by_load if other not in started)):
            load_s = self._duration_s([*self._cells[index], one])
            if load_s <= self.limit_s:
                self._cells[index].append(one)
                self._loads_s[index] = load_s
                return True
        return False

    def _engine_in(self, index: int, cell: Cell) -> bool:
        return any(
            (other.cell.target.name, other.cell.config.name) == (cell.target.name, cell.config.name)
            for other in self._cells[index]
        )

    def _duration_s(self, cells: Sequence[SelectedCell]) -> float:
        return sum(group.duration_s for group in group_engines(cells, self._costs))

    def _why_not(self, one: SelectedCell) -> str:
        needed_s = self._duration_s([one])
        if needed_s > self.limit_s:
            return (
                f"needs {needed_s / 60:.0f} min, more than the {self.limit_s / 60:.0f} min that one"
                " runner has for it in a night. Give the night more minutes."
            )
        return "no time left tonight; it moves up tomorrow"

    def shards(self, first_index: int) -> list[Shard]:
        """What was taken, without empty shards."""
        groups = [group_engines(cells, self._costs) for cells in self._cells if cells]
        return [Shard(first_index + at, self._class, part) for at, part in enumerate(groups)]
