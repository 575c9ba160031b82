"""A run's results folder: ``results.jsonl`` grows as the run measures, ``verdict.json``
and ``measurements.json`` are written at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from k3perf.ci.commits import same_commit
from k3perf.errors import UsageError
from k3perf.records.measurement import CellMeasurement, MeasurementFile
from k3perf.records.samples import Arm, EngineIdentity, SessionRecord
from k3perf.records.verdict import SuiteVerdict, VerdictDocument
from k3perf.run.live import utc_now
from k3perf.run.recover import versions
from k3perf.run.settings import RunSettings
from k3perf.store.atomic import replace_file
from k3perf.store.measurements import write_measurement_file
from k3perf.store.results import ResultWriter, RunResults, read_results

RESULTS_FILE: Final = "results.jsonl"


class ResultsFolder:
    """Opens ``results.jsonl`` with the first thing to write. What cannot be written
    raises MeasurementInvalid.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._writer: ResultWriter | None = None
        self._versions: dict[str, str] = {}

    @property
    def writer(self) -> ResultWriter:
        """What appends to ``results.jsonl``."""
        if self._writer is None:
            self._writer = ResultWriter(
                self._settings.results_directory / RESULTS_FILE,
                run_id=self._settings.run_id,
                experiment=self._settings.experiment,
            )
        return self._writer

    def session(self, record: SessionRecord) -> None:
        """Written when its engine is ready, and again with the readings at its end."""
        self.writer.session(record)
        if record.arm is Arm.CANDIDATE:
            self.served_by(record.identity)

    def served_by(self, identity: EngineIdentity) -> None:
        """The engine and machine that the run's files name."""
        self._versions = versions(identity)

    def write(self, measurements: Iterable[CellMeasurement], verdict: SuiteVerdict) -> None:
        """``measurements.json`` and ``verdict.json``. Raises OSError, or ValueError for
        a number without a JSON form.
        """
        settings = self._settings
        settings.results_directory.mkdir(parents=True, exist_ok=True)
        write_measurement_file(
            settings.results_directory / "measurements.json",
            MeasurementFile(
                run_id=settings.run_id,
                commit=settings.commit,
                created_at_utc=utc_now(),
                identity=self._versions,
                cells=tuple(measurements),
                injected=settings.experiment["injected"],
            ),
        )
        replace_file(settings.results_directory / "verdict.json", self._document(verdict).to_json())

    def close(self) -> None:
        """Sync and close ``results.jsonl``."""
        if self._writer is not None:
            self._writer.close()

    def _document(self, verdict: SuiteVerdict) -> VerdictDocument:
        settings = self._settings
        injected = settings.experiment["injected"]
        notes = (f"a fault was injected into the candidate: {injected}",) if injected else ()
        return VerdictDocument(
            schema_version=1,
            run_id=settings.run_id,
            commit=settings.commit,
            created_at_utc=utc_now(),
            vllm_version=self._versions.get("vllm", "absent"),
            false_alarm_budget=verdict.false_alarm_budget,
            gated_metric_count=verdict.gated_metric_count,
            cells=tuple(replace(cell, notes=(*cell.notes, *notes)) for cell in verdict.cells),
        )


def interrupted_run(settings: RunSettings) -> RunResults | None:
    """The run that ``--k3-resume`` continues, None without it. Raises UsageError for
    results of another experiment, or of another run that this one would mix with.
    """
    path = settings.results_directory / RESULTS_FILE
    if not settings.resume:
        if path.is_file() and path.stat().st_size:
            raise UsageError(
                f"{path} holds another run's results. Continue it (--k3-resume), or name"
                " another --k3-results directory."
            )
        return None
    earlier = read_results(path)
    for name, value in settings.experiment.items():
        was = earlier.experiment.get(name, value)
        same = same_commit(was, value) if name == "commit" else was == value
        if not same:
            raise UsageError(
                f"--k3-resume: {path} was measured with {name} {was!r}, this run has {value!r}."
                " Measure it again."
            )
    return earlier
