"""One cell's rounds on live engines: each is measured, judged by its readings and
written as soon as it ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from k3perf.config.suite import Cell
from k3perf.errors import EngineError
from k3perf.metrics.compute import session_metrics
from k3perf.metrics.validity import ValidityRules, judge_session
from k3perf.records.measurement import SessionMetrics
from k3perf.records.samples import RoundRecord, SessionRecord
from k3perf.run.cell_notes import CellNotes
from k3perf.run.live import LiveEngine, RoundPlace, SessionLog, measure_round
from k3perf.run.patience import FirstRounds, wait_for_quiet
from k3perf.run.pool import EnginePool
from k3perf.run.progress import Progress
from k3perf.run.results_folder import ResultsFolder
from k3perf.telemetry.sampler import Sampler
from k3perf.workload.request_plan import Plan


@dataclass
class RoundRunner:
    """Measures what it is asked for, and decides nothing.

    ``first_rounds`` and ``quiet_wait_s`` are of a recording. Every method that asks an
    engine raises EngineError when it has died.
    """

    cell: Cell
    plan: Plan
    pool: EnginePool
    sampler: Sampler
    rules: ValidityRules
    folder: ResultsFolder
    notes: CellNotes
    progress: Progress
    first_rounds: FirstRounds | None = None
    quiet_wait_s: float = 0.0

    def open(self, live: LiveEngine, pair_id: str | None) -> SessionLog:
        """A session of the cell begins on ``live``."""
        log = SessionLog(self.cell, self.plan, live, pair_id)
        self._write(self.record(log))
        return log

    def measure(self, log: SessionLog, place: RoundPlace) -> RoundRecord:
        """One round. RecordingStopped when no round of a recording can become valid."""
        with self._death_reported(log.live):
            record = measure_round(log, place, self.sampler, self.rules)
        self.folder.writer.round(log.session_id, record)
        if self.first_rounds is not None:
            self.first_rounds.see(self.cell.cell_id, record)
        return record

    def reset_peaks(self, log: SessionLog) -> None:
        """From here on peaks are those of the measured rounds."""
        with self._death_reported(log.live):
            log.live.probe.reset_peaks()

    def record(self, log: SessionLog) -> SessionRecord:
        """The session so far, its memory read now."""
        with self._death_reported(log.live):
            return log.record()

    def metrics(self, record: SessionRecord) -> SessionMetrics:
        """The session's metrics, with the reasons why it is not valid."""
        reasons = judge_session(record, self.rules)
        return session_metrics(
            replace(record, invalid_reasons=reasons), service_level=self.cell.workload.service_level
        )

    def end(self, record: SessionRecord) -> None:
        """Write the readings that the session was judged by, then that it ended."""
        self._write(record)
        self.folder.writer.session_end(record.session_id, judge_session(record, self.rules))

    def wait_for_quiet(self) -> None:
        """In a recording: return when the machine is quiet, or raise
        RecordingStopped.
        """
        wait_for_quiet(self.sampler, self.rules, self.progress, limit_s=self.quiet_wait_s)

    def _write(self, record: SessionRecord) -> None:
        self.folder.session(record)
        self.notes.see(record)

    @contextlib.contextmanager
    def _death_reported(self, live: LiveEngine) -> Iterator[None]:
        """Around everything that asks the engine: a second death of a config ends its
        tries, whatever was asked when it died.
        """
        try:
            with live.or_its_death():
                yield
        except EngineError as error:
            self.pool.report_crash(live, error)
            raise
