"""One run of the suite: cells measured once each, judged, written down; engines and
locks given back on every way out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from k3perf.ci.commits import same_commit
from k3perf.config.suite import Cell
from k3perf.errors import MeasurementInvalid, UsageError
from k3perf.metrics.compute import session_metrics
from k3perf.metrics.validity import ValidityRules, judge_session
from k3perf.records.measurement import CellMeasurement, MeasurementFile
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm, InvalidReason, RoundKind, RoundRecord, SessionRecord
from k3perf.records.verdict import CellVerdict, SuiteVerdict, VerdictDocument
from k3perf.run.argument_table import require_known_arguments
from k3perf.run.arms import wanted_engines
from k3perf.run.cell_measurement import CellRun, engine_reason
from k3perf.run.cell_notes import CellNotes
from k3perf.run.judge import GateKeeper
from k3perf.run.live import utc_now
from k3perf.run.patience import FirstRounds, RecordingStopped, wait_for_quiet
from k3perf.run.pool import EnginePool
from k3perf.run.progress import Progress
from k3perf.run.readiness import require_accepted, require_engine, require_port
from k3perf.run.recover import versions
from k3perf.run.settings import RunSettings
from k3perf.run.time_left import planned_steps, sessions_to_record
from k3perf.store.atomic import replace_file
from k3perf.store.found_rates import found_rate_per_s
from k3perf.store.measurements import write_measurement_file
from k3perf.store.results import CellKey, FinishedCell, ResultWriter, RunResults, read_results
from k3perf.telemetry.sampler import Sampler
from k3perf.telemetry.visible import target_device_indices
from k3perf.units import ns_to_s
from k3perf.workload.request_plan import Plan, expand

RESULTS_FILE = "results.jsonl"


@dataclass(frozen=True, slots=True)
class CellResult:
    """A measured cell with its verdict and the durations of the candidate's valid
    rounds in seconds.
    """

    measurement: CellMeasurement
    verdict: CellVerdict
    round_durations_s: tuple[float, ...]


class SuiteRun:
    """Context manager. ``measure`` a cell as often as tests ask; it is measured
    once.
    """

    def __init__(self, settings: RunSettings, cells: Sequence[Cell], progress: Progress) -> None:
        self.settings = settings
        self._cells = tuple(cells)
        self._progress = progress
        self._keeper = GateKeeper(settings, self._cells)
        self._notes = CellNotes(settings.suite, settings.baselines_directory)
        self._results: dict[str, CellResult] = {}
        self._plans: dict[str, Plan] = {}
        self._durations_s: dict[str, dict[str, list[float]]] = {}
        self._identity: dict[str, str] = {}
        self._exit = contextlib.ExitStack()
        self._pool = EnginePool(settings, progress)
        self._writer: ResultWriter | None = None
        self._sampler: Sampler | None = None
        self._first_rounds = FirstRounds()
        self.write_problem = ""
        self._earlier = self._read_earlier()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def gated_metric_count(self) -> int:
        """How many gated metrics share this run's false-alarm budget."""
        return self._keeper.gated_metric_count

    def check_inputs(self) -> None:
        """Read tolerances, baselines and plans of every cell. Starts no engine.

        Raises UsageError for one that cannot be used, for an engine Python without
        vLLM, or for a config that the engine's release is known to refuse.
        """
        require_port()
        for cell in self._cells:
            self._plan(cell)
            for item in wanted_engines(cell, self.settings):
                require_engine(item.engine_python)
                require_accepted(self.settings.suite, item.target, item.config, item.engine_python)
                label = f"{item.target.name}-{item.config.name}"
                require_known_arguments(
                    label, item.engine_arguments, item.engine_python, self.settings.cache_directory
                )
            ValidityRules.for_target(cell.target.validity)
            self._keeper.check_inputs(cell)
            self._notes.check_inputs(cell)

    def measure(self, cell: Cell) -> CellResult:
        """The cell's result. A broken measurement is an INVALID verdict; only bad input
        raises.
        """
        if cell.cell_id not in self._results:
            if not self._results:
                self._progress.planned(planned_steps(self._cells, self.settings))
            self._results[cell.cell_id] = self._measure(cell)
        return self._results[cell.cell_id]

    def results(self) -> tuple[CellResult, ...]:
        """Every result so far, in the order of measuring."""
        return tuple(self._results.values())

    def verdict(self) -> SuiteVerdict:
        """The cells measured so far, joined."""
        return SuiteVerdict(
            tuple(result.verdict for result in self._results.values()),
            self.settings.suite.tolerances.false_alarm_budget,
            self.gated_metric_count,
        )

    def close(self) -> None:
        """Stop engines, give locks back, write the verdict and the measurements. Safe
        to call twice.
        """
        try:
            self._pool.close()
        finally:
            self._exit.close()
            self._sampler = None
            if self._results:
                self._write_files_or_say_why()

    def _write_files_or_say_why(self) -> None:
        try:
            self._write_files()
        except (OSError, ValueError) as error:  # ValueError: a number that JSON has no form for
            self.write_problem = f"the files of this run cannot be written: {error}"
            self._progress.note(self.write_problem)

    def _read_earlier(self) -> RunResults | None:
        """The interrupted run to go on with. UsageError for results that are another
        experiment's, or that this run would mix with.
        """
        path = self.settings.results_directory / RESULTS_FILE
        if not self.settings.resume:
            if path.is_file() and path.stat().st_size:
                raise UsageError(
                    f"{path} holds another run's results. Go on with it (--k3-resume), or name"
                    " another --k3-results directory."
                )
            return None
        earlier = read_results(path)
        for name, value in self.settings.experiment.items():
            was = earlier.experiment.get(name, value)
            same = same_commit(was, value) if name == "commit" else was == value
            if not same:
                raise UsageError(
                    f"--k3-resume: {path} was measured with {name} {was!r}, this run has {value!r}."
                    " Measure it anew."
                )
        return earlier

    def _measure(self, cell: Cell) -> CellResult:
        """The cell's result, its start and end reported; a recording reports each of
        its sessions itself.
        """
        if self.settings.record:
            self._record_all()
            return self._results[cell.cell_id]
        self._progress.started(cell.cell_id)
        result = self._measure_now(cell)
        resumed = self._earlier is not None and self._earlier.finished(self._key(cell)) is not None
        self._progress.finished(
            cell.cell_id,
            str(result.verdict.outcome),
            measured=bool(result.measurement.sessions) and not resumed,
        )
        return result

    def _measure_now(self, cell: Cell) -> CellResult:
        early = self._keeper.early_verdict(cell, self._plan(cell).digest)
        if early is not None:
            return CellResult(self._empty(cell, ()), early, ())
        resumed = self._resumed(cell)
        if resumed is not None:
            return resumed
        self._expect_after(cell)
        lost: list[str] = []
        try:
            with self._machine_faults_invalidate():
                run = self._cell_run(cell)
                lost = run.lost
                measurement, verdict = run.measure()
        except MeasurementInvalid as error:
            reason = engine_reason(error)
            measurement = self._empty(cell, (reason,))
            verdict = self._keeper.judge(cell, measurement)
        try:
            self._finish(cell, measurement, verdict, tuple(lost))
        except MeasurementInvalid as error:  # numbers that cannot be kept are no result
            measurement = self._empty(cell, (*measurement.invalid_reasons, engine_reason(error)))
            verdict = self._keeper.judge(cell, measurement)
        return self._result(cell, measurement, verdict, self._durations_of(cell, measurement))

    @contextlib.contextmanager
    def _machine_faults_invalidate(self) -> Iterator[None]:
        """A full disk, a folder that cannot be written, no process or descriptor left:
        the machine's fault, never a traceback or a loss.
        """
        try:
            yield
        except OSError as error:
            with contextlib.suppress(
                OSError
            ):  # what cannot be stopped now ends with the run: the guardian sees to it
                self._pool.stop_all()
            raise MeasurementInvalid(
                f"the machine failed while the cell was measured: {error}"
            ) from error

    def _result(
        self,
        cell: Cell,
        measurement: CellMeasurement,
        verdict: CellVerdict,
        durations_s: tuple[float, ...],
    ) -> CellResult:
        """The verdict gets the notes that judge nothing, a replayed trace's provenance
        among them.
        """
        noted = self._notes.add(cell, measurement, verdict)
        trace = self._plan(cell).trace
        if trace is not None:
            noted = replace(noted, notes=(*noted.notes, trace.text))
        return CellResult(measurement, noted, durations_s)

    def _durations_of(self, cell: Cell, measurement: CellMeasurement) -> tuple[float, ...]:
        """Durations in seconds of the rounds that the verdict rests on; those of a
        session that died are not among them.
        """
        of_cell = self._durations_s.get(cell.cell_id, {})
        return tuple(
            value
            for session in measurement.sessions
            for value in of_cell.get(session.session_id, ())
        )

    def _finish(
        self, cell: Cell, measurement: CellMeasurement, verdict: CellVerdict, lost: tuple[str, ...]
    ) -> None:
        session_ids = tuple(session.session_id for session in measurement.sessions)
        valid = verdict.outcome is not Outcome.INVALID
        self._ensure_writer().cell(
            FinishedCell(self._key(cell), str(verdict.outcome), session_ids, valid, lost)
        )

    def _key(self, cell: Cell) -> CellKey:
        mode = self.settings.mode_for(cell.target.name)
        return CellKey(
            cell.target.name, cell.config.name, cell.workload.name, mode, self._plan(cell).digest
        )

    def _resumed(self, cell: Cell) -> CellResult | None:
        """The valid result of an interrupted run, judged anew from its samples; None
        when the cell has to be measured.
        """
        key = self._key(cell)
        finished = None if self._earlier is None else self._earlier.finished(key)
        if self._earlier is None or finished is None:
            return None
        rules = ValidityRules.for_target(cell.target.validity)
        records = tuple(
            replace(record, invalid_reasons=judge_session(record, rules))
            for record in self._earlier.cell_sessions(key)
        )
        self._identity = versions(records[-1].identity) if records else {}
        sessions = tuple(
            session_metrics(record, service_level=cell.workload.service_level) for record in records
        )
        for record in records:
            self._notes.see(record)
        measurement = replace(self._empty(cell, ()), sessions=sessions)
        durations_s = [
            ns_to_s(entry.end_ns - entry.start_ns)
            for record in records
            if record.arm is Arm.CANDIDATE
            for entry in record.rounds
            if entry.kind is RoundKind.MEASURED and entry.valid
        ]
        self._progress.note(f"{cell.cell_id}: taken from the resumed run, not measured again")
        verdict = self._keeper.judge(cell, measurement)
        verdict = replace(verdict, notes=(*verdict.notes, *finished.lost))
        return self._result(cell, measurement, verdict, tuple(durations_s))

    def _record_all(self) -> None:
        """Every selected cell, session by session, so that a drift of the machine falls
        on all configs alike.
        """
        runs = {cell.cell_id: self._cell_run(cell) for cell in self._cells}
        count = sessions_to_record(self._cells, self.settings)
        broken: dict[str, InvalidReason] = {}
        for session_index in range(count):
            self._pool.stop_all()
            for cell in self._cells:
                if cell.cell_id in broken:
                    continue
                self._progress.started(cell.cell_id)
                self._expect_after(cell, again=session_index + 1 < count, broken=broken)
                try:
                    with self._machine_faults_invalidate():
                        self._record_session(runs[cell.cell_id])
                except MeasurementInvalid as error:
                    self._pool.stop_all()
                    hopeless = isinstance(error, RecordingStopped) and error.whole
                    broken |= dict.fromkeys(
                        runs.keys() - broken if hopeless else {cell.cell_id}, engine_reason(error)
                    )
                self._progress.finished(
                    cell.cell_id, "INVALID" if cell.cell_id in broken else "recorded", measured=True
                )
        for cell in self._cells:
            reasons = (broken[cell.cell_id],) if cell.cell_id in broken else ()
            measurement = runs[cell.cell_id].measurement(reasons)
            self._results[cell.cell_id] = self._recorded(cell, measurement, count)

    def _record_session(self, run: CellRun) -> None:
        run.sampler = self._ensure_sampler()
        run.before_repeat = lambda: wait_for_quiet(
            run.sampler, run.rules, self._progress, limit_s=self.settings.quiet_wait_s
        )
        run.before_repeat()
        run.record_session()

    def _recorded(self, cell: Cell, measurement: CellMeasurement, count: int) -> CellResult:
        reasons = measurement.invalid_reasons
        valid_count = sum(
            1 for session in measurement.arm(Arm.CANDIDATE) if not session.invalid_reasons
        )
        if valid_count < count and not reasons:
            text = f"{valid_count} of {count} sessions are valid"
            reasons = (InvalidReason("recording_short", text, float(valid_count), float(count)),)
        verdict = CellVerdict(
            cell.target.name,
            cell.config.name,
            cell.workload.name,
            measurement.mode,
            (),
            invalid_reasons=reasons,
            notes=(f"{valid_count} valid sessions recorded, not judged",),
        )
        return self._result(cell, measurement, verdict, self._durations_of(cell, measurement))

    def _expect_after(
        self, cell: Cell, *, again: bool = False, broken: Mapping[str, InvalidReason] | None = None
    ) -> None:
        """Tell the pool which engine comes after this cell's: the next cell's that
        needs another, or with ``again`` the next session's first.
        """
        position = self._cells.index(cell)
        now = wanted_engines(cell, self.settings)
        coming = [
            wanted_engines(other, self.settings)
            for other in self._cells[position + 1 :]
            if other.cell_id not in (broken or {})
        ]
        coming = [wanted for wanted in coming if wanted != now]
        if again:
            coming.append(wanted_engines(self._cells[0], self.settings))
        self._pool.expect(coming[0][0] if coming and len(coming[0]) == 1 else None)

    def _cell_run(self, cell: Cell) -> CellRun:
        return CellRun(
            cell=cell,
            mode=self.settings.mode_for(cell.target.name),
            hardware_class=self.settings.hardware_class(cell.target),
            plan=self._plan(cell),
            wanted=wanted_engines(cell, self.settings),
            pool=self._pool,
            sampler=self._ensure_sampler(),
            rules=ValidityRules.for_target(cell.target.validity),
            progress=self._progress,
            judge=lambda measurement: self._keeper.judge(cell, measurement),
            on_round=self._on_round,
            on_session=self._on_session,
            on_session_end=lambda session_id, reasons: self._ensure_writer().session_end(
                session_id, reasons
            ),
        )

    def _plan(self, cell: Cell) -> Plan:
        """The cell's plan, expanded once: a trace file is read and hashed for it."""
        if cell.cell_id not in self._plans:
            self._plans[cell.cell_id] = expand(
                cell.workload,
                vocabulary_size=self.settings.suite.vocabulary_size(cell.target),
                trace_directory=self.settings.suite.root / "traces",
                trace_file=self.settings.trace_file,
                found_rate_per_s=found_rate_per_s(
                    self.settings.baselines_directory, cell.target, cell.workload
                ),
            )
        return self._plans[cell.cell_id]

    def _on_round(self, session_id: str, cell: Cell, arm: Arm, record: RoundRecord) -> None:
        self._ensure_writer().round(session_id, record)
        if self.settings.record:
            self._first_rounds.see(cell.cell_id, record)
        if arm is Arm.CANDIDATE and record.kind is RoundKind.MEASURED and record.valid:
            of_cell = self._durations_s.setdefault(cell.cell_id, {})
            of_cell.setdefault(session_id, []).append(ns_to_s(record.end_ns - record.start_ns))

    def _on_session(self, record: SessionRecord) -> None:
        """Called when the engine is ready and again with the readings at the session's
        end.
        """
        self._ensure_writer().session(record)
        self._notes.see(record)
        if record.arm is Arm.CANDIDATE:
            self._identity = versions(record.identity)

    def _ensure_sampler(self) -> Sampler:
        """The run's sampler; another one after it ended by itself, so that one failure
        costs one cell.
        """
        if self._sampler is None or self._sampler.failure:
            self._sampler = self._exit.enter_context(
                Sampler(self._pool.pids, self._devices(), ranks_count=self._pool.engines_count)
            )
        return self._sampler

    def _devices(self) -> tuple[int, ...]:
        """The devices that the run's targets use: asked for by index, so that one that
        cannot be read is reported, not missed.
        """
        hardware = [
            cell.target.hardware for cell in self._cells if cell.target.hardware.kind == "nvidia"
        ]
        return tuple(sorted({index for item in hardware for index in target_device_indices(item)}))

    def _ensure_writer(self) -> ResultWriter:
        if self._writer is None:
            self._writer = self._exit.enter_context(
                ResultWriter(
                    self.settings.results_directory / RESULTS_FILE,
                    run_id=self.settings.run_id,
                    experiment=self.settings.experiment,
                )
            )
        return self._writer

    def _empty(self, cell: Cell, reasons: tuple[InvalidReason, ...]) -> CellMeasurement:
        return CellMeasurement(
            target=cell.target.name,
            config=cell.config.name,
            workload=cell.workload.name,
            mode=self.settings.mode_for(cell.target.name),
            hardware_class=self.settings.hardware_class(cell.target),
            plan_digest=self._plan(cell).digest,
            sessions=(),
            invalid_reasons=reasons,
        )

    def _write_files(self) -> None:
        directory = self.settings.results_directory
        directory.mkdir(parents=True, exist_ok=True)
        write_measurement_file(
            directory / "measurements.json",
            MeasurementFile(
                run_id=self.settings.run_id,
                commit=self.settings.commit,
                created_at_utc=utc_now(),
                identity=self._identity,
                cells=tuple(result.measurement for result in self._results.values()),
                injected=self.settings.experiment["injected"],
            ),
        )
        replace_file(
            directory / "verdict.json",
            self._verdict_document().to_json(),
        )

    def _injection_notes(self) -> tuple[str, ...]:
        """What a reader of the verdict must know of a run whose candidate was made
        worse on purpose.
        """
        faults = self.settings.experiment["injected"]
        return (f"a fault was put into the candidate on purpose: {faults}",) if faults else ()

    def _verdict_document(self) -> VerdictDocument:
        verdict = self.verdict()
        notes = self._injection_notes()
        return VerdictDocument(
            schema_version=1,
            run_id=self.settings.run_id,
            commit=self.settings.commit,
            created_at_utc=utc_now(),
            vllm_version=self._identity.get("vllm", "absent"),
            false_alarm_budget=verdict.false_alarm_budget,
            gated_metric_count=verdict.gated_metric_count,
            cells=tuple(replace(cell, notes=(*cell.notes, *notes)) for cell in verdict.cells),
        )
