"""Which points of a sweep can still be the best one, at a stated error rate. Pure.

Each interim analysis compares every point with the leader. A point is dropped if it is
worse beyond doubt. The level of one comparison is the allowed probability divided by
all comparisons of all analyses (Bonferroni), so the best point survives the whole race
with at least ``keep_rate``, however often it was looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from k3perf.tune.block_fit import BlockFit
from k3perf.tune.plan import TuningPlan


@dataclass(frozen=True, slots=True)
class RaceState:
    """After one interim analysis. ``decided``: more blocks would change nothing that
    matters, and ``why`` says so.
    """

    alive: tuple[str, ...]
    decided: bool
    why: str = ""


def comparison_level(plan: TuningPlan, candidate_count: int) -> float:
    """One-sided level of a single comparison."""
    return (1 - plan.keep_rate) / (plan.interim_count * max(candidate_count, 1))


def analyse(
    plan: TuningPlan,
    fit: BlockFit,
    parent: str,
    alive: Sequence[str],
    unfit: Collection[str],
    *,
    candidate_count: int,
) -> RaceState:
    """Drop what is hopeless. ``unfit``: points that break a bound beyond doubt."""
    level = comparison_level(plan, candidate_count)
    running = [label for label in alive if label not in unfit and fit.measured(label)]
    leaders = [*running, *((parent,) if parent not in unfit else ())]
    if not running or fit.df < 1:
        return RaceState(tuple(running), not running, "no point is left")
    leader = max(leaders, key=lambda label: fit.gain(label, parent))
    kept = tuple(
        label for label in running if label == leader or fit.bounds(leader, label, level)[0] <= 0
    )
    if not kept:
        return RaceState((), True, "every other value is worse than the parent's")
    bounds = [fit.bounds(label, parent, level) for label in kept]
    best = max(kept, key=lambda label: fit.gain(label, parent))
    if fit.bounds(best, parent, level)[0] > 0:
        return RaceState(kept, True, "the best value is ahead of the parent's")
    if all(high < plan.smallest_effect for _, high in bounds):
        return RaceState(kept, True, f"no value gains {plan.smallest_effect:.1%} or more")
    return RaceState(kept, False)


def nominee_of(
    fit: BlockFit, parent: str, alive: Sequence[str], order: Sequence[str], level: float
) -> str | None:
    """The point to confirm: of those within one standard error of the best, the one
    nearest to the parent in ``order`` (the one-standard-error rule of Breiman et al.,
    *Classification and Regression Trees*, 1984). None: the best is not ahead of the
    parent at ``level``, and a tie keeps the parent.
    """
    if not alive or fit.df < 1:
        return None
    best = max(alive, key=lambda label: fit.gain(label, parent))
    if fit.bounds(best, parent, level)[0] <= 0:
        return None
    tied = [label for label in alive if fit.gain(best, label) <= fit.error(best, label)]
    at = order.index(parent) if parent in order else 0
    return min(tied, key=lambda label: abs(order.index(label) - at))
