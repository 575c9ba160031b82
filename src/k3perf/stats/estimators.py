"""Estimators of location and scale for a handful of numbers. Plain Python: for a dozen
values it is faster than an array library.

The location of a session's rounds is a weighted sum of their ordered values (an
L-estimator; Huber, Robust Statistics, 1981, section 3.3). Which one suits depends on
the noise: ``stats.noise`` chooses by what was recorded. Shifting every value shifts the
location by as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAD_TO_SIGMA",
    "Location",
    "locate",
    "locate_ordered",
    "locate_rows",
    "mean",
    "median",
    "robust_sigma",
    "sample_variance",
    "weights",
]

MAD_TO_SIGMA: Final = 1.4826022185056018
"""1 / Phi^-1(3/4): makes the median absolute deviation estimate sigma of a normal
(Hampel 1974).
"""


class Location(StrEnum):
    """MEDIAN: withstands half of the values, whichever way they lie. LOWER_QUARTILE:
    withstands three quarters of the values being too high, one quarter being too low.
    """

    MEDIAN = "median"
    LOWER_QUARTILE = "lower quartile"


@lru_cache(maxsize=1024)
def weights(location: Location, count: int) -> tuple[int, tuple[float, ...]]:
    """Index of the first ordered value that counts, and the weights from there on: one
    or two, which sum to 1. ``count`` at least 1.

    The quartile interpolates linearly (Hyndman and Fan 1996, type 7;
    ``numpy.quantile``'s default).
    """
    if location is Location.LOWER_QUARTILE:
        place = (count - 1) / 4
        first = math.floor(place)
        share = place - first
        return first, (1 - share, share) if share else (1.0,)
    middle = count // 2
    return (middle, (1.0,)) if count % 2 else (middle - 1, (0.5, 0.5))


def locate_ordered(location: Location, ordered: Sequence[float]) -> float:
    """The location of values in rising order; at least one."""
    first, shares = weights(location, len(ordered))
    if len(shares) == 1:
        return ordered[first]
    return shares[0] * ordered[first] + shares[1] * ordered[first + 1]


def locate(location: Location, values: Sequence[float]) -> float:
    """The location of at least one value."""
    return locate_ordered(location, sorted(values))


def locate_rows(location: Location, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The location of each row of a matrix of at least one column."""
    first, shares = weights(location, rows.shape[1])
    located: NDArray[np.float64] = np.sort(rows, axis=1)[
        :, first : first + len(shares)
    ] @ np.asarray(shares)
    return located


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
