"""Where the assumptions of the gate bend: a candidate that varies more than recorded, a
config that always did, anchors that moved. And what a suspected loss ends as.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from k3perf.baselines.testable import testable
from k3perf.config.models import MeasurementPlan
from k3perf.config.suite import load_suite
from k3perf.records.outcome import Outcome
from tests.calibration.lab.decision_tables import GREEN, ROOT, target_trial
from tests.calibration.lab.noisy import outcomes_of, run_outcomes, with_loud_cell
from tests.calibration.lab.replay import draw_cells, proposed, quick_cells, quick_runs
from tests.calibration.lab.selftest import simulated_setting
from tests.calibration.lab.source_table import clean_reds
from tests.calibration.lab.trial_sources import few_recorded

PLAN = MeasurementPlan(mode="baseline", maximum_sessions=3)


def red(outcomes: list[Outcome]) -> int:
    return outcomes.count(Outcome.REGRESSED)


@pytest.mark.parametrize("times", [2.0, 3.0])
def test_a_noisier_candidate_without_a_loss_is_not_red(times: float) -> None:
    setting = replace(simulated_setting("normal", plan=PLAN), candidate_noise=times)
    (found,) = run_outcomes(setting, (0.0,), 60, 11)
    assert red(found) <= 1
    if times == 3:
        rng = np.random.default_rng(11)
        alone = [quick_runs(setting, (0.0,), rng)[0] for _ in range(60)]
        by_cell = sum(Outcome.REGRESSED in cell.outcomes for run in alone for cell in run)
        assert by_cell >= 6, "the rule must have something to take back"


def test_a_loss_is_still_red_where_the_noise_is_as_recorded() -> None:
    (found,) = run_outcomes(simulated_setting("normal", plan=PLAN), (1.5,), 20, 12)
    assert red(found) >= 19


def test_one_config_that_always_varied_more_is_judged_by_its_own_noise() -> None:
    setting = with_loud_cell(simulated_setting("normal", plan=PLAN), 10.0)
    (found,) = run_outcomes(setting, (0.0,), 60, 13)
    assert red(found) <= 1


def test_two_recorded_sessions_of_cells_that_differ_are_refused_or_hold() -> None:
    """They seldom show which cell is the loud one, so its siblings' noise judges it."""
    setting = few_recorded(1.0)
    assert clean_reds(setting, 10) >= 1, "the refusal must have something to refuse"
    assert clean_reds(replace(setting, only_testable=True), 200) <= 2


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_lab_gates_what_accept_takes(spread: float) -> None:
    setting = few_recorded(spread)
    drawn = draw_cells(setting, np.random.default_rng(18))
    baselines, policy = proposed(setting, drawn)
    refused = [{one.metric for one in testable(baseline, policy)} for baseline in baselines]
    recorded = [tuple(sessions[: setting.plan.baseline_sessions]) for sessions in drawn]
    gated = quick_cells(replace(setting, only_testable=True), setting.policy(), recorded)
    assert [{metric for metric, *_ in cell} for cell in gated] == [
        set(setting.tolerances) - names for names in refused
    ]
    assert any(refused)


def test_the_lab_counts_what_a_run_would_say() -> None:
    rng = np.random.default_rng(14)
    (run,) = quick_runs(simulated_setting("normal", plan=PLAN), (3.0,), rng)
    assert set(outcomes_of(run)) == {Outcome.REGRESSED}


@pytest.mark.parametrize("moved", [0.01, 0.5, 2.0])
def test_moved_anchors_make_no_clean_run_red(moved: float) -> None:
    setting = replace(simulated_setting("normal", plan=PLAN), moved_tolerances=moved)
    clean, lost = run_outcomes(setting, (0.0, 1.5), 40, 15)
    assert red(clean) == 0
    assert red(lost) >= 39


def test_a_moved_anchor_makes_less_than_the_tolerance_a_regression() -> None:
    usual = simulated_setting("normal", plan=PLAN, noise_share=0.1)
    at = {
        moved: red(run_outcomes(replace(usual, moved_tolerances=moved), (0.65,), 10, 16)[0])
        for moved in (0.0, 0.5)
    }
    assert at == {0.0: 0, 0.5: 10}


def timed_targets() -> list[str]:
    """Committed targets of which a timing is judged. The quality targets have none."""
    found = sorted(path.name for path in (ROOT / "baselines").iterdir() if path.is_dir())
    timed = [name for name in found if not name.startswith("cpu-quality-")]
    assert len(timed) >= 7
    return timed


@pytest.mark.parametrize("name", timed_targets())
def test_a_loss_of_one_and_a_half_tolerances_is_green_on_no_committed_target(name: str) -> None:
    trial = target_trial(load_suite(ROOT / "perf_tests"), name)
    assert trial is not None
    clean, lost = run_outcomes(trial.setting, (0.0, 1.5), 20, 17)
    assert sum(outcome in GREEN for outcome in clean) >= 19
    assert not any(outcome in GREEN for outcome in lost)
