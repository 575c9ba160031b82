"""Variances of many small groups pooled: a prior for each group's own variance (moderated variance).

Source: G. K. Smyth, "Linear models and empirical Bayes methods for assessing differential expression in microarray experiments",
Stat. Appl. Genet. Mol. Biol. 3 (2004), section 6.2. Group variances are taken as s_g^2 ~ s_0^2 F(d_g, d_0); equal groups give d_0 = infinity, groups that
truly differ a small d_0, and then a group's own variance weighs more. The total is capped at the pooled degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SMALLEST_VARIANCE: Final = 1e-12
"""Variances of exactly equal values are raised to this before the logarithm (a relative sigma of one in a million)."""


@dataclass(frozen=True, slots=True)
class VariancePrior:
    """What a population of groups says about one group's variance. ``df`` 0: nothing."""

    variance: float
    df: float
    total_df: float

    def moderate(self, own_variance: float, own_df: int) -> tuple[float, int]:
        """(d_0 s_0^2 + d s^2) / (d_0 + d) and its degrees of freedom, rounded down and capped at the pooled ones."""
        if self.df <= 0:
            return own_variance, own_df
        df = self.df + own_df
        variance = (self.df * self.variance + own_df * own_variance) / df
        return variance, math.floor(min(df, max(self.total_df, own_df)))


NO_PRIOR: Final = VariancePrior(0.0, 0.0, 0.0)


def pool_variances(variances: Sequence[float], dfs: Sequence[int]) -> VariancePrior:
    """Prior from group variances (ddof 1) with their degrees of freedom; groups without any are left out."""
    groups = [(max(variance, SMALLEST_VARIANCE), df) for variance, df in zip(variances, dfs, strict=True) if df > 0]
    if not groups:
        return NO_PRIOR
    total_df = float(sum(df for _, df in groups))
    if len(groups) == 1:
        return VariancePrior(groups[0][0], 0.0, total_df)
    from scipy.special import digamma, polygamma

    offsets = [math.log(variance) - float(digamma(df / 2)) + math.log(df / 2) for variance, df in groups]
    centre = sum(offsets) / len(offsets)
    expected = sum(float(polygamma(1, df / 2)) for _, df in groups) / len(groups)
    excess = sum((offset - centre) ** 2 for offset in offsets) / (len(offsets) - 1) - expected
    weighted = sum(variance * df for variance, df in groups) / total_df
    prior_df = 2 * _inverse_trigamma(excess) if excess > 0 else math.inf
    if prior_df >= total_df:
        return VariancePrior(weighted, total_df, total_df)
    variance = math.exp(centre + float(digamma(prior_df / 2)) - math.log(prior_df / 2))
    return VariancePrior(variance, prior_df, total_df)


def _inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value > 0, by Newton's method on 1 / trigamma (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if -step / x < 1e-8:
            break
    return x
