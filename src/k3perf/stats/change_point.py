"""Where the level of a series changed: a permutation test of the largest two-sample
contrast, applied by binary segmentation. Pure.

Estimator: the split that maximises |mean(after) - mean(before)| * sqrt(k (n - k) / n),
k values before, over all splits that leave ``minimum_segment`` values on both sides
(the CUSUM statistic; Page 1954, Sen and Srivastava 1975). Significance: the share of
random orders of the same values whose largest contrast is as large, counting the
observed one (Phipson and Smyth 2010), so that P(p <= alpha) <= alpha for any
exchangeable noise, whatever its distribution. Two-sided, unpaired, one value a night.
Values that depend on each other from night to night are not exchangeable: slow drift is
then reported as a change, which is what a slide is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BATCH_ROWS = 2_000


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
    centred = segment - segment.mean()
    observed, split = _largest_contrast(centred[np.newaxis, :], minimum_segment)
    threshold = float(observed[0]) * (1 - 1e-12)
    allowed = alpha * (permutation_count + 1)
    as_large = 1
    for start in range(0, permutation_count, _BATCH_ROWS):
        rows = np.tile(centred, (min(_BATCH_ROWS, permutation_count - start), 1))
        contrasts, _ = _largest_contrast(random.permuted(rows, axis=1), minimum_segment)
        as_large += int((contrasts >= threshold).sum())
        if as_large > allowed:  # it can no longer become significant
            return None
    return int(split[0]), as_large / (permutation_count + 1)


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
