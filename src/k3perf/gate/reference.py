"""What a candidate's sessions are compared with: the recorded ones, or in ``ab`` the
expectation of no difference. Pure.

A candidate session of n rounds is compared with the first n rounds of each recorded
session, taken in the same way, so that what happens to every session as it goes on
(warming up, sliding) is no difference between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from k3perf.config.models import Tolerance
from k3perf.gate.noise import NO_NOISE, MetricNoise, Sessions, Taken, recorded_losses
from k3perf.gate.policy import Policy
from k3perf.gate.readings import Series
from k3perf.gate.scale import Scale
from k3perf.metrics.validity import SESSION_RULES, SPREAD_LIMIT
from k3perf.records.baseline import MetricBaseline
from k3perf.records.metric_definitions import MetricDef, Scope
from k3perf.stats.location import MAD_TO_SIGMA, mean, median, sample_variance
from k3perf.stats.order_statistics import locate

USUAL_SPREAD: Final = SESSION_RULES[SPREAD_LIMIT]
"""For a caller without a policy, such as one that asks for a level alone."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One metric with its tolerance and scale, and how values were compared
    (``basis``).
    """

    metric: MetricDef
    tolerance: Tolerance
    scale: Scale
    basis: str

    @property
    def unit(self) -> str:
        """Of the compared values."""
        return "ratio" if self.basis == "ratio" else self.metric.unit


class Level(NamedTuple):
    """Sessions of one number of rounds, on the loss scale: their mean, the variance
    between them with its degrees of freedom, and their skewness towards a loss.
    """

    mean: float
    variance: float
    df: int
    skewness: float = 0.0


class Reference:
    """What a candidate is compared with, on the loss scale.

    ``session_count`` 0: the expected value is known (ab), not measured. ``taken`` says
    how a session's value is taken and how many rounds are worth having.
    ``round_count``: the rounds of the recorded sessions, 0 where the metric has none.
    ``noise`` is the pooled one behind it. ``round_sigma``: robust, within a session;
    infinite where it is not known, so that no spread is out of line. Rounds whose
    robust sigma is more than ``spread_over_noise_ratio`` times that are out of line;
    the session gets rounds up to the maximum.
    """

    __slots__ = (
        "_level_at",
        "_levels",
        "noise",
        "round_count",
        "round_sigma",
        "session_count",
        "spread_bound",
        "spread_over_noise_ratio",
        "taken",
    )

    def __init__(
        self,
        session_count: int,
        level_at: Callable[[int], Level],
        taken: Taken,
        *,
        noise: MetricNoise = NO_NOISE,
        round_count: int = 0,
        round_variance: float | None = None,
        spread_over_noise_ratio: float,
    ) -> None:
        self.session_count = session_count
        self.taken = taken
        self.noise = noise
        self.round_count = round_count
        self.round_sigma = math.sqrt(round_variance) if round_variance else math.inf
        self.spread_over_noise_ratio = spread_over_noise_ratio
        self.spread_bound = spread_over_noise_ratio * self.round_sigma / MAD_TO_SIGMA
        self._level_at = level_at
        self._levels: dict[int, Level] = {}

    def at(self, rounds: int) -> Level:
        """The level of sessions of ``rounds`` rounds."""
        try:
            return self._levels[rounds]
        except KeyError:
            level = self._levels[rounds] = self._level_at(rounds)
            return level

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


def _median_deviation(ordered: Sequence[float]) -> float:
    centre = median(ordered)
    return median([abs(value - centre) for value in ordered])


def with_level(
    reference: Reference, session_count: int, change: Callable[[Level], Level]
) -> Reference:
    """The same reference as if it had been recorded with that many sessions, every
    level changed.
    """
    return Reference(
        session_count,
        lambda rounds: change(reference.at(rounds)),
        reference.taken,
        noise=reference.noise,
        round_count=reference.round_count,
        round_variance=None if math.isinf(reference.round_sigma) else reference.round_sigma**2,
        spread_over_noise_ratio=reference.spread_over_noise_ratio,
    )


def recorded_reference(
    subject: Subject, entry: MetricBaseline, policy: Policy, *, alternating: bool
) -> Reference:
    """Mean and noise of a cell's recorded sessions; the mean is NaN where one has no
    loss. ``alternating`` as in ``Readings``.

    Kept with the entry: a cell is asked about at every look, and a target's noise stays
    the same object for a whole run.
    """
    noise = policy.noise_of(subject.metric.name, subject.basis)
    plan = policy.plan
    one_armed = subject.basis != "absolute" and not alternating
    key = (
        subject.scale.logarithmic,
        plan.minimum_rounds,
        plan.maximum_rounds,
        one_armed,
        policy.spread_over_noise_ratio,
    )
    kept: tuple[MetricNoise, Reference] | None = entry.memo.get(key)
    if kept is None or kept[0] is not noise:
        cell = recorded_losses(entry, subject.scale)
        reference = cell_reference(
            cell,
            noise,
            entry.round_count,
            (plan.minimum_rounds, plan.maximum_rounds),
            one_armed=one_armed,
            spread_over_noise_ratio=policy.spread_over_noise_ratio,
        )
        kept = entry.memo[key] = (noise, reference)
    return kept[1]


def cell_reference(
    cell: Sessions,
    noise: MetricNoise,
    round_count: int,
    rounds: tuple[int, int],
    *,
    one_armed: bool = False,
    spread_over_noise_ratio: float,
) -> Reference:
    """``rounds``: the plan's fewest and most. ``one_armed``: the rounds were compared
    with one value of the reference session, so that fewer rounds show half of the noise
    they bring. ``spread_over_noise_ratio``: as the target's policy has it; USUAL_SPREAD
    where there is none.
    """
    if not noise.cells and _finite(cell):
        noise = MetricNoise((cell,), round_count)
    taken = noise.taken(*rounds)

    def level_at(count: int) -> Level:
        level = _level(cell, noise, Taken(taken.location, count))
        if one_armed and count < round_count:
            hidden = (
                level.variance - _level(cell, noise, Taken(taken.location, round_count)).variance
            )
            level = level._replace(variance=level.variance + max(hidden, 0.0))
        return level

    return Reference(
        len(cell),
        level_at,
        taken,
        noise=noise,
        round_count=round_count,
        round_variance=noise.round_variance,
        spread_over_noise_ratio=spread_over_noise_ratio,
    )


def _finite(cell: Sessions) -> bool:
    return all(math.isfinite(loss) for rounds in cell for loss in rounds)


def _level(cell: Sessions, noise: MetricNoise, taken: Taken) -> Level:
    if not _finite(cell):
        return Level(math.nan, math.nan, 0)
    values = [locate(taken.location, rounds[: taken.rounds]) for rounds in cell]
    prior = noise.session(taken)
    own = 0.0 if prior.pooled else sample_variance(values)
    variance, df = prior.moderate(own, len(values) - 1)
    return Level(mean(values), variance, df, noise.skewness(taken))


def base_arm_reference(subject: Subject, series: Series, policy: Policy) -> Reference:
    """ab: the expected difference is none, and known; the noise is that of pairs.

    Where the candidate's own pairs have a part in it, those whose rounds spread out of
    line have none: a look sets them aside (``session_values``).
    """
    noise = _pair_noise(subject, policy)
    plan = policy.plan
    taken = noise.taken(plan.minimum_rounds, plan.maximum_rounds)

    def level_at(count: int) -> Level:
        this = Taken(taken.location, count)
        steady = [losses for losses in series.sessions if not stays_out_of_line(losses, count)]
        own = [locate(taken.location, losses[:count]) for losses in steady]
        variance, df = noise.session(this).moderate(sample_variance(own), max(len(own) - 1, 0))
        return Level(0.0, variance, df, noise.skewness(this))

    def stays_out_of_line(losses: Sequence[float], count: int) -> bool:
        return all(
            reference.out_of_line(sorted(losses[:rounds]))
            for rounds in (count, plan.maximum_rounds)
        )

    count = (noise.round_count or 1) if subject.metric.scope is Scope.ROUND else 0
    reference = Reference(
        0,
        level_at,
        taken,
        noise=noise,
        round_count=count,
        round_variance=noise.round_variance,
        spread_over_noise_ratio=policy.spread_over_noise_ratio,
    )
    return reference


def _pair_noise(subject: Subject, policy: Policy) -> MetricNoise:
    """Noise of a pair: recorded for pairs, or twice the recorded one of single sessions
    (pairing can only make it smaller).
    """
    noise = policy.noise_of(subject.metric.name, subject.basis)
    return noise if noise.known else policy.noise_of(subject.metric.name, "absolute").doubled()
