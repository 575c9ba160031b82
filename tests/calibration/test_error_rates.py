"""The gate's promises, measured on whole suite runs with fixed seeds.

The default tests use few runs and catch a gate that is badly off; the slow ones measure
the promised rates themselves: with 0 red runs of 400 the exact upper limit is 0.9 %.
``tests/unit/gate/test_selftest.py`` holds the quick replay to the real path.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3perf.config.gated import statistical_metric_count
from k3perf.config.load_yaml import load_document
from k3perf.config.models import MeasurementPlan, TargetSpec, Tolerance
from k3perf.config.suite import load_suite
from k3perf.gate import decision
from k3perf.stats.estimators import Location
from tests.calibration.lab.noisy import unlike_cells, with_stalls
from tests.calibration.lab.proportion import clopper_pearson
from tests.calibration.lab.replay import (
    Setting,
    Tally,
    metric_loss,
    tallies,
    tally,
)
from tests.calibration.lab.selftest import (
    GATED,
    LOSSES,
    SUITE_METRICS,
    simulated_noise,
    simulated_setting,
    simulated_source,
)
from tests.calibration.lab.session_cost import keeps_promise, measure_cost, wald_sessions
from tests.calibration.lab.simulation import OUTLIER_LOSS, SHAPES, Noise, realised_sigma

TOLERANCE = 0.05
RUNS = 400
MODES = ("baseline", "reference")
# rounds twice as slow in either arm: no location of twelve ratios keeps the noise
# within a quarter of the tolerance (docs/studies/2026-11-30-gate-error-rates.md)
BEYOND_A_QUARTER = (("outlier_contaminated", "reference"),)
PLANS = {
    # sessions at most: largest noise between sessions, as a share of the tolerance,
    # that the plan is asked to test
    1: 0.05,
    2: 0.15,
    3: 0.21,
    4: 0.24,
    5: 0.25,
}
TARGETS = Path(__file__).resolve().parents[2] / "perf_tests" / "targets"


def plan(mode: str = "baseline", sessions: int = 5, **changes: int) -> MeasurementPlan:
    return MeasurementPlan.model_validate({"mode": mode, "maximum_sessions": sessions, **changes})


def at(setting: Setting, tolerances: float, runs: int, seed: int = 5) -> Tally:
    return tally(setting, tolerances, runs, seed)


def plan_of(target: str) -> MeasurementPlan:
    """A target's measurement plan without what the gate does not see."""
    measurement = load_document(TargetSpec, TARGETS / f"{target}.yaml").measurement
    return measurement.model_copy(
        update={"interleave": "sessions", "warm_up_rounds": 0, "repeat_invalid_rounds": 0}
    )


@lru_cache(maxsize=1)
def suite_plans() -> dict[str, MeasurementPlan]:
    """Every distinct measurement plan of a target that gates a timing, named by one such
    target. A quality target gates none: its plan of one round could not.
    """
    suite = load_suite(TARGETS.parent)
    found: dict[str, MeasurementPlan] = {}
    for path in sorted(TARGETS.glob("*.yaml")):
        judged = plan_of(path.stem)
        timed = statistical_metric_count(suite, suite.cells((path.stem,)))
        if timed and judged not in found.values():
            found[path.stem] = judged
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_promises_in_short(shape: str, mode: str) -> None:
    clean, half, lost = tallies(simulated_setting(shape, plan=plan(mode)), LOSSES, 20, 5)
    assert clean.metrics == 20 * SUITE_METRICS
    assert clean.red_runs == 0
    assert half.red_runs <= 3
    if (shape, mode) not in BEYOND_A_QUARTER:
        assert lost.regressed >= 0.94 * lost.metrics
        assert lost.inconclusive + lost.suspect <= 0.05 * lost.metrics


@pytest.mark.parametrize("name", suite_plans())
def test_no_plan_of_the_suite_turns_a_clean_run_red(name: str) -> None:
    for shape in SHAPES:
        assert (
            at(simulated_setting(shape, plan=suite_plans()[name], on_top=True), 0.0, 4).red_runs
            == 0
        ), shape


@pytest.mark.parametrize(("sessions", "share"), PLANS.items())
def test_every_number_of_sessions_keeps_the_promises_at_the_noise_it_can_test(
    sessions: int, share: float
) -> None:
    setting = simulated_setting("normal", plan=plan(sessions=sessions), noise_share=share)
    clean, lost = tallies(setting, (0.0, 1.5), 40, 5)
    assert clean.red_runs == 0
    assert keeps_promise(lost)


