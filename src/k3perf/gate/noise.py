"""Recorded noise of a target, pooled over its cells: baselines in, per metric how to
take a session's value and how much such values differ out. Pure.

Six sessions of one cell leave five degrees of freedom, and Student's t with five of
them is useless at a suite-wide error budget. Cells of one target share the machine and
its noise, so their variances are pooled; ``k3perf.stats.pooling`` says how, and how
cells that differ are moderated. A config with a tolerance of its own is known to
differ: its noise of that metric is pooled apart.

A session of four rounds is compared with the first four rounds of the recorded
sessions, and the variance is theirs too: whatever rounds do (scatter, slide, stand out)
is in the figure, and nothing about it is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from k3perf.config.models import Tolerance
from k3perf.gate.scale import Scale, scale_for
from k3perf.records.baseline import Baseline, MetricBaseline
from k3perf.records.metric_definitions import METRICS
from k3perf.stats.location import median, robust_sigma
from k3perf.stats.order_statistics import Location, locate_rows
from k3perf.stats.pooling import NO_PRIOR, VariancePrior, pool_groups
from k3perf.stats.skewness import pooled_skewness

Sessions = tuple[tuple[float, ...], ...]
"""The sessions of one cell: each its rounds' losses in order of time, or its one value.
"""

OwnTolerances = Mapping[str, Mapping[str, Tolerance | None]]
"""By config: what it says of metrics itself; None: not gated there."""

ENOUGH_FACTOR: Final = 1.3
"""Rounds are enough when sessions of that many differ at most this many times as much
(variance) as sessions of all rounds, taken the best way: whole sessions of more rounds
are then dearer than the few more sessions that the wider interval costs.
"""

CHOICE_DF: Final = 20
"""Fewer degrees of freedom than this cannot tell which location differs least between
sessions; the median stands.
"""


class Taken(NamedTuple):
    """How a session's value is taken: which location, of how many rounds."""

    location: Location
    rounds: int


@dataclass(frozen=True)
class MetricNoise:
    """Noise of one metric on the loss scale. ``cells`` hold the recorded sessions of
    every cell in which the metric varies.

    ``round_count``: the fewest rounds that a recorded session rests on; 0: the metric
    has no rounds. ``factor``: 2 where the noise of a pair is inferred from that of
    single sessions.
    """

    cells: tuple[Sessions, ...] = ()
    round_count: int = 0
    factor: float = 1.0

    @property
    def known(self) -> bool:
        """At least two cells have at least two sessions, so that there is something to
        pool.
        """
        return sum(len(cell) > 1 for cell in self.cells) > 1

    @cached_property
    def round_variance(self) -> float | None:
        """Mean over sessions of the squared robust sigma of a session's rounds; None
        without at least two rounds in a session.
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
        """The noise of a difference of two such sessions that have nothing in
        common.
        """
        return replace(self, factor=2 * self.factor)

    def session(self, taken: Taken) -> VariancePrior:
        """What the pooled cells say about the variance between session values."""
        found = self._priors.get(taken)
        if found is None:
            values, starts = self._values(taken)
            groups = [values[start:end].tolist() for start, end in pairwise((*starts, len(values)))]
            found = pool_groups(groups) if groups else NO_PRIOR
            found = replace(found, variance=self.factor * found.variance)
            self._priors[taken] = found
        return found

    def skewness(self, taken: Taken) -> float:
        """Skewness of session values towards a loss, as far as the recorded ones show
        it (``stats.skewness``).
        """
        found = self._skewness.get(taken)
        if found is None:
            values, starts = self._values(taken)
            found = pooled_skewness(values, starts) if len(starts) else 0.0
            self._skewness[taken] = found
        return found

    def share(self, location: Location, few: int, many: int) -> float:
        """Variance between sessions of ``many`` rounds over that of sessions of
        ``few``, to two digits; 1 where it is not known.
        """
        if not self.cells:
            return 1.0
        little, much = self._spread(Taken(location, few)), self._spread(Taken(location, many))
        return round(min(much / little, 1.0), 2) if little > 0 else 1.0

    def taken(self, minimum_rounds: int, maximum_rounds: int) -> Taken:
        """The fewest rounds worth having, with the location that makes them so: where
        several do, the earlier in ``Location``.

        Chosen from recorded sessions alone, so that what a candidate shows has no part
        in it.
        """
        key = (minimum_rounds, maximum_rounds)
        found = self._taken.get(key)
        if found is None:
            found = self._taken[key] = self._choose(minimum_rounds, maximum_rounds)
        return found

    def _choose(self, least: int, most: int) -> Taken:
        most = min(most, self.round_count)
        df = sum(len(cell) - 1 for cell in self.cells)
        if most < 1 or df < 1:
            return Taken(Location.MEDIAN, least)
        offered = tuple(Location) if df >= CHOICE_DF else (Location.MEDIAN,)
        enough = ENOUGH_FACTOR * min(self._spread(Taken(location, most)) for location in offered)
        takings = (
            Taken(location, rounds)
            for rounds in range(min(least, most), most + 1)
            for location in offered
        )
        found = next(taken for taken in takings if self._spread(taken) <= enough)
        return Taken(found.location, max(found.rounds, least))

    def _spread(self, taken: Taken) -> float:
        """Pooled variance between session values, ddof 1 in each cell; 0 where no cell
        has two sessions.
        """
        found = self._spreads.get(taken)
        if found is None:
            values, starts = self._values(taken)
            sizes = np.diff([*starts, len(values)])
            centres = np.repeat(np.add.reduceat(values, starts) / sizes, sizes)
            found = float(((values - centres) ** 2).sum() / max((sizes - 1).sum(), 1))
            self._spreads[taken] = found
        return found

    def _values(self, taken: Taken) -> tuple[NDArray[np.float64], Sequence[int]]:
        """Every session's value, cell after cell, and where each cell starts."""
        sizes = [len(cell) for cell in self.cells]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        values = np.empty(sum(sizes))
        for length, (places, rows) in self._by_length.items():
            values[places] = locate_rows(taken.location, rows[:, : min(taken.rounds, length)])
        return values, starts

    @cached_property
    def _by_length(self) -> dict[int, tuple[list[int], NDArray[np.float64]]]:
        """Sessions of the same number of rounds as one matrix, with their places in the
        row of all sessions.
        """
        found: dict[int, tuple[list[int], list[tuple[float, ...]]]] = {}
        for place, rounds in enumerate(rounds for cell in self.cells for rounds in cell):
            places, rows = found.setdefault(len(rounds), ([], []))
            places.append(place)
            rows.append(rounds)
        return {
            length: (places, np.array(rows, dtype=np.float64))
            for length, (places, rows) in found.items()
        }

    @cached_property
    def _priors(self) -> dict[Taken, VariancePrior]:
        return {}

    @cached_property
    def _spreads(self) -> dict[Taken, float]:
        return {}

    @cached_property
    def _skewness(self) -> dict[Taken, float]:
        return {}

    @cached_property
    def _taken(self) -> dict[tuple[int, int], Taken]:
        return {}


