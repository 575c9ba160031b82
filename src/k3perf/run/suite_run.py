"""One run of the suite: cells measured once each, judged, written down; engines and
locks given back on every way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from k3perf.ci.run_noise import judged_by_own_noise
from k3perf.config.suite import Cell
from k3perf.errors import MeasurementInvalid
from k3perf.metrics.compute import session_metrics
from k3perf.metrics.validity import judge_session
from k3perf.records.measurement import CellMeasurement
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict, SuiteVerdict
from k3perf.run.argument_table import require_known_arguments
from k3perf.run.arms import wanted_engines
from k3perf.run.cell_measurement import engine_reason
from k3perf.run.outside_notes import require_one_engine
from k3perf.run.progress import Progress
from k3perf.run.readiness import require_accepted, require_engine, require_port
from k3perf.run.recording import Recording
from k3perf.run.results_folder import interrupted_run
from k3perf.run.run_parts import CellResult, RunParts
from k3perf.run.settings import RunSettings
from k3perf.run.time_left import planned_steps
from k3perf.store.results import FinishedCell


class SuiteRun:
    """``measure`` a cell as often as tests ask; it is measured once. ``close`` it."""

    def __init__(self, settings: RunSettings, cells: Sequence[Cell], progress: Progress) -> None:
        self.settings = settings
        self.write_problem = ""
        self._progress = progress
        self._parts = RunParts(settings, cells, progress)
        self._earlier = interrupted_run(settings)
        self._results: dict[str, CellResult] = {}
        self._written_count = 0

    def check_inputs(self) -> None:
        """Read tolerances, baselines and plans of every cell. Starts no engine.

        Raises UsageError for one that cannot be used, for an engine Python without
        vLLM, or for a config that the engine's release is known to refuse.
        """
        if self.settings.servers:
            require_one_engine(self._parts.cells)
        else:
            require_port()
        for cell in self._parts.cells:
            self._parts.plan(cell)
            own = () if self.settings.servers else wanted_engines(cell, self.settings)
            for item in own:
                require_engine(item.engine_python)
                require_accepted(self.settings.suite, item.target, item.config, item.engine_python)
                label = f"{item.target.name}-{item.config.name}"
                require_known_arguments(
                    label, item.engine_arguments, item.engine_python, self.settings.cache_directory
                )
            self._parts.rules(cell)
            self._parts.keeper.check_inputs(cell)
            self._parts.notes.check_inputs(cell)

    def measure(self, cell: Cell) -> CellResult:
        """The cell's result. A broken measurement is an INVALID verdict; only bad input
        raises.
        """
        if cell.cell_id not in self._results:
            if not self._results:
                self._progress.planned(planned_steps(self._parts.cells, self.settings))
            if self.settings.record:
                self._results = Recording(self._parts).run()
            else:
                self._results[cell.cell_id] = self._measure(cell)
        return self._results[cell.cell_id]

    def lock_problem(self) -> str:
        """Why no key of the configuration could be compared. Empty: some could."""
        return self._parts.lock_problem()

    def results(self) -> tuple[CellResult, ...]:
        """Every result so far, in the order of measuring."""
        return tuple(self._results.values())

    def verdict(self) -> SuiteVerdict:
        """The cells measured so far, joined, by the noise of all of them."""
        return SuiteVerdict(
            judged_by_own_noise(result.verdict for result in self._results.values()),
            self.settings.suite.tolerances.false_alarm_budget,
            self._parts.keeper.gated_metric_count,
        )

    def close(self) -> None:
        """Stop engines, give locks back, write the verdict and the measurements. Safe
        to call twice.
        """
        try:
            self._parts.close()
        finally:
            if len(self._results) > self._written_count:
                self._write()

    def _write(self) -> None:
        measurements = [result.measurement for result in self._results.values()]
        try:
            self._parts.folder.write(measurements, self.verdict())
            self._written_count = len(measurements)
        except (OSError, ValueError) as error:
            self.write_problem = f"the files of this run cannot be written: {error}"
            self._progress.note(self.write_problem)

    def _measure(self, cell: Cell) -> CellResult:
        """The cell's result, its start and end reported."""
        self._progress.started(cell.cell_id)
        result = self._early(cell) or self._resumed(cell)
        measured = result is None
        if result is None:
            result = self._measure_now(cell)
        self._progress.finished(
            cell.cell_id,
            str(result.verdict.outcome),
            measured=measured and bool(result.measurement.sessions),
        )
        return result

    def _early(self, cell: Cell) -> CellResult | None:
        """A result that needs no engine: the baseline that it needs does not exist."""
        verdict = self._parts.keeper.early_verdict(cell, self._parts.plan(cell).digest)
        return None if verdict is None else CellResult(self._parts.nothing(cell), verdict)

    def _measure_now(self, cell: Cell) -> CellResult:
        parts = self._parts
        parts.expect_after(cell, parts.cells[parts.cells.index(cell) + 1 :])
        lost: tuple[str, ...] = ()
        try:
            with parts.machine_faults_invalidate():
                run = parts.cell_run(cell)
                measurement, verdict = run.measure()
                lost = tuple(run.lost)
        except MeasurementInvalid as error:
            measurement = parts.nothing(cell, engine_reason(error))
            verdict = parts.keeper.judge(cell, measurement)
        try:
            self._finish(cell, measurement, verdict, lost)
        except MeasurementInvalid as error:  # numbers that cannot be kept are no result
            reasons = (*measurement.invalid_reasons, engine_reason(error))
            measurement = parts.nothing(cell, *reasons)
            verdict = parts.keeper.judge(cell, measurement)
        return parts.result(cell, measurement, verdict)

    def _finish(
        self, cell: Cell, measurement: CellMeasurement, verdict: CellVerdict, lost: tuple[str, ...]
    ) -> None:
        session_ids = tuple(session.session_id for session in measurement.sessions)
        valid = verdict.outcome is not Outcome.INVALID
        key = self._parts.key(cell)
        self._parts.folder.writer.cell(
            FinishedCell(key, str(verdict.outcome), session_ids, valid, lost)
        )

    def _resumed(self, cell: Cell) -> CellResult | None:
        """The valid result of an interrupted run, judged again from its samples; None
        when the cell has to be measured.
        """
        parts, key = self._parts, self._parts.key(cell)
        finished = None if self._earlier is None else self._earlier.finished(key)
        if self._earlier is None or finished is None:
            return None
        rules = parts.rules(cell)
        records = [
            replace(record, invalid_reasons=judge_session(record, rules))
            for record in self._earlier.cell_sessions(key)
        ]
        for record in records:
            parts.notes.see(record)
        parts.folder.served_by(records[-1].identity)
        sessions = tuple(
            session_metrics(record, service_level=cell.workload.service_level) for record in records
        )
        self._progress.note(f"{cell.cell_id}: taken from the resumed run, not measured again")
        measurement = replace(parts.nothing(cell), sessions=sessions)
        verdict = parts.keeper.judge(cell, measurement)
        verdict = replace(verdict, notes=(*verdict.notes, *finished.lost))
        return parts.result(cell, measurement, verdict)
