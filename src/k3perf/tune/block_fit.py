"""Sessions of several points in blocks: effects of points with the blocks' taken out.
Pure.

A block holds one session of each point, so what changes with time falls on all of them.
The model is ``log value = point + block + noise``, fitted by least squares with any
cells missing (randomised complete block design, Fisher, *The Design of Experiments*,
1935). The residual variance is pooled over points and has the exact degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from k3perf.stats.quantiles import upper_quantile

Table = Mapping[str, Mapping[int, float]]
"""Natural logarithms by point and block, turned so that larger is better."""

SMALLEST_VARIANCE: Final = 1e-10
"""Rounding of values. Simulated sessions without noise would give 0."""

OWN_PAIRS: Final = 3
"""Fewer differences of one pair of points say too little about their own variance."""


_LARGEST_LOG: Final = 50.0

_SINGULAR: Final = 1e-6
"""Eigenvalues and projections below this are rounding."""


@dataclass(frozen=True)
class _Solution:
    """Rows of points, coefficients, pseudo-inverse of the normal matrix, the directions
    that the data do not determine, squared residuals and their degrees of freedom.
    """

    points: dict[str, int]
    found: NDArray[np.float64]
    inverse: NDArray[np.float64]
    unknown: NDArray[np.float64]
    squares: float
    df: int


@dataclass(frozen=True)
class BlockFit:
    """The fitted table. ``extra_squares`` and ``extra_df``: residuals of earlier
    sessions of the same points, which add to the variance and to nothing else.
    """

    table: Table
    extra_squares: float = 0.0
    extra_df: int = 0

    @cached_property
    def _solved(self) -> _Solution:
        points = {label: row for row, label in enumerate(self.table)}
        blocks = {block for cells in self.table.values() for block in cells}
        columns = {block: len(points) + at for at, block in enumerate(sorted(blocks)[1:])}
        cells = [
            (points[label], columns.get(block), value)
            for label, row in self.table.items()
            for block, value in row.items()
        ]
        design = np.zeros((len(cells), len(points) + len(columns)))
        values = np.array([value for *_, value in cells], dtype=np.float64)
        for at, (point, column, _) in enumerate(cells):
            design[at, point] = 1.0
            if column is not None:
                design[at, column] = 1.0
        sizes, axes = np.linalg.eigh(design.T @ design)
        known = sizes > _SINGULAR
        inverse = (axes[:, known] / sizes[known]) @ axes[:, known].T
        found = inverse @ design.T @ values
        residuals = values - design @ found
        return _Solution(
            points,
            found,
            inverse,
            axes[:, ~known],
            float(residuals @ residuals),
            len(cells) - int(known.sum()),
        )

    @property
    def own_df(self) -> int:
        """Residual degrees of freedom: cells less the rank of the model."""
        return self._solved.df

    @property
    def squares(self) -> float:
        """Sum of squared residuals of this table."""
        return self._solved.squares

    @property
    def df(self) -> int:
        """Degrees of freedom of the variance."""
        return self.own_df + self.extra_df

    @property
    def variance(self) -> float:
        """Of one session's log value inside a block. Infinite without a degree."""
        if self.df < 1:
            return math.inf
        return max((self.squares + self.extra_squares) / self.df, SMALLEST_VARIANCE)

    def measured(self, label: str) -> bool:
        """The point has a session."""
        return bool(self.table.get(label))

    def gain(self, label: str, over: str) -> float:
        """Log ratio of one point to another, positive is better."""
        points, found = self._solved.points, self._solved.found
        return float(found[points[label]] - found[points[over]])

    def weighted(self, weights: Mapping[str, float]) -> tuple[float, float]:
        """Weighted sum of points' effects with its standard error. Weights sum to 0.
        The error is infinite for points that no chain of blocks joins.
        """
        points, found, inverse = self._solved.points, self._solved.found, self._solved.inverse
        contrast = np.zeros(len(inverse))
        for label, weight in weights.items():
            contrast[points[label]] = weight
        if np.abs(contrast @ self._solved.unknown).max(initial=0.0) > _SINGULAR:
            return float(contrast @ found), math.inf
        return float(contrast @ found), math.sqrt(
            self.variance * float(contrast @ inverse @ contrast)
        )

    def error(self, label: str, over: str) -> float:
        """Standard error of ``gain``. The pair's own differences count where they vary
        more than the pool.
        """
        if label == over:
            return 0.0
        pooled = self.weighted({label: 1.0, over: -1.0})[1] ** 2
        mine, other = self.table[label], self.table[over]
        both = [mine[block] - other[block] for block in mine if block in other]
        own = float(np.var(both, ddof=1)) / len(both) if len(both) >= OWN_PAIRS else 0.0
        return math.sqrt(max(pooled, own))

    def bounds(self, label: str, over: str, level: float) -> tuple[float, float]:
        """One-sided lower and upper bound of ``gain``, each at ``level``."""
        if self.df < 1:
            return -math.inf, math.inf
        width = upper_quantile(level, self.df) * self.error(label, over)
        gain = self.gain(label, over)
        return gain - width, gain + width


def ratio(log_gain: float) -> float | None:
    """A log ratio as a ratio above 1. None where it is not finite, or so large that it
    is the bound of an interval without information.
    """
    if not math.isfinite(log_gain) or log_gain > _LARGEST_LOG:
        return None
    return math.expm1(log_gain)
