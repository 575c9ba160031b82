"""The gate on sessions that were really recorded: every recording of
``perf_tests/recordings`` that is long enough.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from k3perf.records.samples import Arm
from tests.calibration.lab.command import read_recordings, recordings_folder
from tests.calibration.lab.proportion import clopper_pearson
from tests.calibration.lab.recorded_setting import recorded_setting, testable_tolerances
from tests.calibration.lab.recordings import Recording, recorded_metrics
from tests.calibration.lab.replay import tallies
from tests.calibration.lab.selftest import GATED, LOSSES, SUITE_METRICS

FOLDER = recordings_folder(Path(__file__).resolve().parent)
RECORDINGS: list[Recording] = read_recordings(FOLDER)[0] if FOLDER is not None else []
NAMES = [f"{recording.name}-{recording.mode}" for recording in RECORDINGS]


def rates(recording: Recording, runs: int):
    tolerances = testable_tolerances(
        recording, recorded_metrics(recording.cells, GATED), suite_metrics=SUITE_METRICS
    )
    assert tolerances, "accept would take no tolerance for this noise"
    return tallies(
        recorded_setting(recording, tolerances, suite_metrics=SUITE_METRICS), LOSSES, runs, 1
    )


def test_both_ways_of_measuring_were_recorded() -> None:
    """Twelve sessions each; of the plain ones one was cut short by invalid rounds."""
    recorded = {
        (r.target, r.mode): [len(cell.arm(Arm.CANDIDATE)) for cell in r.cells]
        for r in RECORDINGS
        if r.target == "cpu-hybrid"
    }
    assert recorded == {("cpu-hybrid", "baseline"): [12, 12], ("cpu-hybrid", "reference"): [12]}
    assert all(r.sessions >= 11 and r.rounds >= 12 for r in RECORDINGS if r.target == "cpu-hybrid")


@pytest.mark.parametrize("recording", RECORDINGS, ids=NAMES)
def test_recorded_sessions_are_judged_as_promised_in_short(recording: Recording) -> None:
    clean, half, lost = rates(recording, 20)
    assert clean.metrics >= 20 * SUITE_METRICS * 0.8
    assert clean.red_runs == 0
    assert half.red_runs <= 2
    assert lost.regressed >= 0.9 * lost.metrics


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("recording", RECORDINGS, ids=NAMES)
def test_recorded_sessions_are_judged_as_promised(recording: Recording) -> None:
    clean, half, lost = rates(recording, 400)
    assert clopper_pearson(clean.red_runs, clean.runs)[1] <= 0.01
    assert half.red_runs <= 0.05 * half.runs
    assert lost.regressed >= 0.95 * lost.metrics
    assert lost.inconclusive + lost.suspect <= 0.03 * lost.metrics
