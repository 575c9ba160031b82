"""What a candidate's sessions are compared with, from recorded sessions alone. Pure.

A candidate session of n rounds is compared with the first n rounds of each recorded
session, taken by the same estimator. What happens to every session as it goes on
(warming up, sliding) is then not a difference between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from typing import Final, NamedTuple

from k3perf.stats.batches import batch_factor, batch_groups, joint_df
from k3perf.stats.estimators import MAD_TO_SIGMA, Location, locate, mean, median, sample_variance
from k3perf.stats.noise import NO_NOISE, MetricNoise, Sessions, batched_noise

DROWNED_SHARE: Final = 0.5
"""Of the tolerance: the standard deviation that a session's rounds may add to its value
before the session says nothing.
"""


class Level(NamedTuple):
    """Sessions of one number of rounds, on the loss scale: their mean, the variance
    between them with its degrees of freedom, and their skewness towards a loss.
    ``batch_variance``: what the candidate's batch and the recorded ones add to the
    error, however many sessions the candidate has.
    """

    mean: float
    variance: float
    df: int
    skewness: float = 0.0
    batch_variance: float = 0.0


class Reference:
    """What a candidate is compared with, on the loss scale.

    ``session_count`` 0: the expected value is known (ab), not measured. ``location``:
    the estimator of a session's value. ``rounds``: how many are worth measuring.
    ``round_count``: the rounds of the recorded sessions, 0 for a metric without rounds.
    ``round_sigma``: robust, within a session, infinite where it is not known. A session
    is out of line where its rounds spread more than ``spread_over_noise_ratio`` times
    that. ``moved_since_anchor``: the recorded sessions' own loss since the anchor.
    """

    def __init__(
        self,
        session_count: int,
        level_at: Callable[[int], Level],
        location: Location,
        rounds: int,
        *,
        noise: MetricNoise = NO_NOISE,
        round_count: int = 0,
        round_variance: float | None = None,
        spread_over_noise_ratio: float,
    ) -> None:
        self.session_count = session_count
        self.location = location
        self.rounds = rounds
        self.noise = noise
        self.round_count = round_count
        self.round_sigma = math.sqrt(round_variance) if round_variance else math.inf
        self.spread_over_noise_ratio = spread_over_noise_ratio
        self.spread_bound = spread_over_noise_ratio * self.round_sigma / MAD_TO_SIGMA
        self.moved_since_anchor = 0.0
        self._level_at = level_at
        self._levels: dict[int, Level] = {}

    def at(self, rounds: int) -> Level:
        """The level of sessions of ``rounds`` rounds."""
        if rounds not in self._levels:
            self._levels[rounds] = self._level_at(rounds)
        return self._levels[rounds]

    def spread(self, ordered: Sequence[float]) -> float:
        """The robust sigma of a session's rounds over the recorded one. ``ordered``:
        their losses in ascending order, at least one.
        """
        return MAD_TO_SIGMA * _median_deviation(ordered) / self.round_sigma

    def out_of_line(self, ordered: Sequence[float]) -> bool:
        """Whether that is beyond the limit. The median deviation from the median is at
        most half of the range.
        """
        return (
            ordered[-1] - ordered[0] > 2 * self.spread_bound
            and _median_deviation(ordered) > self.spread_bound
        )

    def extra_variance(self, ordered: Sequence[float]) -> float:
        """What the rounds of a session out of line add to the variance of its value:
        their own less the recorded one, over their number. 0 for one in line.
        """
        if not self.out_of_line(ordered):
            return 0.0
        own = MAD_TO_SIGMA * _median_deviation(ordered)
        return max(own**2 - self.round_sigma**2, 0.0) / len(ordered)

    def drowned(self, ordered: Sequence[float], tolerance: float) -> bool:
        """Whether that matters for the tolerance."""
        return math.sqrt(self.extra_variance(ordered)) > DROWNED_SHARE * tolerance

    def with_level(self, session_count: int, change: Callable[[Level], Level]) -> Reference:
        """The same as if that many sessions had been recorded, every level changed."""
        changed = copy(self)
        changed.session_count = session_count
        changed._level_at = lambda rounds: change(self.at(rounds))
        changed._levels = {}
        return changed


def _own_variance(values: Sequence[float], batches: Sequence[Hashable]) -> tuple[float, int]:
    """A cell's variance inside of its batches, with its degrees of freedom."""
    groups = batch_groups(batches) or (tuple(range(len(values))),)
    parts = [[values[place] for place in places] for places in groups]
    df = sum(len(part) - 1 for part in parts)
    total = sum(sample_variance(part) * (len(part) - 1) for part in parts)
    return (total / df if df else 0.0), df


def _median_deviation(ordered: Sequence[float]) -> float:
    centre = median(ordered)
    return median([abs(value - centre) for value in ordered])


def cell_reference(
    cell: Sessions,
    noise: MetricNoise,
    round_count: int,
    rounds: tuple[int, int],
    *,
    one_armed: bool = False,
    batches: Sequence[Hashable] = (),
    candidate_batch: Hashable | None = None,
    spread_over_noise_ratio: float,
) -> Reference:
    """``rounds``: the plan's fewest and most. ``one_armed``: the rounds were compared
    with one value of the reference session, so that fewer rounds show half of the noise
    they bring. ``batches``: that of each recorded session, empty where it is not known.
    ``candidate_batch``: None for one that was not recorded.
    """
    finite = all(math.isfinite(loss) for losses in cell for loss in losses)
    if not noise.cells and finite:
        noise = batched_noise((cell,), (batches,), round_count)
    location, worth = noise.choice(*rounds)
    factor = batch_factor(batches, candidate_batch) if batches else 0.0

    def plain(count: int) -> Level:
        if not finite:
            return Level(math.nan, math.nan, 0)
        values = [locate(location, losses[:count]) for losses in cell]
        prior = noise.prior(location, count)
        own, own_df = _own_variance(values, batches if noise.groups_of else ())
        if noise.louder(cell, own, location, count):
            variance, df = own, own_df
        elif prior.pooled:
            variance, df = prior.moderate(0.0, len(values) - 1)
        else:
            variance, df = prior.moderate(own, own_df)
        spread = noise.batch_spread(location, count)
        added = factor * spread.variance
        # where the candidate has many sessions, the part between batches weighs most
        df = joint_df(variance / len(values), df, added, spread.df)
        return Level(mean(values), variance, df, noise.skewness(location, count), added)

    def level_at(count: int) -> Level:
        level = plain(count)
        if one_armed and count < round_count:
            hidden = level.variance - plain(round_count).variance
            level = level._replace(variance=level.variance + max(hidden, 0.0))
        return level

    return Reference(
        len(cell),
        level_at,
        location,
        worth,
        noise=noise,
        round_variance=noise.round_variance,
        round_count=round_count,
        spread_over_noise_ratio=spread_over_noise_ratio,
    )
