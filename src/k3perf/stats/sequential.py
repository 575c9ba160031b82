"""The interim analyses of a group-sequential test, and how error rates are spent over
them. A function of plan and recorded noise alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

FALSE_ALARM_POWER: Final = 3.0
"""Exponent of the spending function for REGRESSED: early analyses get little."""

MISS_POWER: Final = 0.25
"""Exponent of the spending function for PASS: no change is the common case and should
end early.
"""

FIRST_ANALYSIS_AT_MOST: Final = 0.9
"""The most that a first analysis of fewer rounds may count of its session, so that
something remains for the one of all rounds.
"""

EXTRA_SHARE: Final = 0.1
"""Of each error budget, what the analyses beyond the plan share. They are made only
while a loss is suspected. A third would make committed tolerances untestable.
"""


class InterimAnalysis(NamedTuple):
    """``sessions`` valid sessions of ``rounds`` valid rounds each, and the shares of
    the error rates that the analysis spends.

    ``may_regress``: one session never can, unless the plan has no second one, because a
    process may be unlucky from start to end. Then no alpha is spent, and
    ``alpha_share`` 1 only sets the level of the bounds shown and of gains. ``extra``:
    beyond the plan's sessions, and made only while a loss is suspected.
    """

    sessions: int
    rounds: int
    alpha_share: float
    beta_share: float
    may_regress: bool
    extra: bool = False


@lru_cache(maxsize=4096)
def schedule(
    sessions: range,
    minimum_rounds: int,
    rounds: int,
    maximum_rounds: int,
    baseline_sessions: int,
    first_share: float = 0.5,
    extra: int = 0,
) -> tuple[InterimAnalysis, ...]:
    """The interim analyses in order.

    ``sessions`` counts from the plan's minimum to its maximum. ``rounds`` are worth
    measuring; where there is only one session, the last analysis has all
    ``maximum_rounds``. ``baseline_sessions`` 0: no baseline noise (ab). Information
    fraction of k sessions: Var(K sessions) / Var(k sessions), the variance being that
    of candidate mean minus baseline mean, proportional to 1/k + 1/baseline_sessions.
    ``first_share``: variance between sessions of all these rounds over that of sessions
    of ``minimum_rounds``. ``extra``: sessions that a suspected loss gets beyond the
    plan. Their analyses divide ``EXTRA_SHARE`` of each budget equally.
    """
    last = sessions[-1]
    full = maximum_rounds if last == 1 else rounds
    sizes = [(sessions[0], minimum_rounds)] if full > minimum_rounds else []
    sizes += [(count, full) for count in sessions]
    shared = 1 / baseline_sessions if baseline_sessions else 0.0
    fractions = [(1 / last + shared) / (1 / count + shared) for count, _ in sizes]
    if full > minimum_rounds:
        fractions[0] *= min(first_share, FIRST_ANALYSIS_AT_MOST)
    deciding = [count > 1 or (last == 1 and had == full) for count, had in sizes]
    decisive = [fraction for fraction, decides in zip(fractions, deciding, strict=True) if decides]
    kept, each = (1 - EXTRA_SHARE, EXTRA_SHARE / extra) if extra else (1.0, 0.0)
    spent = [kept * share for share in shares(decisive, FALSE_ALARM_POWER)]
    alphas = [1.0] * (len(sizes) - len(spent)) + spent
    betas = [kept * share for share in shares(fractions, MISS_POWER)]
    analyses = zip(sizes, alphas, betas, deciding, strict=True)
    return (
        *(InterimAnalysis(*size, alpha, beta, ok) for size, alpha, beta, ok in analyses),
        *(
            InterimAnalysis(count, full, each, each, True, True)
            for count in range(last + 1, last + 1 + extra)
        ),
    )


def last_planned(analyses: Sequence[InterimAnalysis]) -> InterimAnalysis:
    """The last analysis of the plan itself."""
    return [analysis for analysis in analyses if not analysis.extra][-1]


def shares(fractions: Sequence[float], power: float) -> tuple[float, ...]:
    """Each interim analysis's share of an error budget. ``fractions`` of information
    rise to 1, and the shares sum to 1.

    Spending function of Kim and DeMets (Biometrika 74, 1987): budget * t ** power at
    information fraction t, an idea of Lan and DeMets (Biometrika 70, 1983). Each
    analysis's critical value is the marginal quantile at its own share, so the
    probability of crossing at any of them is at most the sum of the shares (Boole's
    inequality). That holds under any dependence and for Student's t, and costs little
    because the shares are small.
    """
    spent = [fraction**power for fraction in fractions]
    return tuple(now - before for now, before in zip(spent, [0.0, *spent[:-1]], strict=True))
