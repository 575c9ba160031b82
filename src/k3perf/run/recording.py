"""Every selected cell measured for a baseline, without judgement, session by session: a
drift of the machine falls on all configs alike.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace

from k3perf.config.suite import Cell
from k3perf.errors import MeasurementInvalid
from k3perf.records.measurement import SessionMetrics
from k3perf.records.samples import Arm, InvalidReason
from k3perf.records.verdict import CellVerdict
from k3perf.run.cell_measurement import engine_reason
from k3perf.run.patience import FirstRounds, RecordingStopped
from k3perf.run.recording_need import RecordingNeed
from k3perf.run.recording_time import RecordingTime
from k3perf.run.run_parts import CellResult, RunParts
from k3perf.run.time_left import sessions_to_record


class Recording:
    """Made for one run. ``run`` is called once."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._count = sessions_to_record(parts.cells, parts.settings)
        self._first_rounds = FirstRounds()
        self._sessions: dict[str, list[SessionMetrics]] = defaultdict(list)
        self._broken: dict[str, InvalidReason] = {}
        self._time = RecordingTime(parts.settings)

    def run(self) -> dict[str, CellResult]:
        """The result of every cell, by its id."""
        parts, need = self._parts, RecordingNeed(self._parts)
        need.say_before()
        index = 0
        while index == 0 or need.goes_on(index, self._sessions, set(self._broken)):
            parts.pool.stop_all()
            if not self._record_each_in_turn(again=index + 1 < need.expected_count):
                if self._time.limited:
                    parts.progress.note(f"no further session fits into {self._time.text()}")
                break
            index += 1
        return {cell.cell_id: self._result(cell) for cell in parts.cells}

    def _record_each_in_turn(self, *, again: bool) -> bool:
        """One session of every cell that is not broken and still fits into the limit.
        False: there is none. ``again``: they come once more.
        """
        parts, recorded = self._parts, False
        for position, cell in enumerate(parts.cells):
            if cell.cell_id in self._broken or not self._time.fits(cell):
                continue
            recorded = True
            started_s = time.monotonic()
            parts.progress.started(cell.cell_id)
            coming = [
                other
                for other in self._time.fitting(parts.cells[position + 1 :])
                if other.cell_id not in self._broken
            ]
            parts.expect_after(cell, coming, parts.cells[0] if again else None)
            self._record(cell)
            self._time.took(cell, time.monotonic() - started_s)
            outcome = "INVALID" if cell.cell_id in self._broken else "recorded"
            parts.progress.finished(cell.cell_id, outcome, measured=True)
        return recorded

    def _record(self, cell: Cell) -> None:
        """One session of the cell. A cell that fails is not tried again."""
        parts = self._parts
        try:
            with parts.machine_faults_invalidate():
                run = parts.cell_run(cell, self._first_rounds)
                try:
                    run.record_session()
                finally:
                    self._sessions[cell.cell_id] += run.sessions
        except MeasurementInvalid as error:
            parts.pool.stop_all()
            hopeless = isinstance(error, RecordingStopped) and error.whole
            ended = [other.cell_id for other in parts.cells] if hopeless else [cell.cell_id]
            for cell_id in ended:
                self._broken.setdefault(cell_id, engine_reason(error))

    def _result(self, cell: Cell) -> CellResult:
        reasons = (self._broken[cell.cell_id],) if cell.cell_id in self._broken else ()
        measurement = replace(
            self._parts.nothing(cell, *reasons), sessions=tuple(self._sessions[cell.cell_id])
        )
        valid_count = sum(
            1 for session in measurement.arm(Arm.CANDIDATE) if not session.invalid_reasons
        )
        wanted_count = 1 if self._time.limited else self._count
        if valid_count < wanted_count and not reasons:
            text = f"{valid_count} of {wanted_count} sessions are valid"
            if not measurement.sessions:
                text = f"no session fitted into {self._time.text()}"
            reasons = (
                InvalidReason("recording_short", text, float(valid_count), float(wanted_count)),
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
        return self._parts.result(cell, measurement, verdict)