@pytest.mark.parametrize("cells", [2, 5, 20])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_pooled_noise_holds_for_few_cells_and_for_cells_that_differ(
    cells: int, spread: float
) -> None:
    red = sum(at(unlike_cells(spread, cells, seed), 0.0, 4, seed).red_runs for seed in range(5))
    assert red <= 1


@pytest.mark.parametrize("shape", SHAPES)
def test_a_config_that_pools_its_noise_apart_raises_no_false_alarm(shape: str) -> None:
    """A cell of 15 % noise between sessions, four of them recorded, with nobody to
    share: what a config's own tolerance makes of it.
    """
    source = simulated_source(dict.fromkeys(GATED, Noise(shape, 0.15, 0.08)), 6, paired=False)
    alone = plan(baseline_sessions=4, maximum_rounds=6)
    setting = Setting(
        (source,),
        dict.fromkeys(GATED, Tolerance(loss_ratio=0.4)),
        alone,
        repeats=SUITE_METRICS // len(GATED),
    )
    assert at(setting, 0.0, 40).red_runs == 0


@pytest.mark.parametrize("recorded", [2, 6, 12])
def test_few_recorded_sessions_do_not_raise_false_alarms(recorded: int) -> None:
    result = at(simulated_setting("normal", plan=plan(baseline_sessions=recorded)), 0.0, 30)
    assert result.red_runs == 0


def with_slow_rounds(setting: Setting) -> Setting:
    """Exactly every tenth candidate round is twice as slow; the baseline never saw such
    rounds.
    """
    rng = np.random.default_rng(3)
    recorded = setting.plan.baseline_sessions

    def hiccup(source):
        def draw(draws: np.random.Generator, count: int):
            sessions = source(draws, count)
            offset = int(rng.integers(10))
            spoiled = [
                (
                    {
                        m: tuple(
                            v + OUTLIER_LOSS * ((i + n * 12 + offset) % 10 == 0)
                            for i, v in enumerate(r)
                        )
                        for m, r in own.items()
                    },
                    beside,
                )
                for n, (own, beside) in enumerate(sessions[recorded:])
            ]
            return [*sessions[:recorded], *spoiled]

        return draw

    return replace(setting, sources=tuple(hiccup(source) for source in setting.sources))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "outlier_contaminated"])
def test_one_slow_round_in_ten_of_the_candidate_alone_is_no_regression(shape: str) -> None:
    result = at(with_slow_rounds(simulated_setting(shape, plan=plan())), 0.0, 15)
    assert result.regressed == 0
    assert result.passed >= 0.98 * result.metrics


# plan: share of clean metrics INVALID without setting aside at least, and with it at
# most, when a tenth of the sessions stall
STALLED = {"cpu-gqa": (0.06, 0.05), "cpu-hybrid": (0.06, 0.05), "h200-k3-tp2": (0.08, 0.02)}


