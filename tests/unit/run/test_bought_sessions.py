"""Sessions that a cell's run buys while the gate asks for them, with the gate's own
verdicts on made-up sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.unit.gate.conftest import RATE, Build

from k3perf.config.models import MeasurementPlan
from k3perf.gate.compare import compare
from k3perf.records.measurement import CellMeasurement
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict
from k3perf.run.cell_measurement import CellRun

build = Build()


class MadeUp(CellRun):
    """Sessions come from a row instead of engines: steady ones (True) and ones whose
    rounds spread out of line.
    """

    row: tuple[bool, ...] = ()

    def _measure_session(
        self, session_index: int, *, rounds_count: int | None = None, judged: bool = True
    ) -> CellVerdict:
        steady = [measured.values[RATE].value or 0.0 for measured in build.rounds(1000.0)]
        values = (
            steady
            if self.row[session_index]
            else [value * (0.7 if index % 2 else 1.0) for index, value in enumerate(steady)]
        )
        rounds = [build.round(index, {RATE: value}) for index, value in enumerate(values)]
        self.sessions.append(build.session(f"s{session_index}", rounds))
        return self.judge(build.cell(self.sessions))


def run(
    judge: Callable[[CellMeasurement], CellVerdict], plan: MeasurementPlan, row: tuple[bool, ...]
) -> tuple[int, CellVerdict]:
    named = SimpleNamespace(
        name="gpu", measurement=plan, hardware=SimpleNamespace(hardware_class="h200")
    )
    cell: Any = SimpleNamespace(
        target=named, config=named, workload=named, cell_id="gpu-default-chat"
    )
    unused: Any = MagicMock()
    made = MadeUp(
        cell,
        "baseline",
        "h200",
        unused,
        (),
        unused,
        unused,
        unused,
        unused,
        judge,
        unused,
        unused,
        unused,
    )
    made.row = row
    _, verdict = made.measure()
    return len(made.sessions), verdict


@pytest.mark.parametrize(
    ("row", "measured", "outcome"),
    [
        ((True, True, True), 1, Outcome.PASS),
        ((False, True, True), 3, Outcome.PASS),
        ((False, True, False), 3, Outcome.INVALID),
        ((False, False, True), 2, Outcome.INVALID),
    ],
)
def test_an_invalid_cell_that_another_session_may_help_goes_on_within_its_plan(
    row: tuple[bool, ...], measured: int, outcome: Outcome
) -> None:
    plan = MeasurementPlan(mode="baseline", maximum_sessions=3)
    baseline = build.baseline(policy=build.policy(plan=plan))
    count, verdict = run(partial(_judged, baseline, build.policy(plan=plan)), plan, row)
    assert (count, verdict.outcome) == (measured, outcome)
    assert ("session s0 was excluded" in verdict.metrics[0].reason) is not row[0]


def _judged(baseline: Any, policy: Any, measurement: CellMeasurement) -> CellVerdict:
    return compare(baseline, measurement, policy)
