"""The gate on sessions that were really recorded: packaged ones and those in ``recorded/`` beside this file, whatever is there."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from k3perf.cli.gate import PACKAGED
from k3perf.config.models import MeasurementPlan
from k3perf.gate.replay import tally
from k3perf.gate.selftest import SUITE_METRICS, recorded_setting
from k3perf.metrics.values import CellMeasurement
from k3perf.store.measurements import read_measurement_file

TOLERANCE = 0.1
FILES = sorted([*PACKAGED.glob("*.json"), *(Path(__file__).parent / "recorded").glob("*.json")])


def groups(path: Path) -> list[list[CellMeasurement]]:
    found: dict[tuple[str, str], list[CellMeasurement]] = {}
    for cell in read_measurement_file(path).measurements():
        found.setdefault((cell.target, cell.mode), []).append(cell)
    return list(found.values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_sessions_without_a_change_are_no_regression(path: Path) -> None:
    for cells in groups(path):
        plan = MeasurementPlan.model_validate({"mode": cells[0].mode})
        setting = recorded_setting(cells, tolerance=TOLERANCE, plan=plan)
        clean = tally(setting, 0.0, 20, 1)
        assert clean.metrics >= 20 * SUITE_METRICS * 0.8
        assert clean.red_runs == 0
        assert tally(setting, 0.5 * math.log1p(TOLERANCE), 20, 1).red_runs <= 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_large_loss_of_recorded_sessions_is_caught(path: Path) -> None:
    for cells in groups(path):
        setting = recorded_setting(cells, tolerance=TOLERANCE, plan=MeasurementPlan.model_validate({"mode": cells[0].mode}))
        lost = tally(setting, 4 * math.log1p(TOLERANCE), 5, 1)
        assert lost.regressed >= 0.9 * lost.metrics
