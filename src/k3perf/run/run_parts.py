"""What the cells of one run share: settings, engines, sampler and files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from k3perf.config.gated import statistical_metric_count
from k3perf.config.suite import Cell
from k3perf.errors import MeasurementInvalid
from k3perf.metrics.session_values import SERVING_METRICS
from k3perf.metrics.validity import ValidityRules, rules_of, without_timings
from k3perf.records.measurement import CellMeasurement
from k3perf.records.samples import InvalidReason
from k3perf.records.verdict import CellVerdict
from k3perf.run.arms import arm_notes, wanted_engines
from k3perf.run.cell_measurement import CellRun
from k3perf.run.cell_notes import CellNotes
from k3perf.run.gate_keeper import GateKeeper
from k3perf.run.outside_notes import lock_problem, outside_notes
from k3perf.run.outside_pool import OutsidePool
from k3perf.run.patience import FirstRounds
from k3perf.run.pool import EnginePool
from k3perf.run.progress import Progress
from k3perf.run.quality_books import BookCache
from k3perf.run.quality_pass import QualityPass
from k3perf.run.results_folder import ResultsFolder
from k3perf.run.rounds import RoundRunner
from k3perf.run.settings import RunSettings
from k3perf.store.found_rates import found_rate_per_s
from k3perf.store.results import CellKey
from k3perf.telemetry.sampler import Sampler
from k3perf.telemetry.visible import target_device_indices
from k3perf.workload.request_plan import Plan, expand


@dataclass(frozen=True, slots=True)
class CellResult:
    """A measured cell with its verdict."""

    measurement: CellMeasurement
    verdict: CellVerdict


class RunSampler:
    """The sampler of a run over the pool's processes and the cells' devices."""

    def __init__(self, pool: EnginePool, cells: Sequence[Cell]) -> None:
        self._pool = pool
        # by index: a device that cannot be read is then reported, not missed
        self._devices = tuple(
            sorted(
                {
                    index
                    for cell in cells
                    if cell.target.hardware.kind == "nvidia"
                    for index in target_device_indices(cell.target.hardware)
                }
            )
        )
        self._sampler: Sampler | None = None
        self._exit = contextlib.ExitStack()

    def running(self) -> Sampler:
        """Another one after it ended by itself, so that one failure costs one cell."""
        if self._sampler is None or self._sampler.failure:
            self._sampler = self._exit.enter_context(
                Sampler(self._pool.pids, self._devices, ranks_count=self._pool.engines_count)
            )
        return self._sampler

    def close(self) -> None:
        """End every one."""
        self._exit.close()


class RunParts:
    """Owns what has to be given back at the end (``close``)."""

    def __init__(self, settings: RunSettings, cells: Sequence[Cell], progress: Progress) -> None:
        self.settings = settings
        self.cells = tuple(cells)
        self.progress = progress
        self.keeper = GateKeeper(settings, self.cells)
        self.notes = CellNotes(settings.suite, settings.baselines_directory)
        self.pool: EnginePool = (
            OutsidePool(settings, progress) if settings.servers else EnginePool(settings, progress)
        )
        books = BookCache(settings.cache_directory / "quality")
        self.quality = QualityPass(settings, self.pool, progress, books)
        self.folder = ResultsFolder(settings)
        # the devices of a running server may be elsewhere
        self._sampler = RunSampler(self.pool, () if settings.servers else self.cells)
        self._plans: dict[str, Plan] = {}

    def plan(self, cell: Cell) -> Plan:
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

    def rules(self, cell: Cell) -> ValidityRules:
        """The cell's validity rules. Those of a quiet machine only if something needs
        one.
        """
        rules = rules_of(cell.target)
        gated = self.settings.suite.tolerances.for_cell(
            cell.target.name, cell.config.name, cell.workload.name
        )
        timed = statistical_metric_count(self.settings.suite, (cell,))
        return rules if timed or SERVING_METRICS & gated.keys() else without_timings(rules)

    def key(self, cell: Cell) -> CellKey:
        """The cell's name in ``results.jsonl``."""
        mode = self.settings.mode_for(cell.target.name)
        names = (cell.target.name, cell.config.name, cell.workload.name)
        return CellKey(*names, mode, self.plan(cell).digest)

    def nothing(self, cell: Cell, *reasons: InvalidReason) -> CellMeasurement:
        """The cell's measurement without a session, because of ``reasons``."""
        return CellMeasurement(
            target=cell.target.name,
            config=cell.config.name,
            workload=cell.workload.name,
            mode=self.settings.mode_for(cell.target.name),
            hardware_class=self.settings.hardware_class(cell.target),
            plan_digest=self.plan(cell).digest,
            sessions=(),
            invalid_reasons=reasons,
        )

    def cell_run(self, cell: Cell, first_rounds: FirstRounds | None = None) -> CellRun:
        """``first_rounds``: those of the recording that the run is a part of."""
        rounds = RoundRunner(
            cell=cell,
            plan=self.plan(cell),
            pool=self.pool,
            sampler=self._sampler.running(),
            rules=self.rules(cell),
            folder=self.folder,
            notes=self.notes,
            progress=self.progress,
            first_rounds=first_rounds,
            quiet_wait_s=0.0 if first_rounds is None else self.settings.quiet_wait_s,
        )
        return CellRun(
            cell=cell,
            nothing=self.nothing(cell),
            wanted=wanted_engines(cell, self.settings),
            pool=self.pool,
            rounds=rounds,
            keeper=self.keeper,
            quality=self.quality,
            progress=self.progress,
        )

    def result(self, cell: Cell, measurement: CellMeasurement, verdict: CellVerdict) -> CellResult:
        """The verdict gets the notes that judge nothing, the arms of ``ab`` and a
        replayed trace's provenance among them.
        """
        arms = (*arm_notes(self.settings, measurement), *self._outside_notes(cell, measurement))
        named = replace(verdict, notes=(*arms, *verdict.notes))
        noted = self.notes.add(cell, measurement, named)
        noted = self.keeper.attribute(cell, measurement, noted)
        trace = self.plan(cell).trace
        if trace is not None:
            noted = replace(noted, notes=(*noted.notes, trace.text))
        return CellResult(measurement, noted)

    def _outside_notes(self, cell: Cell, measurement: CellMeasurement) -> tuple[str, ...]:
        if not isinstance(self.pool, OutsidePool):
            return ()
        return outside_notes(
            self.pool.seen_servers(),
            self.keeper.baseline(cell),
            measurement,
            used_again=self.pool.used_again(),
        )

    def lock_problem(self) -> str:
        """Why no key of the configuration could be compared. Empty: some could."""
        servers = self.pool.seen_servers() if isinstance(self.pool, OutsidePool) else ()
        return lock_problem(servers)

    def expect_after(self, cell: Cell, coming: Sequence[Cell], again: Cell | None = None) -> None:
        """Say to the pool which engine comes after this cell's: that of the first of
        ``coming`` that needs another, else that of ``again``.
        """
        now = wanted_engines(cell, self.settings)
        others = [wanted_engines(other, self.settings) for other in coming]
        others = [wanted for wanted in others if wanted != now]
        if again is not None:
            others.append(wanted_engines(again, self.settings))
        self.pool.expect(others[0][0] if others and len(others[0]) == 1 else None)

    @contextlib.contextmanager
    def machine_faults_invalidate(self) -> Iterator[None]:
        """A full disk, a folder that cannot be written, no process or descriptor left:
        the machine's fault, never a traceback or a loss.
        """
        try:
            yield
        except OSError as error:
            # what cannot be stopped now ends with the run: the guardian sees to it
            with contextlib.suppress(OSError):
                self.pool.stop_all()
            raise MeasurementInvalid(
                f"the machine failed while the cell was measured: {error}"
            ) from error

    def close(self) -> None:
        """Stop engines and sampler, give the devices back. Safe to call twice."""
        with contextlib.ExitStack() as ending:
            ending.callback(self.folder.close)
            ending.callback(self._sampler.close)
            ending.callback(self.pool.close)
