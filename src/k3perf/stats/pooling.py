"""Noise of many small groups pooled into a prior for each group's own variance.

Two steps. First: do the groups' spreads differ at all? Levene's test centred at medians
(M. B. Brown and A. B. Forsythe, J. Am. Stat. Assoc. 69, 1974), which does not mistake
heavy tails for differing groups. Where a group has two values only, both lie equally
far from their median, the test divides by nothing and would call any groups different;
Bartlett's test (Proc. R. Soc. A 160, 1937) is asked then. Heavy tails make it call
groups different too often, which only costs degrees of freedom. If they do not differ,
the pooled variance with all its degrees of freedom stands for every group. If they
differ, each group's variance is moderated: G. K. Smyth, "Linear models and empirical
Bayes methods for assessing differential expression in microarray experiments", Stat.
Appl. Genet. Mol. Biol. 3 (2004), section 6.2; s_g^2 ~ s_0^2 F(d_g, d_0), the total
capped at the pooled degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from k3perf.stats.estimators import mean, median, sample_variance

SMALLEST_VARIANCE: Final = 1e-12
"""Variances of exactly equal values are raised to this before the logarithm (a relative
sigma of one in a million).
"""

DIFFERING_LEVEL: Final = 0.05
"""Level of the test for differing spreads. A false finding costs decisions, a missed
one false alarms; the calibration tests hold both.
"""


_NEWTON_STEPS: Final = 20
"""Each step about doubles the number of right digits; a handful does for any value."""


@dataclass(frozen=True, slots=True)
class VariancePrior:
    """What a population of groups says about one group's variance. ``df`` 0: nothing.
    ``pooled``: the groups do not differ.
    """

    variance: float
    df: float
    total_df: int
    pooled: bool

    def moderate(self, own_variance: float, own_df: int) -> tuple[float, int]:
        """A group's variance and its degrees of freedom, rounded down.

        Groups alike: the pooled variance. Groups that differ: (d_0 s_0^2 + d s^2) /
        (d_0 + d). Nothing known: the group's own.
        """
        if self.pooled:
            return self.variance, self.total_df
        if self.df <= 0:
            return own_variance, own_df
        df = self.df + own_df
        variance = (self.df * self.variance + own_df * own_variance) / df
        return variance, max(math.floor(min(df, self.total_df)), own_df)


NO_PRIOR: Final = VariancePrior(0.0, 0.0, 0, pooled=False)


def pool_groups(groups: Sequence[Sequence[float]]) -> VariancePrior:
    """Prior from groups of values; groups of fewer than two say nothing. A single
    group is all that is known.
    """
    usable = [group for group in groups if len(group) >= 2]
    if not usable:
        return NO_PRIOR
    dfs = [len(group) - 1 for group in usable]
    variances = [sample_variance(group) for group in usable]
    total_df = sum(dfs)
    weighted = sum(variance * df for variance, df in zip(variances, dfs, strict=True)) / total_df
    if len(usable) == 1:
        return VariancePrior(weighted, float(total_df), total_df, pooled=True)
    p = spread_difference_p(usable) if min(dfs) > 1 else variance_difference_p(variances, dfs)
    if p > DIFFERING_LEVEL:
        return VariancePrior(weighted, float(total_df), total_df, pooled=True)
    return _smyth_prior(variances, dfs, weighted, total_df)


def spread_difference_p(groups: Sequence[Sequence[float]]) -> float:
    """P value of the Brown-Forsythe test that all groups spread alike; equals
    ``scipy.stats.levene(*groups, center="median")``.
    """
    deviations = [[abs(value - median(group)) for value in group] for group in groups]
    count = sum(map(len, deviations))
    centre = sum(map(sum, deviations)) / count
    between = sum(len(group) * (mean(group) - centre) ** 2 for group in deviations) / (
        len(groups) - 1
    )
    within = sum((value - mean(group)) ** 2 for group in deviations for value in group)
    if within <= 0:
        return 1.0 if between <= 0 else 0.0
    from scipy.special import fdtrc

    return float(
        fdtrc(len(groups) - 1, count - len(groups), between * (count - len(groups)) / within)
    )


def variance_difference_p(variances: Sequence[float], dfs: Sequence[int]) -> float:
    """P value of Bartlett's test that groups with these variances (ddof 1) differ by
    chance alone; ``scipy.stats.bartlett`` of the groups. Its level for groups of two is
    3 to 4 % where 5 % is asked for (simulated, 2 to 8 groups, normal).
    """
    from scipy.special import chdtrc

    raised = [max(variance, SMALLEST_VARIANCE) for variance in variances]
    total_df = sum(dfs)
    pooled = sum(variance * df for variance, df in zip(raised, dfs, strict=True)) / total_df
    excess = total_df * math.log(pooled) - sum(
        df * math.log(variance) for variance, df in zip(raised, dfs, strict=True)
    )
    correction = 1 + (sum(1 / df for df in dfs) - 1 / total_df) / (3 * (len(dfs) - 1))
    return float(chdtrc(len(dfs) - 1, excess / correction))


def _smyth_prior(
    variances: Sequence[float], dfs: Sequence[int], weighted: float, total_df: int
) -> VariancePrior:
    from scipy.special import digamma, polygamma

    raised = [max(variance, SMALLEST_VARIANCE) for variance in variances]
    offsets = [
        math.log(variance) - float(digamma(df / 2)) + math.log(df / 2)
        for variance, df in zip(raised, dfs, strict=True)
    ]
    expected = sum(float(polygamma(1, df / 2)) for df in dfs) / len(dfs)
    excess = sample_variance(offsets) - expected
    prior_df = 2 * _inverse_trigamma(excess) if excess > 0 else math.inf
    if prior_df >= total_df:
        return VariancePrior(weighted, float(total_df), total_df, pooled=True)
    variance = math.exp(mean(offsets) + float(digamma(prior_df / 2)) - math.log(prior_df / 2))
    return VariancePrior(variance, prior_df, total_df, pooled=False)


def _inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value > 0, by Newton's method on 1 / trigamma (Smyth 2004,
    appendix).
    """
    from scipy.special import polygamma

    x = 0.5 + 1 / value
    for _ in range(_NEWTON_STEPS):
        trigamma = float(polygamma(1, x))
        x += trigamma * (1 - trigamma / value) / float(polygamma(2, x))
    return x


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
