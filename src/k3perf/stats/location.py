"""Robust location and scale of a handful of numbers. Plain Python: for a dozen values
it is faster than an array library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAD_TO_SIGMA: Final = 1.4826022185056018
"""1 / Phi^-1(3/4): makes the median absolute deviation estimate sigma of a normal
(Hampel 1974).
"""

MEDIAN_VARIANCE_FACTOR: Final = 1.5707963267948966
"""pi / 2: the median's variance over the mean's for normal data, n to infinity. It is
smaller for small n, so it errs to the safe side.
"""


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the middle two. Breakdown point 1/2. Needs at
    least one value.
    """
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def robust_sigma(values: Sequence[float], centre: float) -> float:
    """Median absolute deviation from ``centre``, scaled to sigma of a normal; 0 for a
    single value.
    """
    return MAD_TO_SIGMA * median([abs(value - centre) for value in values])


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean. Needs at least one value."""
    return sum(values) / len(values)


def sample_variance(values: Sequence[float]) -> float:
    """Variance with ddof 1; 0 for a single value, which carries no degree of
    freedom.
    """
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return sum((value - centre) ** 2 for value in values) / (len(values) - 1)
