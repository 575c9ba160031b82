"""When a cell is looked at, and how much of the error budgets each look may spend. A function of plan and recorded noise alone.

A look is a number of sessions and of rounds in each. Since the schedule does not depend on what the candidate showed, and every look
judges the same first sessions and rounds however often the gate is asked, optional stopping is part of the test and not a way around
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from k3perf.stats.location import MEDIAN_VARIANCE_FACTOR
from k3perf.stats.spending import shares

FALSE_ALARM_POWER: Final = 2.0
"""Exponent of the spending function for REGRESSED: early looks get little."""

MISS_POWER: Final = 1.0
"""Exponent of the spending function for PASS: no change is the common case and should end early."""

ENOUGH_ROUNDS_SHARE: Final = 1.0
"""Rounds are enough when their part of a session's variance is at most this much of what differs between sessions: another session is
then worth more than the same rounds in this one."""


@dataclass(frozen=True, slots=True)
class Look:
    """``sessions`` valid sessions of ``rounds`` valid rounds each; the shares of the budgets that this look spends.

    ``may_regress``: whether REGRESSED can be said here. One session never can, unless the plan has no second one: a process may be
    unlucky from start to end. Where it cannot, no alpha is spent, and ``alpha_share`` 1 only sets the level of the bounds shown and of
    gains.
    """

    sessions: int
    rounds: int
    alpha_share: float
    beta_share: float
    may_regress: bool


@lru_cache(maxsize=4096)
def schedule(sessions: range, minimum_rounds: int, rounds: int, maximum_rounds: int, baseline_sessions: int) -> tuple[Look, ...]:
    """The looks in order.

    ``sessions`` counts from the plan's minimum to its maximum. ``rounds`` is the number of rounds worth having; where there is only one
    session, the last look has all ``maximum_rounds``. ``baseline_sessions`` 0: no baseline noise (ab). Information fraction of k
    sessions: Var(K sessions) / Var(k sessions), the variance being that of candidate mean minus baseline mean, proportional to 1/k +
    1/baseline_sessions. A first look at fewer rounds counts half of its session.
    """
    last = sessions[-1]
    full = maximum_rounds if last == 1 else rounds
    sizes = [(sessions[0], minimum_rounds)] if full > minimum_rounds else []
    sizes += [(count, full) for count in sessions]
    shared = 1 / baseline_sessions if baseline_sessions else 0.0
    fractions = [(1 / last + shared) / (1 / count + shared) for count, _ in sizes]
    if full > minimum_rounds:
        fractions[0] /= 2
    deciding = [count > 1 or (last == 1 and had == full) for count, had in sizes]
    spent = shares([fraction for fraction, decides in zip(fractions, deciding, strict=True) if decides], FALSE_ALARM_POWER)
    alphas = [1.0] * (len(sizes) - len(spent)) + list(spent)
    looks = zip(sizes, alphas, shares(fractions, MISS_POWER), deciding, strict=True)
    return tuple(Look(*size, alpha, beta, decides) for size, alpha, beta, decides in looks)


def rounds_worth_having(
    session_variance: float, round_variance: float | None, recorded_rounds: int, minimum_rounds: int, maximum_rounds: int
) -> int:
    """The fewest rounds whose noise is small beside what differs between sessions; within the plan's limits."""
    if not round_variance or recorded_rounds < 1:
        return minimum_rounds
    median_variance = MEDIAN_VARIANCE_FACTOR * round_variance
    between = max(session_variance - median_variance / recorded_rounds, 0.0)
    for rounds in range(minimum_rounds, maximum_rounds):
        if median_variance / rounds <= ENOUGH_ROUNDS_SHARE * between:
            return rounds
    return maximum_rounds
