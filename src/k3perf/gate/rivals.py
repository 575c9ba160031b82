"""The rules that other suites gate by, on the same sessions that the gate judges: what the self-test compares itself with. Pure.

Each rule sees what it sees in its own home: raw values of one candidate run (one session) and of recorded runs, in order of time. None
knows a reference arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from k3perf.gate.simulation import Rounds, value_of
from k3perf.stats.location import mean

Rule = Callable[[str, Sequence[Rounds], Rounds], bool]
"""(metric, recorded sessions' losses, the candidate session's losses) to: alarm."""


def _run(losses: Rounds) -> float:
    """One run's time: the mean over its rounds, 1 being no loss."""
    return mean([math.exp(loss) for loss in losses])


def _fixed(limit_ratio: float) -> Rule:
    """A fixed threshold: one run against the one run that was written down."""

    def rule(_metric: str, recorded: Sequence[Rounds], candidate: Rounds) -> bool:
        return _run(candidate) / _run(recorded[-1]) - 1 > limit_ratio

    return rule


def _pytest_benchmark_mean_5(metric: str, recorded: Sequence[Rounds], candidate: Rounds) -> bool:
    """``--benchmark-compare-fail=mean:5%``: the mean may not grow by more than 5 %, whatever the metric; for a throughput that is a
    gain."""
    before = mean([value_of(metric, loss) for loss in recorded[-1]])
    return mean([value_of(metric, loss) for loss in candidate]) / before - 1 > 0.05


def _twice_the_last(_metric: str, recorded: Sequence[Rounds], candidate: Rounds) -> bool:
    """github-action-benchmark's default: 200 % of the last point."""
    return _run(candidate) / _run(recorded[-1]) > 2.0


def _rolling_p95(share: float) -> Rule:
    """TensorRT-LLM's: throughput below ``share`` of the 95th percentile of the means of three successive runs (linear interpolation)."""

    def rule(_metric: str, recorded: Sequence[Rounds], candidate: Rounds) -> bool:
        rates = [1 / _run(losses) for losses in recorded]
        rolling = sorted(mean(rates[index : index + 3]) for index in range(len(rates) - 2))
        place = 0.95 * (len(rolling) - 1)
        low = math.floor(place)
        high = min(low + 1, len(rolling) - 1)
        return 1 / _run(candidate) < share * (rolling[low] + (place - low) * (rolling[high] - rolling[low]))

    return rule


def _welch(_metric: str, recorded: Sequence[Rounds], candidate: Rounds) -> bool:
    """Welch's t-test on the rounds of two runs, two-sided at 5 %, in the direction of a loss (scipy.stats.ttest_ind)."""
    from scipy.stats import ttest_ind

    if len(candidate) < 2 or len(recorded[-1]) < 2:
        return False
    result = ttest_ind(candidate, recorded[-1], equal_var=False)
    return bool(result.pvalue < 0.05 and result.statistic > 0)


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
