"""Recorded sessions of many cells to how a session's value is taken and how much such
values differ between sessions. Pure.

Six sessions of one cell leave five degrees of freedom, too few for a level of one in
ten thousand. So the cells' variances are pooled (``stats.pooling``). A session of four
rounds is compared with the first four rounds of the recorded sessions, and the variance
is theirs too: what rounds do (scatter, slide, stand out) is in the figure, and nothing
about it is assumed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from k3perf.stats.batches import UNKNOWN_SPREAD, BatchSpread, batch_groups, batch_spread
from k3perf.stats.estimators import Location, locate_rows, median, robust_sigma
from k3perf.stats.own_noise import APART_LEVEL, APART_RATIO, exceeding_p
from k3perf.stats.pooling import (
    NO_PRIOR,
    SMALLEST_VARIANCE,
    VariancePrior,
    pool_groups,
    pooled_skewness,
)

Sessions = tuple[tuple[float, ...], ...]
"""The sessions of one cell: each its rounds' losses in order of time, or its one value.
"""

ENOUGH_FACTOR: Final = 1.3
"""Rounds are enough when sessions of that many differ at most this many times as much
(variance) as sessions of all rounds, taken the best way. Beyond that, whole sessions of
more rounds cost more than the few more sessions that the wider interval needs.
"""

CHOICE_DF: Final = 20
"""Fewer degrees of freedom cannot show which estimator differs least between sessions.
The median stands then.
"""


class MetricNoise:
    """Noise of one metric on the loss scale.

    ``cells``: the recorded sessions of every cell in which the metric varies.
    ``round_count``: the fewest rounds that a recorded session rests on, 0 for a metric
    without rounds. ``factor``: 2 where the noise of a pair is inferred from that of
    single sessions. ``groups_of``: where cells were split into batches, which of
    ``cells`` make up each. None: every session is a batch by itself. ``batched_noise``
    makes both. Answers are kept: a run asks the same ones for every cell.
    """

    def __init__(
        self,
        cells: tuple[Sessions, ...] = (),
        round_count: int = 0,
        factor: float = 1.0,
        *,
        groups_of: tuple[tuple[int, ...], ...] | None = (),
    ) -> None:
        self.cells = cells
        self.groups_of = groups_of
        self.round_count = round_count
        self.factor = factor
        self._values: dict[tuple[Location, int], NDArray[np.float64]] = {}
        self._priors: dict[tuple[Location, int], VariancePrior] = {}
        self._skewness: dict[tuple[Location, int], float] = {}
        self._chosen: dict[tuple[int, int], tuple[Location, int]] = {}
        sizes = [len(cell) for cell in cells]
        self._starts = [sum(sizes[:index]) for index in range(len(sizes))]

    @property
    def known(self) -> bool:
        """A cell has at least two sessions."""
        return any(len(cell) > 1 for cell in self.cells)

    @cached_property
    def round_variance(self) -> float | None:
        """Mean over sessions of the squared robust sigma of a session's rounds. None
        without a session of two rounds.
        """
        if not self.round_count:
            return None
        squares = [
            robust_sigma(rounds, median(rounds)) ** 2
            for cell in self.cells
            for rounds in cell
            if len(rounds) > 1
        ]
        return self.factor * sum(squares) / len(squares) if squares else None

    def doubled(self) -> MetricNoise:
        """The noise of a difference of two independent sessions."""
        return MetricNoise(self.cells, self.round_count, 2 * self.factor, groups_of=self.groups_of)

    def batch_spread(self, location: Location, rounds: int) -> BatchSpread:
        """The variance between batches of sessions."""
        if self.groups_of == () or not self.cells:
            return UNKNOWN_SPREAD
        values = self._located(location, rounds)
        edges = pairwise((*self._starts, len(values)))
        groups = [values[start:end].tolist() for start, end in edges]
        if self.groups_of is None:
            found = batch_spread([[[value] for value in group] for group in groups])
        else:
            found = batch_spread([[groups[index] for index in part] for part in self.groups_of])
        return found._replace(variance=self.factor * found.variance)

    def prior(self, location: Location, rounds: int) -> VariancePrior:
        """What the pooled cells say about the variance between session values."""
        key = (location, rounds)
        if key not in self._priors:
            values = self._located(location, rounds)
            edges = pairwise((*self._starts, len(values)))
            groups = [values[start:end].tolist() for start, end in edges]
            found = pool_groups(groups) if groups else NO_PRIOR
            self._priors[key] = replace(found, variance=self.factor * found.variance)
        return self._priors[key]

    def louder(self, cell: Sessions, own: float, location: Location, rounds: int) -> bool:
        """Whether the variance ``own`` of one of the cells exceeds that of all others,
        pooled: an F test that leaves the cell out, its level divided by the number of
        cells. Such a cell is judged by its own variance alone.
        """
        df, count = len(cell) - 1, len(self.cells)
        others_df = sum(len(other) - 1 for other in self.cells) - df
        if cell not in self.cells or count < 2 or min(df, others_df) < 1 or own <= 0:
            return False
        pooled = self.between(location, rounds) * (df + others_df) - own * df
        others = max(pooled / others_df, SMALLEST_VARIANCE)
        ratio = own / others
        return ratio > APART_RATIO and exceeding_p(ratio, df, others_df) < APART_LEVEL / count

    def skewness(self, location: Location, rounds: int) -> float:
        """Skewness of session values towards a loss, where the recorded ones show
        it.
        """
        key = (location, rounds)
        if key not in self._skewness:
            values = self._located(location, rounds)
            self._skewness[key] = pooled_skewness(values, self._starts) if self._starts else 0.0
        return self._skewness[key]

    def share(self, location: Location, few: int, many: int) -> float:
        """Variance between sessions of ``many`` rounds over that of sessions of
        ``few``, to two digits. 1 where it is not known.
        """
        if not self.cells:
            return 1.0
        little, much = self.between(location, few), self.between(location, many)
        return round(min(much / little, 1.0), 2) if little > 0 else 1.0

    def choice(self, minimum_rounds: int, maximum_rounds: int) -> tuple[Location, int]:
        """The fewest rounds worth measuring, with the estimator that makes them so.
        Where several do, the earlier in ``Location``.

        Recorded sessions alone choose, so that what a candidate shows has no part in
        it.
        """
        key = (minimum_rounds, maximum_rounds)
        if key not in self._chosen:
            self._chosen[key] = self._choose(*key)
        return self._chosen[key]

    def _choose(self, least: int, most: int) -> tuple[Location, int]:
        most = min(most, self.round_count)
        df = sum(len(cell) - 1 for cell in self.cells)
        if most < 1 or df < 1:
            return Location.MEDIAN, least
        offered = tuple(Location) if df >= CHOICE_DF else (Location.MEDIAN,)
        enough = ENOUGH_FACTOR * min(self.between(location, most) for location in offered)
        location, rounds = next(
            (location, rounds)
            for rounds in range(min(least, most), most + 1)
            for location in offered
            if self.between(location, rounds) <= enough
        )
        return location, max(rounds, least)

    def between(self, location: Location, rounds: int) -> float:
        """Pooled variance between session values, ddof 1 in each cell. 0 where no cell
        has two sessions.
        """
        values = self._located(location, rounds)
        sizes = np.diff([*self._starts, len(values)])
        centres = np.repeat(np.add.reduceat(values, self._starts) / sizes, sizes)
        return float(((values - centres) ** 2).sum() / max((sizes - 1).sum(), 1))

    def _located(self, location: Location, rounds: int) -> NDArray[np.float64]:
        """Every session's value, cell after cell."""
        key = (location, rounds)
        if key not in self._values:
            values = np.empty(sum(map(len, self.cells)))
            for length, (places, rows) in self._by_length.items():
                values[places] = locate_rows(location, rows[:, : min(rounds, length)])
            self._values[key] = values
        return self._values[key]

    @cached_property
    def _by_length(self) -> dict[int, tuple[list[int], NDArray[np.float64]]]:
        """Sessions of one number of rounds as a matrix, with their places among all."""
        found: dict[int, tuple[list[int], list[tuple[float, ...]]]] = {}
        for place, rounds in enumerate(rounds for cell in self.cells for rounds in cell):
            places, rows = found.setdefault(len(rounds), ([], []))
            places.append(place)
            rows.append(rounds)
        return {
            length: (places, np.array(rows, dtype=np.float64))
            for length, (places, rows) in found.items()
        }


NO_NOISE: Final = MetricNoise()


def batched_noise(
    cells: Sequence[Sessions], labels: Sequence[Sequence[Hashable]], round_count: int
) -> MetricNoise:
    """The noise of cells, with that between batches where a cell has two.

    ``labels``: the batch of each session of each cell, empty where it is not known. The
    noise between sessions is then that inside of batches. Where no batch has two
    sessions it stays that of all.
    """
    if all(len(set(own)) < 2 for own in labels):
        return MetricNoise(tuple(cells), round_count)
    split: list[Sessions] = []
    groups_of = []
    for cell, own in zip(cells, labels, strict=True):
        places = batch_groups(own) or (tuple(range(len(cell))),)
        groups_of.append(tuple(range(len(split), len(split) + len(places))))
        split += [tuple(cell[place] for place in batch) for batch in places]
    if all(len(batch) < 2 for batch in split):
        return MetricNoise(tuple(cells), round_count, groups_of=None)
    return MetricNoise(tuple(split), round_count, groups_of=tuple(groups_of))
