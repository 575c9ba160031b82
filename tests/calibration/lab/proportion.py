"""Intervals for observed proportions."""

from __future__ import annotations


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided exact binomial interval (Clopper and Pearson, Biometrika 26, 1934); (0,
    1) without trials.
    """
    if trials == 0:
        return 0.0, 1.0
    from scipy.special import betaincinv

    tail = (1 - confidence) / 2
    lower = 0.0 if hits == 0 else float(betaincinv(hits, trials - hits + 1, tail))
    upper = 1.0 if hits == trials else float(betaincinv(hits + 1, trials - hits, 1 - tail))
    return lower, upper
