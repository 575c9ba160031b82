"""Every source of noise that the gate's parts are tried on: the self-test's own, the
recordings, and those in which an assumption of the gate does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from k3perf.config.models import MeasurementPlan, Tolerance
from tests.calibration.lab.command import read_recordings, recordings_folder
from tests.calibration.lab.correlated import correlated_source, equally_correlated
from tests.calibration.lab.noisy import (
    of_two_batches,
    unlike_cells,
    with_loud_cell,
    with_stalls,
)
from tests.calibration.lab.recorded_setting import recorded_setting, testable_tolerances
from tests.calibration.lab.recordings import recorded_metrics
from tests.calibration.lab.replay import Setting, metric_loss
from tests.calibration.lab.selftest import (
    GATED,
    SUITE_METRICS,
    simulated_noise,
    simulated_setting,
    simulated_source,
)
from tests.calibration.lab.simulation import SHAPES, Noise

USUAL = MeasurementPlan(mode="baseline", maximum_sessions=5)
PAIRED = MeasurementPlan(mode="reference", maximum_sessions=5)
SHORT = MeasurementPlan(mode="baseline", maximum_sessions=3)
SHORT_PAIRED = MeasurementPlan(
    mode="reference", maximum_sessions=3, maximum_rounds=6, baseline_sessions=2
)
"""As ``cpu-gqa`` and ``cpu-hybrid`` declare it."""


def _recorded() -> dict[str, Callable[[], Setting]]:
    folder = recordings_folder(Path(__file__).resolve().parent)
    found: dict[str, Callable[[], Setting]] = {}
    for recording in read_recordings(folder)[0] if folder is not None else []:
        tolerances = testable_tolerances(
            recording, recorded_metrics(recording.cells, GATED), suite_metrics=SUITE_METRICS
        )
        name = f"recorded {recording.target}, {recording.mode} mode"
        found[name] = partial(recorded_setting, recording, tolerances, suite_metrics=SUITE_METRICS)
    return found


def correlated_setting(share: float) -> Setting:
    """Normal noise, every two metrics of a cell correlated alike."""
    setting = simulated_setting("normal", plan=USUAL)
    noises = {
        metric: simulated_noise("normal", 0.25 * metric_loss(metric, 0.05), USUAL)
        for metric in GATED
    }
    source = correlated_source(noises, USUAL.maximum_rounds, equally_correlated(len(GATED), share))
    return replace(setting, sources=(source,) * len(setting.sources))


def _alone(shape: str) -> Setting:
    """A config with its own tolerance: no cell to pool with, four recorded sessions."""
    source = simulated_source(dict.fromkeys(GATED, Noise(shape, 0.02, 0.02)), 6, paired=False)
    plan = USUAL.model_copy(update={"baseline_sessions": 4, "maximum_rounds": 6})
    tolerances = dict.fromkeys(GATED, Tolerance(loss_ratio=0.5))
    return Setting((source,), tolerances, plan, repeats=SUITE_METRICS // len(GATED))


def few_recorded(spread: float) -> Setting:
    """Two recorded sessions a cell. ``spread``: sigma of the log of a cell's noise."""
    plan = USUAL.model_copy(update={"baseline_sessions": 2})
    if not spread:
        return simulated_setting("normal", plan=plan, noise_share=0.2)
    return replace(unlike_cells(spread, 20, 3), plan=plan)


def trial_sources() -> Mapping[str, Callable[[], Setting]]:
    """By name, what makes the setting."""
    usual = partial(simulated_setting, "normal", plan=USUAL)
    named: dict[str, Callable[[], Setting]] = {
        f"{shape.replace('_', ' ')}, {plan.mode} mode": partial(simulated_setting, shape, plan=plan)
        for plan in (USUAL, PAIRED)
        for shape in SHAPES
    }
    named["strongly skewed, baseline mode"] = partial(
        simulated_setting, "strongly_skewed", plan=USUAL
    )
    named["skewed, plan of three sessions"] = partial(
        simulated_setting, "log_normal", plan=SHORT, noise_share=0.2
    )
    named |= _recorded()
    named["metrics of a cell correlated (0.95)"] = lambda: correlated_setting(0.95)
    for share in (0.25, 0.5, 2.0):
        named[f"anchors moved {share:g} tolerances"] = lambda share=share: replace(  # type: ignore[misc]
            usual(), moved_tolerances=share
        )
    for times in (2.0, 3.0):
        named[f"candidate {times:g} times as noisy"] = lambda times=times: replace(  # type: ignore[misc]
            usual(), candidate_noise=times
        )
        named[f"candidate's sessions {times:g} times as noisy"] = (
            lambda times=times: replace(usual(), candidate_session_noise=times)  # type: ignore[misc]
        )
    named |= {
        f"one config {times:g} times as noisy": (
            lambda times=times: with_loud_cell(usual(), times)  # type: ignore[misc]
        )
        for times in (3.0, 10.0)
    }
    named |= {
        "another batch, a quarter of the tolerance": lambda: of_two_batches(usual(), 0.25),
        "20 cells that differ (sigma 0.5)": lambda: unlike_cells(0.5, 20, 3),
        "20 cells that differ (sigma 1)": lambda: unlike_cells(1.0, 20, 3),
        "5 cells that differ (sigma 1)": lambda: unlike_cells(1.0, 5, 3),
        "2 recorded sessions": lambda: few_recorded(0.0),
        "2 recorded sessions, cells that differ (sigma 1)": lambda: few_recorded(1.0),
        "one cell, 4 recorded sessions": lambda: _alone("normal"),
        "one cell, 4 recorded sessions, heavy tailed": lambda: _alone("heavy_tailed"),
        "2 recorded sessions, slow rounds in either arm, plan of six rounds": partial(
            simulated_setting, "outlier_contaminated", plan=SHORT_PAIRED, on_top=True
        ),
        "a tenth of the sessions stall": lambda: with_stalls(usual(), 0.1),
        "a tenth of the sessions stall, plan of six rounds": lambda: with_stalls(
            simulated_setting("normal", plan=SHORT.model_copy(update={"maximum_rounds": 6})), 0.1
        ),
    }
    return named
