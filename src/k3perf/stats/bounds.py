"""The bounds of an interim analysis, and the loss that it can detect. Pure."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

from k3perf.stats.quantiles import (
    mean_difference_skewness,
    single_draw_quantile,
    skewed_quantile,
    upper_quantile,
)
from k3perf.stats.reference import Level, Reference
from k3perf.stats.sequential import InterimAnalysis

CLEAR_SHARE: Final = 0.5
"""The share of the tolerance that a REGRESSED loss must exceed beyond doubt."""


class Limits(NamedTuple):
    """Tolerance on the loss scale and this metric's shares of the error rates, before
    they are spent over interim analyses. ``remaining``: what of the tolerance the
    losses since the anchor leave, where less.
    """

    tolerance: float
    alpha: float
    half_alpha: float
    beta: float
    maximum_rounds: int
    remaining: float | None = None

    @property
    def regress_beyond(self) -> float:
        """The loss that REGRESSED takes as relevant."""
        return self.tolerance if self.remaining is None else self.remaining


@lru_cache(maxsize=65536)
def widths(
    df: int, skewness: float, recorded: int, limits: Limits, analysis: InterimAnalysis
) -> tuple[float, float, float, float]:
    """Standard errors from the estimate to the lower bounds at the shares of alpha and
    of the half-tolerance rate, to the upper bound at the share of beta, and to the
    bound of a gain. The lower bounds move outwards where recorded sessions are skewed
    towards losses. One session alone must pass the quantile of a heavy-tailed draw.
    """
    quantile = single_draw_quantile if analysis.sessions == 1 else upper_quantile
    gain = alpha = quantile(limits.alpha * analysis.alpha_share, df)
    half = quantile(limits.half_alpha * analysis.alpha_share, df)
    if skewness > 0 and analysis.sessions > 1:
        of_mean = mean_difference_skewness(skewness, analysis.sessions, recorded)
        alpha, half = skewed_quantile(alpha, of_mean), skewed_quantile(half, of_mean)
    return alpha, half, upper_quantile(limits.beta * analysis.beta_share, df), gain


def minimum_detectable(
    reference: Reference, limits: Limits, analysis: InterimAnalysis
) -> float | None:
    """Minimum detectable effect: the true loss that ``analysis`` calls REGRESSED with
    probability 1 - beta, its critical value plus t_beta standard errors. It counts as
    the only one spending its share, which overstates the loss a little. None: no noise
    is known.
    """
    level = reference.at(analysis.rounds)
    if level.df < 1 or not math.isfinite(level.variance):
        return None
    return _detectable(level, reference.session_count, limits, analysis)


@lru_cache(maxsize=4096)
def _detectable(level: Level, recorded: int, limits: Limits, analysis: InterimAnalysis) -> float:
    share = 1 / analysis.sessions + (1 / recorded if recorded else 0.0)
    error = math.sqrt(level.variance * share + level.batch_variance)
    alpha_width, half_width, *_ = widths(level.df, level.skewness, recorded, limits, analysis)
    half = CLEAR_SHARE * limits.tolerance + half_width * error
    critical = max(limits.tolerance, alpha_width * error, half)
    return critical + upper_quantile(limits.beta, level.df) * error