NO_NOISE: Final = MetricNoise()


NO_OWN: Final[OwnTolerances] = {}

NoiseKey = tuple[str, str]
"""Metric and basis."""


def pool_noise(
    baselines: Iterable[Baseline], tolerances: Mapping[str, Tolerance], own: OwnTolerances = NO_OWN
) -> dict[NoiseKey, MetricNoise]:
    """Noise of every gated statistical metric over one target's baselines, but for the
    metrics that a config has its ``own`` word on.
    """
    groups: dict[NoiseKey, list[tuple[MetricBaseline, Scale]]] = {}
    for baseline in baselines:
        apart = own.get(baseline.config, {})
        for key, entry, scale in _entries(
            baseline, {name: given for name, given in tolerances.items() if name not in apart}
        ):
            groups.setdefault(key, []).append((entry, scale))
    return {key: _pool(entries) for key, entries in groups.items()}


def pool_own_noise(
    baselines: Iterable[Baseline], own: OwnTolerances
) -> dict[str, dict[NoiseKey, MetricNoise]]:
    """The same, by config, of the metrics that a config has its own tolerance for.
    Configs with the same one share their noise: the team's word that they are alike.
    """
    groups: dict[tuple[NoiseKey, Tolerance], list[tuple[MetricBaseline, Scale]]] = {}
    holders: dict[tuple[NoiseKey, Tolerance], set[str]] = {}
    for baseline in baselines:
        given = {
            name: tolerance
            for name, tolerance in own.get(baseline.config, {}).items()
            if tolerance is not None
        }
        for key, entry, scale in _entries(baseline, given):
            groups.setdefault((key, given[entry.metric]), []).append((entry, scale))
            holders.setdefault((key, given[entry.metric]), set()).add(baseline.config)
    found: dict[str, dict[NoiseKey, MetricNoise]] = {}
    for pool, entries in groups.items():
        noise = _pool(entries)
        for config in holders[pool]:
            found.setdefault(config, {})[pool[0]] = noise
    return found


def _entries(
    baseline: Baseline, tolerances: Mapping[str, Tolerance]
) -> Iterator[tuple[NoiseKey, MetricBaseline, Scale]]:
    for workload in baseline.workloads:
        for entry in workload.metrics:
            tolerance, metric = tolerances.get(entry.metric), METRICS.get(entry.metric)
            if tolerance is not None and metric is not None:
                yield (entry.metric, entry.basis), entry, scale_for(metric, tolerance)


def recorded_losses(entry: MetricBaseline, scale: Scale) -> Sessions:
    """A cell's recorded sessions on the loss scale: their rounds, or their values where
    the metric has no rounds. NaN where a value has no loss.
    """
    found: Sessions | None = entry.memo.get(scale)
    if found is None:
        rounds = entry.round_count > 0
        sessions = [
            s.round_values if rounds and math.isfinite(scale.loss(s.value)) else (s.value,)
            for s in entry.sessions
        ]
        found = entry.memo[scale] = tuple(tuple(map(scale.loss, values)) for values in sessions)
    return found


def _pool(entries: list[tuple[MetricBaseline, Scale]]) -> MetricNoise:
    varying = [
        (entry, recorded_losses(entry, scale)) for entry, scale in entries if not entry.constant
    ]
    usable = [
        (entry, cell)
        for entry, cell in varying
        if all(math.isfinite(loss) for rounds in cell for loss in rounds)
    ]
    return MetricNoise(
        tuple(cell for _, cell in usable),
        min((entry.round_count for entry, _ in usable), default=0),
    )
