"""Does a candidate, or one recorded cell, vary more than the noise it is judged by? F
tests of variances, one-sided. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from k3perf.stats.estimators import sample_variance
from k3perf.stats.quantiles import upper_quantile

if TYPE_CHECKING:
    from k3perf.stats.reference import Level

METRIC_LEVEL: Final = 0.01
"""Below this p value a metric's sentence names the candidate's noise."""

RUN_LEVEL: Final = 0.001
"""Below this p value a whole run is noisier than recorded."""

APART_LEVEL: Final = 0.05
"""Level at which any cell of a target is called louder than all others."""

APART_RATIO: Final = 6.0
"""And its variance is at least this many times theirs. Below that its moderated
variance does, and has more degrees of freedom.
"""


LARGEST_RATIO: Final = 1e12
"""Of variances, in a verdict file."""


class NoiseRatio(NamedTuple):
    """Variance between a candidate's sessions over the recorded one, each with its
    degrees of freedom. ``holds``: the loss is significant by the candidate's variance.
    """

    ratio: float
    df: float
    recorded_df: float
    holds: bool = False

    def as_fields(self) -> dict[str, Any]:
        """As fields of a metric's verdict."""
        return {
            "noise_ratio": min(self.ratio, LARGEST_RATIO),
            "noise_df": int(self.df),
            "recorded_noise_df": int(self.recorded_df),
            "holds_by_own_noise": self.holds,
        }

    @property
    def p(self) -> float:
        """The probability of at least this ratio where the variances are equal."""
        return exceeding_p(self.ratio, self.df, self.recorded_df)


def own_noise(
    values: Sequence[float], level: Level, estimate: float, counts: tuple[int, int], alpha: float
) -> NoiseRatio | None:
    """``values`` of a candidate's sessions against the recorded ``level``. ``counts``:
    sessions of the estimate and of the baseline. None: nothing can be compared.
    """
    df = len(values) - 1
    if df < 1 or not level.variance:
        return None
    own = sample_variance(values)
    error = math.sqrt(own * sum(1 / count for count in counts if count))
    holds = estimate > upper_quantile(alpha, df) * error
    return NoiseRatio(own / level.variance, df, level.df, holds)


def exceeding_p(ratio: float, df: float, other_df: float) -> float:
    """``scipy.stats.f.sf``. 1 where there are no degrees of freedom."""
    if df < 1 or other_df < 1:
        return 1.0
    from scipy.special import fdtrc

    return float(fdtrc(df, other_df, ratio))


def pooled_ratio(found: Iterable[NoiseRatio]) -> NoiseRatio | None:
    """All ratios as one, weighted by their degrees of freedom. None: there are none."""
    known = [one for one in found if one.df >= 1 and one.recorded_df >= 1]
    df = sum(one.df for one in known)
    if not known:
        return None
    ratio = sum(one.ratio * one.df for one in known) / df
    return NoiseRatio(ratio, df, min(one.recorded_df for one in known))