def setting_nothing_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate as if a plan never had room for another session in place of one out of
    line.
    """
    real = decision.Judgement

    def without_room(*given: Any) -> decision.Judgement:
        made = real(*given)
        made.maximum_sessions = 0
        return made

    monkeypatch.setattr(decision, "Judgement", without_room)


def spread_run(
    name: str, share: float, losses: tuple[float, ...], runs: int, **how: bool
) -> list[Tally]:
    return tallies(
        with_stalls(simulated_setting("normal", plan=plan_of(name)), share, **how), losses, runs, 5
    )


@pytest.mark.parametrize("name", STALLED)
def test_a_host_that_stalls_now_and_then_leaves_hardly_a_clean_cell_invalid(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = STALLED[name]
    (clean,) = spread_run(name, 0.1, (0.0,), 20)
    assert clean.red_runs == 0
    assert clean.invalid <= after * clean.metrics
    setting_nothing_aside(monkeypatch)
    (without,) = spread_run(name, 0.1, (0.0,), 20)
    assert without.invalid >= before * without.metrics
    assert clean.passed > without.passed


@pytest.mark.parametrize("name", STALLED)
def test_a_build_that_lost_its_steadiness_does_not_pass(name: str) -> None:
    """Every other round slow: in all sessions never, in nine of ten hardly more often
    than its one steady session of ten comes first, in half of them as often as the
    majority rule lets through: 5/8 of cells in three sessions, 11/16 in five, and not
    the 3/4 of one steady session in two.
    """
    (always,) = spread_run(name, 1.0, (0.0,), 5, by_turns=True)
    assert always.invalid == always.metrics
    (mostly,) = spread_run(name, 0.9, (0.0,), 10, by_turns=True)
    assert mostly.passed <= 0.15 * mostly.metrics
    (half,) = spread_run(name, 0.5, (0.0,), 20, by_turns=True)
    assert half.passed <= {3: 0.66, 5: 0.72}[plan_of(name).maximum_sessions] * half.metrics
    assert mostly.regressed == half.regressed == 0


@pytest.mark.parametrize(
    "metrics", [GATED[:1], GATED], ids=["one metric a cell", "three metrics a cell"]
)
def test_measuring_in_looks_costs_at_most_three_fifths_of_the_best_fixed_design(
    metrics: tuple[str, ...],
) -> None:
    """The extra sessions of a suspected loss come on top: a fixed design has none."""
    looks = plan(maximum_suspect_sessions=5)
    cost = measure_cost(simulated_setting("normal", plan=looks, metrics=metrics), runs=60, seed=3)
    assert cost.fixed_sessions > 0
    assert cost.ratio <= 0.6
    assert cost.clean_rounds < cost.lost_rounds
    clean, lost = wald_sessions(0.02 / 60, 0.05, 0.25)
    assert clean < lost < 1.0


def test_without_any_fixed_design_the_cost_is_unknown() -> None:
    noisy = simulated_setting("normal", plan=plan(), metrics=GATED[:1], noise_share=2.0)
    assert measure_cost(noisy, runs=1, seed=1, maximum_sessions=1).ratio == math.inf


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_promises_themselves(shape: str, mode: str) -> None:
    clean, half, lost = tallies(simulated_setting(shape, plan=plan(mode)), LOSSES, RUNS, 5)
    assert clean.red_runs == 0
    assert clopper_pearson(clean.red_runs, clean.runs)[1] <= 0.01
    assert half.red_runs <= 0.05 * half.runs
    if (shape, mode) not in BEYOND_A_QUARTER:
        assert keeps_promise(lost)


def test_noise_that_no_promise_speaks_of_is_really_beyond_a_quarter() -> None:
    for shape, mode in BEYOND_A_QUARTER:
        quarter = 0.25 * metric_loss(GATED[-1], TOLERANCE)
        noise = simulated_noise(shape, quarter, plan(mode))
        for location in Location:
            assert realised_sigma(noise, location, 12, 12, paired=True) > 1.2 * quarter


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", suite_plans())
def test_at_most_one_clean_run_in_a_hundred_is_red_under_any_plan_of_the_suite(name: str) -> None:
    for shape in SHAPES:
        clean = at(simulated_setting(shape, plan=suite_plans()[name], on_top=True), 0.0, RUNS)
        if (
            shape,
            suite_plans()[name].mode,
        ) in BEYOND_A_QUARTER:  # not held to 1 %: docs/studies/2026-11-30-gate-error-rates.md
            assert clean.red_runs <= 0.03 * RUNS
            continue
        assert clean.red_runs == 0, shape
        assert clopper_pearson(clean.red_runs, clean.runs)[1] <= 0.01


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", STALLED)
def test_a_stalling_host_keeps_the_promises_and_costs_no_catch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean, half, lost = spread_run(name, 0.1, LOSSES, RUNS)
    assert clean.red_runs == 0
    assert clopper_pearson(clean.red_runs, clean.runs)[1] <= 0.01
    assert half.red_runs <= 0.05 * half.runs
    assert clean.invalid <= STALLED[name][1] * clean.metrics
    setting_nothing_aside(monkeypatch)
    before, _, lost_before = spread_run(name, 0.1, LOSSES, RUNS)
    assert before.invalid >= STALLED[name][0] * before.metrics
    assert lost.regressed > lost_before.regressed
    # 5 % is promised where the loss equals the tolerance
    assert lost.passed <= 0.02 * lost.metrics


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_slow_round_in_ten_makes_no_regression_in_four_hundred_runs() -> None:
    assert at(with_slow_rounds(simulated_setting("normal", plan=plan())), 0.0, RUNS).regressed == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_strong_skewness_is_not_promised_but_bounded() -> None:
    clean, half = tallies(simulated_setting("strongly_skewed", plan=plan()), (0.0, 0.5), RUNS, 5)
    assert clean.red_runs == 0
    assert half.red_runs <= 0.08 * half.runs


@pytest.mark.slow
def test_a_large_suite_is_judged_in_no_time() -> None:
    """The goal of 100 ms is measured by benchmarks/gate_compare.py; this bound only
    catches a gate that became slow by a factor.
    """
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    from gate_compare import build, passes

    assert min(passes(*build(0.0, 4, 1), count=3)) < 0.5
