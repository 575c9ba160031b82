"""When a cell is looked at, and how much of the error budgets each look may spend. A
function of plan and recorded noise alone.

A look is a number of sessions and of rounds in each. Since the schedule does not depend
on what the candidate showed, and every look judges the same first sessions and rounds
however often the gate is asked, optional stopping is part of the test and not a way
around it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from k3perf.stats.spending import shares

FALSE_ALARM_POWER: Final = 3.0
"""Exponent of the spending function for REGRESSED: early looks get little."""

MISS_POWER: Final = 0.25
"""Exponent of the spending function for PASS: no change is the common case and should
end early.
"""

FIRST_LOOK_AT_MOST: Final = 0.9
"""The most that a first look at fewer rounds may count of its session, so that
something is left for the look at all of them.
"""


class Look(NamedTuple):
    """``sessions`` valid sessions of ``rounds`` valid rounds each; the shares of the
    budgets that this look spends.

    ``may_regress``: whether REGRESSED can be said here. One session never can, unless
    the plan has no second one: a process may be unlucky from start to end. Where it
    cannot, no alpha is spent, and ``alpha_share`` 1 only sets the level of the bounds
    shown and of gains.
    """

    sessions: int
    rounds: int
    alpha_share: float
    beta_share: float
    may_regress: bool


@lru_cache(maxsize=4096)
def schedule(
    sessions: range,
    minimum_rounds: int,
    rounds: int,
    maximum_rounds: int,
    baseline_sessions: int,
    first_look_share: float = 0.5,
) -> tuple[Look, ...]:
    """The looks in order.

    ``sessions`` counts from the plan's minimum to its maximum. ``rounds`` is the number
    of rounds worth having; where there is only one session, the last look has all
    ``maximum_rounds``. ``baseline_sessions`` 0: no baseline noise (ab). Information
    fraction of k sessions: Var(K sessions) / Var(k sessions), the variance being that
    of candidate mean minus baseline mean, proportional to 1/k + 1/baseline_sessions.
    ``first_look_share``: variance between sessions of all these rounds over that of
    sessions of ``minimum_rounds``.
    """
    last = sessions[-1]
    full = maximum_rounds if last == 1 else rounds
    sizes = [(sessions[0], minimum_rounds)] if full > minimum_rounds else []
    sizes += [(count, full) for count in sessions]
    shared = 1 / baseline_sessions if baseline_sessions else 0.0
    fractions = [(1 / last + shared) / (1 / count + shared) for count, _ in sizes]
    if full > minimum_rounds:
        fractions[0] *= min(first_look_share, FIRST_LOOK_AT_MOST)
    deciding = [count > 1 or (last == 1 and had == full) for count, had in sizes]
    spent = shares(
        [fraction for fraction, decides in zip(fractions, deciding, strict=True) if decides],
        FALSE_ALARM_POWER,
    )
    alphas = [1.0] * (len(sizes) - len(spent)) + list(spent)
    looks = zip(sizes, alphas, shares(fractions, MISS_POWER), deciding, strict=True)
    return tuple(Look(*size, alpha, beta, decides) for size, alpha, beta, decides in looks)
