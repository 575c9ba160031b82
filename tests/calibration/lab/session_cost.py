"""What sequential measuring costs beside the best design of fixed size at the same
error rates, and beside Wald's bound. Pure and seeded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from k3perf.config.models import MeasurementPlan
from tests.calibration.lab.replay import Setting, Tally, tallies, tally

CAUGHT = 0.95
UNDECIDED = 0.03


@dataclass(frozen=True, slots=True)
class Cost:
    """Mean rounds per cell: sequential without a change and at 1.5 tolerances, and the
    cheapest fixed (sessions, rounds) that keeps the promises. ``metrics`` is the number
    of gated metrics of a cell, ``runs`` how many suite runs each figure rests on.

    ``fixed_sessions`` 0: no fixed design within the limits keeps them.
    """

    metrics: int
    runs: int
    clean_rounds: float
    lost_rounds: float
    fixed_sessions: int
    fixed_rounds: int
    caught: float
    undecided: float

    @property
    def ratio(self) -> float:
        """Sequential over fixed, averaged over no change and 1.5 tolerances."""
        fixed = self.fixed_sessions * self.fixed_rounds
        return math.inf if not fixed else (self.clean_rounds + self.lost_rounds) / 2 / fixed


def measure_cost(setting: Setting, *, runs: int, seed: int, maximum_sessions: int = 6) -> Cost:
    """Sequential cost of the setting's plan against fixed designs of up to
    ``maximum_sessions`` sessions and the plan's rounds.
    """
    clean, lost = tallies(setting, (0.0, 1.5), runs, seed)
    best = next(
        (
            design
            for design in _designs(setting.plan, maximum_sessions)
            if keeps_promise(
                tally(replace(setting, plan=_fixed(setting.plan, *design)), 1.5, runs, seed)
            )
        ),
        (0, 0),
    )
    return Cost(
        metrics=len(setting.tolerances),
        runs=runs,
        clean_rounds=clean.rounds / clean.cells,
        lost_rounds=lost.rounds / lost.cells,
        fixed_sessions=best[0],
        fixed_rounds=best[1],
        caught=lost.regressed / lost.metrics,
        undecided=(lost.inconclusive + lost.suspect) / lost.metrics,
    )


def _designs(plan: MeasurementPlan, maximum_sessions: int) -> Iterator[tuple[int, int]]:
    """Numbers of sessions and rounds, the cheapest first."""
    rounds = range(plan.minimum_rounds, plan.maximum_rounds + 1)
    yield from sorted(
        ((count, size) for count in range(1, maximum_sessions + 1) for size in rounds),
        key=lambda design: design[0] * design[1],
    )


def keeps_promise(result: Tally) -> bool:
    """At least 95 % caught and at most 3 % undecided."""
    return (
        result.regressed >= CAUGHT * result.metrics
        and result.inconclusive + result.suspect <= UNDECIDED * result.metrics
    )


def wald_sessions(alpha: float, beta: float, session_sigma: float) -> tuple[float, float]:
    """Wald's lower bound on the mean number of sessions (no change, 1.5 tolerances),
    tolerance 1, testing half against one and a half tolerances.

    A. Wald, Sequential Analysis (1947), section 3.6: expected log likelihood ratio at
    the end over its drift. No baseline noise, sessions infinitely divisible. At no
    change the drift is twice that at half the tolerance.
    """
    drift = 1 / (2 * session_sigma**2)
    lost = ((1 - beta) * math.log((1 - beta) / alpha) + beta * math.log(beta / (1 - alpha))) / drift
    clean = ((1 - alpha) * math.log((1 - alpha) / beta) - alpha * math.log((1 - beta) / alpha)) / (
        2 * drift
    )
    return clean, lost


def _fixed(plan: MeasurementPlan, sessions: int, rounds: int) -> MeasurementPlan:
    return plan.model_copy(
        update={
            "minimum_sessions": sessions,
            "maximum_sessions": sessions,
            "maximum_suspect_sessions": sessions,
            "minimum_rounds": rounds,
            "maximum_rounds": rounds,
        }
    )
