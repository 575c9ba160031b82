"""The knee of an ordered parameter: the smallest value from which more brings less than
the noise, with its interval. Pure.

There is no distance to a chord here, as in kneed: such a knee moves with the range that
was swept. A value is the knee if the best one is not better by more than the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from k3perf.records.tuning import Knee
from k3perf.stats.quantiles import upper_quantile
from k3perf.tune.block_fit import BlockFit

TIE_LEVEL: Final = 0.05
"""One-sided level at which a value counts as worse than the best."""

INTERVAL_LEVEL: Final = 0.025
"""One-sided, shared by all comparisons at an end of the interval."""


def find_knee(
    values: Sequence[tuple[float, str]], fit: BlockFit, *, smallest_effect: float
) -> Knee | None:
    """The knee among measured ``(value, label)``, in rising order of the value.

    ``smallest_effect``: log ratio below which a gain is not worth having. It sets the
    upper end only: beyond it, no value is better by more. None with fewer than three
    values or without a degree of freedom.
    """
    if len(values) < 3 or fit.df < 1:
        return None
    at = [index for index, _ in enumerate(values)]
    best = max(at, key=lambda index: fit.gain(values[index][1], values[0][1]))
    knee = next(index for index in at if _tied(fit, values[index][1], values[best][1]))
    level = INTERVAL_LEVEL / (len(values) - 1)
    low = next(
        index
        for index in at
        if all(
            fit.bounds(values[later][1], values[index][1], level)[0] <= 0 for later in at[index:]
        )
    )
    high = next(
        index
        for index in at
        if all(
            fit.bounds(values[later][1], values[index][1], level)[1] <= smallest_effect
            for later in at[index + 1 :]
        )
    )
    low, high = min(low, knee), max(high, knee)
    ends = f"{values[low][0]:g} to {values[high][0]:g}"
    if knee == at[-1]:
        text = f"no knee inside the range: the objective still rises at {values[-1][0]:g}"
    elif knee == 0:
        text = f"no knee inside the range: nothing above {values[0][0]:g} is better"
    else:
        text = f"knee at {values[knee][0]:g}, interval {ends}"
    inside = 0 < knee < at[-1]
    return Knee(values[knee][0] if inside else None, values[low][0], values[high][0], text)


def _tied(fit: BlockFit, label: str, best: str) -> bool:
    if label == best:
        return True
    width = upper_quantile(TIE_LEVEL, fit.df) * fit.error(best, label)
    return fit.gain(best, label) <= width
