"""How lopsided values are, and what that does to the tail of their mean.

A mean of few values keeps part of their skewness, and Student's t knows nothing of it:
with skewness 1.75 and two values a level of one in ten thousand is exceeded twenty
times as often as it says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pooled_skewness(values: NDArray[np.float64], starts: Sequence[int]) -> float:
    """Skewness of values around the means of their groups (``starts``: where each group
    begins), less its standard error; never below 0.

    The third moment about a group's own mean is (n - 1)(n - 2) / n times the true one
    (Fisher's k statistics). The standard error is that for normal values, so that a
    normal's chance skewness mostly counts as none. Groups of fewer than three say
    nothing.
    """
    sizes = np.diff([*starts, len(values)])
    residuals = values - np.repeat(np.add.reduceat(values, starts) / sizes, sizes)
    freedom = float((sizes - 1).sum())
    weight = float((np.maximum(sizes - 1, 0) * np.maximum(sizes - 2, 0) / sizes).sum())
    variance = float((residuals**2).sum()) / freedom if freedom else 0.0
    if weight <= 0 or variance <= 0:
        return 0.0
    found = float((residuals**3).sum()) / weight / math.pow(variance, 1.5)
    return max(found - math.sqrt(6 / weight), 0.0)


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
