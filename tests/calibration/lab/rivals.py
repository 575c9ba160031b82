"""The rules that other suites gate by, on the same sessions that the gate judges: what
the self-test compares itself with. Pure.

Each rule sees what it sees in its own home: raw values of one candidate run (one
session) and of recorded runs, in order of time. None knows a reference arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from k3perf.stats.estimators import mean, sample_variance
from tests.calibration.lab.simulation import Rounds, value_of


class Seen(NamedTuple):
    """What a rule may look at: recorded sessions' and the candidate session's losses by
    round, and each session's time (the mean over its rounds, 1 being no loss).
    """

    metric: str
    recorded: Sequence[Rounds]
    candidate: Rounds
    recorded_times: Sequence[float]
    candidate_time: float


Rule = Callable[[Seen], bool]
"""What was seen to: alarm."""


def run_time(losses: Rounds) -> float:
    """One session's time."""
    return mean([math.exp(loss) for loss in losses])


def seen(metric: str, recorded: Sequence[Rounds], candidate: Rounds) -> Seen:
    """The sessions as the rules see them."""
    return Seen(
        metric, recorded, candidate, [run_time(losses) for losses in recorded], run_time(candidate)
    )


def _fixed(limit_ratio: float) -> Rule:
    """A fixed threshold: one run against the one run that was written down."""

    def rule(sessions: Seen) -> bool:
        return sessions.candidate_time / sessions.recorded_times[-1] - 1 > limit_ratio

    return rule


def _pytest_benchmark_mean_5(sessions: Seen) -> bool:
    """``--benchmark-compare-fail=mean:5%``: the mean may not grow by more than 5 %,
    whatever the metric; for a throughput that is a gain.
    """
    before, now = (
        mean([value_of(sessions.metric, loss) for loss in run])
        for run in (sessions.recorded[-1], sessions.candidate)
    )
    return now / before - 1 > 0.05


def _twice_the_last(sessions: Seen) -> bool:
    """github-action-benchmark's default: 200 % of the last point."""
    return sessions.candidate_time / sessions.recorded_times[-1] > 2.0


def _rolling_p95(share: float) -> Rule:
    """TensorRT-LLM's: throughput below ``share`` of the 95th percentile of the means of
    three successive runs (linear interpolation).
    """

    def rule(sessions: Seen) -> bool:
        rates = [1 / time for time in sessions.recorded_times]
        rolling = sorted(mean(rates[index : index + 3]) for index in range(len(rates) - 2))
        place = 0.95 * (len(rolling) - 1)
        low = math.floor(place)
        high = min(low + 1, len(rolling) - 1)
        return 1 / sessions.candidate_time < share * (
            rolling[low] + (place - low) * (rolling[high] - rolling[low])
        )

    return rule


def _welch(sessions: Seen) -> bool:
    """Welch's t-test on the rounds of two runs, two-sided at 5 %, in the direction of a
    loss (as scipy.stats.ttest_ind, equal_var=False).
    """
    from scipy.special import stdtr

    now, before = sessions.candidate, sessions.recorded[-1]
    if len(now) < 2 or len(before) < 2:
        return False
    own, other = sample_variance(now) / len(now), sample_variance(before) / len(before)
    if own + other <= 0:
        return False
    statistic = (mean(now) - mean(before)) / math.sqrt(own + other)
    df = (own + other) ** 2 / (own**2 / (len(now) - 1) + other**2 / (len(before) - 1))
    return statistic > 0 and float(stdtr(df, -statistic)) < 0.025


RIVALS: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "fixed 5 %, one run": _fixed(0.05),
        "fixed 10 %, one run": _fixed(0.10),
        "pytest-benchmark mean:5%": _pytest_benchmark_mean_5,
        "2 x the last point": _twice_the_last,
        "P95 of rolling 3-means x 0.95": _rolling_p95(0.95),
        "P95 of rolling 3-means x 0.9": _rolling_p95(0.90),
        "Welch's t, 5 %, rounds": _welch,
    }
)
