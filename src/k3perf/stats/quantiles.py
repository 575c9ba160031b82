"""Quantiles of Student's t, and its corrections for single draws and skewed values."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

MAXIMUM_DF: Final = 1000
"""Beyond this t and the normal agree to four digits at every level used here."""

HEAVY_TAIL_DF: Final = 3
"""The heaviest t with a finite variance and a whole number of degrees of freedom: what
one session's luck may look like.
"""


@lru_cache(maxsize=65536)
def upper_quantile(level: float, df: int) -> float:
    """One-sided: the value that t with ``df`` degrees of freedom exceeds with
    probability ``level`` (scipy.special.stdtrit).

    ``df`` is rounded down by the caller, which errs to the safe side. df below 1 or
    level 0 give infinity: nothing can be said.
    """
    if df < 1 or level <= 0:
        return math.inf
    from scipy.special import stdtrit

    return -float(stdtrit(min(df, MAXIMUM_DF), level))


@lru_cache(maxsize=65536)
def single_draw_quantile(level: float, df: int) -> float:
    """Like ``upper_quantile`` for ONE draw instead of a mean: at least the quantile of
    a unit-variance t with 3 degrees of freedom.

    A mean of several draws tends to a normal; a single draw keeps whatever tail it has,
    and a few recorded ones cannot tell which.
    """
    return max(
        upper_quantile(level, df),
        upper_quantile(level, HEAVY_TAIL_DF) / math.sqrt(HEAVY_TAIL_DF / (HEAVY_TAIL_DF - 2)),
    )


def mean_difference_skewness(skewness: float, count: int, other_count: int) -> float:
    """Skewness of the mean of ``count`` values minus the mean of ``other_count`` (0:
    the other mean is known), all of one distribution.
    """
    other = 1 / other_count if other_count else 0.0
    return skewness * (1 / count**2 - other**2) / math.pow(1 / count + other, 1.5)


def skewed_quantile(quantile: float, skewness: float) -> float:
    """An upper quantile moved outwards for positive skewness: first-order Cornish and
    Fisher (1937), q + (q^2 - 1) skewness / 6.
    """
    return quantile + max((quantile**2 - 1) * skewness / 6, 0.0)
