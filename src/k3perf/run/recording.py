"""Every selected cell measured for a baseline, without judgement, session by session: a
drift of the machine falls on all configs alike.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from k3perf.config.suite import Cell
from k3perf.errors import MeasurementInvalid
from k3perf.records.measurement import SessionMetrics
from k3perf.records.samples import Arm, InvalidReason
from k3perf.records.verdict import CellVerdict
from k3perf.run.cell_measurement import engine_reason
from k3perf.run.patience import FirstRounds, RecordingStopped
from k3perf.run.time_left import sessions_to_record
from k3perf.run.workplace import CellResult, Workplace


class Recording:
    """Made for one run. ``run`` is called once."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._count = sessions_to_record(place.cells, place.settings)
        self._first_rounds = FirstRounds()
        self._sessions: dict[str, list[SessionMetrics]] = defaultdict(list)
        self._broken: dict[str, InvalidReason] = {}

    def run(self) -> dict[str, CellResult]:
        """The result of every cell, by its id."""
        place = self._place
        for index in range(self._count):
            place.pool.stop_all()
            for position, cell in enumerate(place.cells):
                if cell.cell_id in self._broken:
                    continue
                place.progress.started(cell.cell_id)
                coming = [
                    other
                    for other in place.cells[position + 1 :]
                    if other.cell_id not in self._broken
                ]
                again = place.cells[0] if index + 1 < self._count else None
                place.expect_after(cell, coming, again)
                self._record(cell)
                outcome = "INVALID" if cell.cell_id in self._broken else "recorded"
                place.progress.finished(cell.cell_id, outcome, measured=True)
        return {cell.cell_id: self._result(cell) for cell in place.cells}

    def _record(self, cell: Cell) -> None:
        """One session of the cell. A cell that fails is not tried again."""
        place = self._place
        try:
            with place.machine_faults_invalidate():
                run = place.cell_run(cell, self._first_rounds)
                try:
                    run.record_session()
                finally:
                    self._sessions[cell.cell_id] += run.sessions
        except MeasurementInvalid as error:
            place.pool.stop_all()
            hopeless = isinstance(error, RecordingStopped) and error.whole
            ended = [other.cell_id for other in place.cells] if hopeless else [cell.cell_id]
            for cell_id in ended:
                self._broken.setdefault(cell_id, engine_reason(error))

    def _result(self, cell: Cell) -> CellResult:
        reasons = (self._broken[cell.cell_id],) if cell.cell_id in self._broken else ()
        measurement = replace(
            self._place.nothing(cell, *reasons), sessions=tuple(self._sessions[cell.cell_id])
        )
        valid_count = sum(
            1 for session in measurement.arm(Arm.CANDIDATE) if not session.invalid_reasons
        )
        if valid_count < self._count and not reasons:
            text = f"{valid_count} of {self._count} sessions are valid"
            reasons = (
                InvalidReason("recording_short", text, float(valid_count), float(self._count)),
            )
        verdict = CellVerdict(
            cell.target.name,
            cell.config.name,
            cell.workload.name,
            measurement.mode,
            (),
            invalid_reasons=reasons,
            notes=(f"{valid_count} valid sessions recorded, not judged",),
        )
        return self._place.result(cell, measurement, verdict)
