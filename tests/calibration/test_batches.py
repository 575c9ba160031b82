"""Clean runs of another day, where days differ: the promise of at most 1 % red runs."""

from __future__ import annotations

import numpy as np
import pytest

from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.decision import judge
from k3perf.gate.metric_verdict import analyses_of, limits_of
from k3perf.gate.policy import Policy
from k3perf.metrics.loss_scale import scale_for
from k3perf.records.metric_definitions import METRICS
from k3perf.records.outcome import Outcome
from k3perf.stats.noise import batched_noise
from k3perf.stats.reference import cell_reference

CELL_COUNT, METRIC_COUNT, RUN_COUNT, SESSION_COUNT = 20, 60, 60, 6
WITHIN = 0.004
TOLERANCE = Tolerance(loss_ratio=0.05)
POLICY = Policy(
    {"tpot_mean_ms": TOLERANCE},
    MeasurementPlan(mode="baseline", minimum_rounds=1, maximum_rounds=1, maximum_sessions=4),
    METRIC_COUNT,
)
SCALE = scale_for(METRICS["tpot_mean_ms"], TOLERANCE)


def red_share(between: float, day_count: int, *, known: bool, common: bool = False) -> float:
    """The share of clean suite runs of 60 metrics (three of 20 cells each) with a
    REGRESSED one, where days differ by a sigma of ``between`` (loss scale). ``known``:
    the baseline says which session is of which day. ``common``: a day is the same for
    all cells of a metric.
    """
    random = np.random.default_rng(3)
    metrics = METRIC_COUNT // CELL_COUNT
    runs = [
        [_reds(random, between, day_count, known=known, common=common) for _ in range(metrics)]
        for _ in range(RUN_COUNT)
    ]
    return sum(any(run) for run in runs) / RUN_COUNT


def _reds(
    random: np.random.Generator, between: float, day_count: int, *, known: bool, common: bool
) -> bool:
    """One metric of all cells: is any REGRESSED?"""
    size = SESSION_COUNT // day_count
    days = random.normal(0, between, (1 if common else CELL_COUNT, day_count + 1))
    days = np.broadcast_to(days, (CELL_COUNT, day_count + 1))
    recorded = np.repeat(days[:, :day_count], size, axis=1)
    recorded = recorded + random.normal(0, WITHIN, recorded.shape)
    labels = tuple(place // size for place in range(SESSION_COUNT)) if known else ()
    cells = [tuple((float(value),) for value in row) for row in recorded]
    noise = batched_noise(cells, [labels] * CELL_COUNT, 1)
    measured = days[:, day_count:] + random.normal(0, WITHIN, (CELL_COUNT, 4))
    for cell, sessions in zip(cells, measured, strict=True):
        reference = cell_reference(
            cell, noise, 1, (1, 1), batches=labels, spread_over_noise_ratio=3.0
        )
        analyses = analyses_of(SCALE, reference, POLICY.plan)
        losses = [(float(loss),) for loss in sessions]
        decision = judge(losses, reference, limits_of(SCALE, POLICY), analyses)
        if decision.outcome is Outcome.REGRESSED:
            return True
    return False


def test_two_known_days_make_no_red_clean_runs() -> None:
    """Days differ by 3 %, sessions of one day by 0.4 %. As sessions that could be of any
    day, they make most clean runs of a third day red.
    """
    assert red_share(0.03, 1, known=False) > 0.5
    assert red_share(0.03, 2, known=False) > 0.3
    assert red_share(0.03, 2, known=True) <= 0.01


def test_days_that_shift_all_cells_at_once_hold_within_a_quarter_of_the_tolerance() -> None:
    """Two days then say less than so many cells seem to: the noise that the gate promises
    its error rates for is at most a quarter of the tolerance.
    """
    assert red_share(0.0125, 2, known=True, common=True) <= 0.01


@pytest.mark.parametrize("known", [False, True])
def test_days_that_do_not_differ_cost_no_red_run(known: bool) -> None:
    assert red_share(0.0, 2, known=known) <= 0.01
