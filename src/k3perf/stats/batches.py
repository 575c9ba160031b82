"""How much batches (sessions of one host and day) differ. Pure.

Estimator: one-way random effects, by the analysis of variance (Searle, Casella and
McCulloch, Variance Components, 1992, section 3.6), pooled over cells. In a cell of N
sessions in a batches of n_k each, E[SS between] = (a - 1) s_w^2 + (N - sum n_k^2 / N)
s_b^2. Sums of both sides over the cells are solved for s_b^2, and a negative answer
counts as 0. Batches of different cells count as independent. Where a day shifts all
cells at once, two days say less than that: with days that differ by 40 and 60 % of the
tolerance, 1 and 5 % of the clean runs of 60 metrics were red (300 runs each), with 20 %
none (tests/calibration/test_batches.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from k3perf.stats.estimators import mean


class BatchSpread(NamedTuple):
    """The variance between batches, never below 0, with its degrees of freedom. ``df``
    0: there are no two batches in a cell, so nothing is known.
    """

    variance: float
    df: int


UNKNOWN_SPREAD: Final = BatchSpread(0.0, 0)


def batch_groups(labels: Sequence[Hashable]) -> tuple[tuple[int, ...], ...]:
    """Places of the sessions of each batch, in the order in which batches appear."""
    found: dict[Hashable, list[int]] = {}
    for place, label in enumerate(labels):
        found.setdefault(label, []).append(place)
    return tuple(map(tuple, found.values()))


def batch_spread(cells: Sequence[Sequence[Sequence[float]]]) -> BatchSpread:
    """``cells``: of each cell its batches, of each batch its session values.

    Where every batch has one session, the two parts cannot be separated. Then all of
    the variance counts as that between batches.
    """
    within, within_df, between, between_df, weight = 0.0, 0, 0.0, 0, 0.0
    for batches in cells:
        values = [value for batch in batches for value in batch]
        if not values:
            continue
        centre = mean(values)
        within += sum((value - mean(batch)) ** 2 for batch in batches for value in batch)
        within_df += sum(len(batch) - 1 for batch in batches)
        between += sum(len(batch) * (mean(batch) - centre) ** 2 for batch in batches)
        between_df += len(batches) - 1
        weight += len(values) - sum(len(batch) ** 2 for batch in batches) / len(values)
    if between_df < 1:
        return UNKNOWN_SPREAD
    expected = between_df * within / within_df if within_df else 0.0
    return BatchSpread(max(between - expected, 0.0) / weight, between_df)


def batch_factor(recorded: Sequence[Hashable], candidate: Hashable | None) -> float:
    """How often the variance between batches counts in the error of a candidate's mean
    less that of the recorded sessions. ``candidate``: its batch, None for one that was
    not recorded. 0 where both are of one batch, at most 2.
    """
    shares = {label: count / len(recorded) for label, count in Counter(recorded).items()}
    known = candidate in shares
    return sum((share - (label == candidate)) ** 2 for label, share in shares.items()) + (
        0.0 if known else 1.0
    )


def joint_df(part: float, df: int, other: float, other_df: int) -> int:
    """Degrees of freedom of the sum of two independent variances, rounded down, at
    least 1 (Satterthwaite, Biometrics Bulletin 2, 1946).
    """
    if part + other <= 0 or df < 1 or other_df < 1:
        return df
    joint = (part + other) ** 2 / (part**2 / df + other**2 / other_df)
    return max(math.floor(joint + 1e-9), 1)
