"""Where the level of a series changed: a rank test of the largest two-sample contrast,
applied by binary segmentation, and a test of the newest values for a large step. Pure.

Estimator: the split that maximises |mean(after) - mean(before)| * sqrt(k (n - k) / n)
of the ranks, k values before, over all splits that leave ``minimum_segment`` values on
both sides (the CUSUM statistic; Page 1954, Pettitt 1979). Significance: the share of
random orders of n ranks whose largest contrast is as large, counting the observed one
(Phipson and Smyth 2010), so that P(p <= alpha) <= alpha for any exchangeable noise,
whatever its distribution. Equal values get their ranks at random. The orders depend on
n alone, so all series share them. Two-sided, unpaired, one value a night. Values that
depend on each other from night to night are not exchangeable: slow drift is then
reported as a change, which is what a slide is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

_BATCH_ROWS = 20_000
_MOST_COUNT = 2_000_000
"""Random orders at most, so that thousands of series still end."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """``index`` is the first value of the new level; means are of the segments on both
    sides; ``p_value`` of the permutation test.
    """

    index: int
    mean_before: float
    mean_after: float
    p_value: float


def change_points(
    values: Sequence[float],
    *,
    alpha: float,
    permutation_count: int = 9_999,
    minimum_segment: int = 4,
    seed: int = 0,
) -> tuple[ChangePoint, ...]:
    """Change points in order of time. Fewer than ``2 * minimum_segment`` values have
    none. Same input and seed, same answer.

    ``permutation_count`` bounds the smallest p-value: ``1 / (permutation_count + 1)``
    must not exceed ``alpha``.
    """
    if not 0 < alpha < 1 or (permutation_count + 1) * alpha < 1:
        raise ValueError(f"alpha {alpha} cannot be reached with {permutation_count} permutations")
    data = np.asarray(values, dtype=np.float64)
    if not np.isfinite(data).all():
        raise ValueError("every value must be finite")
    random = np.random.default_rng(seed)
    found: list[tuple[int, float]] = []
    segments = [(0, len(data))]
    while segments:
        start, end = segments.pop()
        hit = _test(data[start:end], alpha, permutation_count, minimum_segment, random)
        if hit is not None:
            found.append((start + hit[0], hit[1]))
            segments += [(start, start + hit[0]), (start + hit[0], end)]
    found.sort()
    edges = [0, *(index for index, _ in found), len(data)]
    return tuple(
        ChangePoint(
            index,
            float(data[edges[position] : index].mean()),
            float(data[index : edges[position + 2]].mean()),
            p_value,
        )
        for position, (index, p_value) in enumerate(found)
    )


def _test(
    segment: NDArray[np.float64],
    alpha: float,
    permutation_count: int,
    minimum_segment: int,
    random: np.random.Generator,
) -> tuple[int, float] | None:
    size = len(segment)
    if size < 2 * minimum_segment or float(np.ptp(segment)) == 0.0:
        return None
    order = np.lexsort((random.random(size), segment))
    ranks = np.empty(size)
    ranks[order] = np.arange(size) - (size - 1) / 2
    observed, split = _largest_contrast(ranks[np.newaxis, :], minimum_segment)
    null = _null_contrasts(size, minimum_segment, min(permutation_count, _MOST_COUNT))
    reached = np.searchsorted(null, float(observed[0]) * (1 - 1e-6))
    p_value = (1 + len(null) - int(reached)) / (len(null) + 1)
    return (int(split[0]), p_value) if p_value <= alpha else None


@lru_cache(maxsize=64)
def _null_contrasts(size: int, minimum_segment: int, permutation_count: int) -> NDArray[np.float32]:
    """Largest contrasts of random orders of ``size`` ranks, sorted."""
    random = np.random.default_rng(size)
    ranks = np.arange(size) - (size - 1) / 2
    found = np.empty(permutation_count, dtype=np.float32)
    for start in range(0, permutation_count, _BATCH_ROWS):
        count = min(_BATCH_ROWS, permutation_count - start)
        rows = random.permuted(np.tile(ranks, (count, 1)), axis=1)
        found[start : start + count] = _largest_contrast(rows, minimum_segment)[0]
    found.sort()
    return found


def newest_step(
    values: Sequence[float], *, alpha: float, new_count: int = 3, old_count: int = 8
) -> ChangePoint | None:
    """A step before the ``new_count`` newest values: each lies beyond every older one,
    on one side, and Student's two-sample t test of both groups has p <= ``alpha``.

    Three values cannot be significant by their order alone (1 in C(60, 3) orders), so
    this test believes in normal tails beyond the range of the older values. It needs
    ``old_count`` of those.
    """
    data = np.asarray(values, dtype=np.float64)
    if len(data) < old_count + new_count:
        return None
    old, new = data[:-new_count], data[-new_count:]
    if not (new.min() > old.max() or new.max() < old.min()):
        return None
    df = len(data) - 2
    spread = float(((old - old.mean()) ** 2).sum() + ((new - new.mean()) ** 2).sum())
    difference = float(new.mean() - old.mean())
    error = (spread / df * (1 / len(old) + 1 / len(new))) ** 0.5
    p_value = 2 * float(stdtr(df, -abs(difference) / error)) if error > 0 else 0.0
    if p_value > alpha:
        return None
    index = len(data) - new_count
    return ChangePoint(index, float(old.mean()), float(new.mean()), p_value)


def _largest_contrast(
    rows: NDArray[np.float64], minimum_segment: int
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Per row of centred values: the largest contrast and its split."""
    size = rows.shape[1]
    splits = np.arange(minimum_segment, size - minimum_segment + 1)
    sums = np.cumsum(rows, axis=1)[:, splits - 1]
    contrasts = np.abs(sums) * np.sqrt(size / (splits * (size - splits)))
    best = contrasts.argmax(axis=1)
    return contrasts[np.arange(len(rows)), best], splits[best]
