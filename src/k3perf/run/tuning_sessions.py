"""Trials of a tuning run on real engines: each is one engine start with its rounds.

A point is the base config with a change. Its engine starts from nothing for every
trial, so what differs from start to start is in the readings. Before a round is
measured the engine's own values are read back: an engine that is known already costs
its start only.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from k3perf.config.models import ConfigSpec, Provenance, TargetSpec
from k3perf.config.suite import Cell, Suite
from k3perf.errors import EngineError, MeasurementInvalid, PreflightError
from k3perf.metrics.resolved import difference
from k3perf.records.measurement import CellMeasurement, SessionMetrics
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm
from k3perf.records.tuning import Change, Fate, TuningReading, TuningTrial, label_of
from k3perf.run.arms import wanted_engines
from k3perf.run.cell_measurement import engine_reason
from k3perf.run.gate_keeper import GateKeeper
from k3perf.run.progress import Progress
from k3perf.run.run_parts import RunParts
from k3perf.run.settings import RunSettings

_NO_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemory|No available memory for the cache|larger than the maximum"
    r" number of tokens that can be stored|less than desired GPU memory utilization"
    r"|Cannot allocate memory",
    re.IGNORECASE,
)
_FEWEST_SHARE: Final = 0.5
"""Share of a session's rounds that must be valid for its mean to stand for it."""


def point_config(base: str, change: Change) -> ConfigSpec:
    """The base config with a change, under a name that is the same in every run. It may
    change several arguments, which no declared config may.
    """
    if not change:
        raise ValueError("a point without a change is the base config itself")
    digest = hashlib.sha256(json.dumps(change, sort_keys=True).encode()).hexdigest()[:10]
    return ConfigSpec.model_construct(
        schema_version=1,
        name=f"tune_{digest}",
        extends=base,
        change=dict(change),
        combines=(),
        why=f"tuning point {label_of(change)}",
        provenance=Provenance(kind="experiment", source="a tuning run", date="2026-12"),
    )


def tuning_target(target: TargetSpec, rounds: int) -> TargetSpec:
    """The target with sessions of exactly ``rounds`` valid rounds, one engine at a
    time.
    """
    plan = target.measurement.model_copy(
        update={
            "mode": "baseline",
            "interleave": "sessions",
            "minimum_rounds": rounds,
            "maximum_rounds": rounds,
        }
    )
    return target.model_copy(update={"measurement": plan})


class TuningSessions:
    """Measures trials. ``close`` it: it holds engines and devices."""

    def __init__(
        self,
        settings: RunSettings,
        target_name: str,
        base: str,
        workload: str,
        progress: Progress,
        *,
        rounds: int,
    ) -> None:
        """``rounds``: valid rounds of each session."""
        target = tuning_target(settings.suite.target(target_name), rounds)
        suite = replace(
            settings.suite,
            configs=dict(settings.suite.configs),
            targets={**settings.suite.targets, target_name: target},
        )
        self.settings = replace(settings, suite=suite, mode="baseline")
        self._target, self._base, self._workload = target, base, workload
        self._rounds = rounds
        self._parts = RunParts(self.settings, [self.cell({}, "")], progress)
        self._resolved: dict[str, dict[str, Any]] = {}

    def know(self, readings: Iterable[TuningReading]) -> None:
        """Take the engines of a resumed run's readings as known."""
        for reading in readings:
            if reading.session is not None:
                self._resolved.setdefault(reading.trial.label, reading.session.resolved_config)

    @property
    def suite(self) -> Suite:
        """The declared suite and every point measured so far."""
        return self.settings.suite

    def cell(self, change: Change, workload: str) -> Cell:
        """The point as a cell of the suite. ``workload`` empty: that of the run."""
        if change:
            spec = point_config(self._base, change)
            self.suite.configs.setdefault(spec.name, spec)
            config = self.suite.config(spec.name)
        else:
            config = self.suite.config(self._base)
        return Cell(
            self._target,
            config,
            self.suite.workload(workload or self._workload),
            self.suite.engine_arguments(self._target, config),
        )

    def plan_digest(self, workload: str = "") -> str:
        """What is sent. Part of the run's fingerprint."""
        return self._parts.plan(self.cell({}, workload)).digest

    def check_inputs(self, workload: str = "") -> None:
        """Expand the plan and read what the gate needs. Raises UsageError."""
        cell = self.cell({}, workload)
        self._parts.plan(cell)
        self._parts.keeper.policy(cell)
        self._parts.rules(cell)

    def __call__(self, trial: TuningTrial) -> TuningReading:
        """Start the point's engine and measure its rounds. A failure of the engine or a
        spoiled session is a reading.

        Raises PreflightError if the machine is not fit to start an engine: that says
        nothing about the point, and the run can be continued later.
        """
        begin_s = time.monotonic()
        cell = self.cell(trial.change, trial.workload)
        try:
            with self._parts.machine_faults_invalidate():
                reading = self._session(trial, cell)
        except PreflightError:
            self._parts.pool.stop_all()
            raise
        except MeasurementInvalid as error:
            reading = TuningReading(trial, _fate(error), 0.0, text=engine_reason(error).text)
        try:
            self._parts.pool.stop_all()
        except OSError as error:
            reading = TuningReading(trial, Fate.INVALID, 0.0, text=str(error))
        return replace(reading, duration_s=round(time.monotonic() - begin_s, 3))

    def expect(self, trial: TuningTrial | None) -> None:
        """Import vLLM for this trial's engine while the one before it loads, if the
        target does that.
        """
        if trial is None:
            self._parts.pool.expect(None)
        else:
            (wanted,) = wanted_engines(self.cell(trial.change, trial.workload), self.settings)
            self._parts.pool.expect(wanted)

    def close(self) -> None:
        """Stop engines, give devices back."""
        self._parts.close()

    def _session(self, trial: TuningTrial, cell: Cell) -> TuningReading:
        pool = self._parts.pool
        pool.stop_all()
        pool.forget_crashes()  # the run's ledger decides what is tried again
        (live,) = pool.acquire(wanted_engines(cell, self.settings))
        same = self._same_engine(trial, live.resolved_config)
        if same:
            return TuningReading(trial, Fate.SAME_ENGINE, 0.0, same_as=same)
        run = self._parts.cell_run(cell)
        run.record_session()
        session = run.sessions[-1]
        self._resolved.setdefault(trial.label, session.resolved_config)
        return self._reading(trial, session)

    def _same_engine(self, trial: TuningTrial, resolved: dict[str, Any]) -> str:
        """The label of a known point with this very engine. Empty where there is none,
        or where a changed argument has no value that can be read back.
        """
        from k3perf.metrics.environment import without_environment

        read = {key.rpartition(".")[2] for key in resolved}
        if not read.issuperset(trial.change):
            return ""
        mine = without_environment(resolved)
        return next(
            (
                label
                for label, known in self._resolved.items()
                if label != trial.label and not difference(known, mine)
            ),
            "",
        )

    def _reading(self, trial: TuningTrial, session: SessionMetrics) -> TuningReading:
        valid = [one for one in session.rounds if not one.invalid_reasons]
        broken = [*session.invalid_reasons, *(r for o in session.rounds for r in o.invalid_reasons)]
        if session.invalid_reasons or len(valid) < self._rounds * _FEWEST_SHARE:
            text = broken[0].text if broken else "no valid round"
            return TuningReading(trial, Fate.INVALID, 0.0, len(session.rounds), text=text)
        values: dict[str, float] = {
            name: value.value for name, value in session.values.items() if value.value is not None
        }
        for name in valid[0].values:
            found = [one.values[name].value for one in valid if name in one.values]
            known = [value for value in found if value is not None]
            if known and len(known) == len(found):
                values[name] = sum(known) / len(known)
        counts = [one.values["ttft_p99_ms"].n for one in valid if "ttft_p99_ms" in one.values]
        base = self._resolved.get(label_of({}), {})
        effective = {
            one.key: f"{one.was} -> {one.now}"
            for one in difference(base, session.resolved_config)
            if base
        }
        return TuningReading(
            trial,
            Fate.MEASURED,
            0.0,
            round_count=len(valid),
            request_count=min(counts, default=0),
            values=values,
            effective=effective,
            session=session,
        )


class TuningJudge:
    """The gate on a point against its parent: sessions of one block are a pair,
    compared with 1 as in ``ab`` mode.
    """

    def __init__(self, sessions: TuningSessions, point_count: int) -> None:
        """``point_count``: points that may be judged. They share the error rate."""
        self._sessions = sessions
        self._points = point_count
        self._keeper: GateKeeper | None = None

    def __call__(
        self, readings: Sequence[TuningReading], point: Change, parent: Change
    ) -> tuple[str, ...]:
        """The metrics that the gate calls REGRESSED."""
        workload = next((one.trial.workload for one in readings), "")
        cell = self._sessions.cell(point, workload)
        if self._keeper is None:
            cells = [self._sessions.cell({}, workload)] * self._points
            self._keeper = GateKeeper(replace(self._sessions.settings, mode="ab"), cells)
        verdict = self._keeper.judge(cell, self.measurement(readings, point, parent, cell))
        return tuple(
            metric.metric for metric in verdict.metrics if metric.outcome is Outcome.REGRESSED
        )

    def measurement(
        self, readings: Sequence[TuningReading], point: Change, parent: Change, cell: Cell
    ) -> CellMeasurement:
        """The pairs of every block in which both have a session."""
        return paired_measurement(
            readings,
            point,
            parent,
            names=(cell.target.name, cell.config.name, cell.workload.name),
            hardware_class=self._sessions.settings.hardware_class(cell.target),
            plan_digest=self._sessions.plan_digest(cell.workload.name),
        )


def paired_measurement(
    readings: Sequence[TuningReading],
    point: Change,
    parent: Change,
    *,
    names: tuple[str, str, str],
    hardware_class: str,
    plan_digest: str,
) -> CellMeasurement:
    """Candidate and reference sessions of one block share a ``pair_id``, as the gate
    reads them.
    """
    sessions: list[SessionMetrics] = []
    blocks: dict[tuple[str, int], dict[str, SessionMetrics]] = {}
    for reading in readings:
        if reading.session is not None and reading.fate is Fate.MEASURED:
            place = (reading.trial.stage, reading.trial.block)
            blocks.setdefault(place, {})[reading.trial.label] = reading.session
    for number, found in enumerate(blocks.values()):
        mine, other = found.get(label_of(point)), found.get(label_of(parent))
        if mine is None or other is None:
            continue
        pair = f"block-{number}"
        sessions += [
            replace(other, arm=Arm.REFERENCE, pair_id=pair),
            replace(mine, arm=Arm.CANDIDATE, pair_id=pair),
        ]
    target, config, workload = names
    return CellMeasurement(
        target=target,
        config=config,
        workload=workload,
        mode="ab",
        hardware_class=hardware_class,
        plan_digest=plan_digest,
        sessions=tuple(sessions),
    )


def _fate(error: MeasurementInvalid) -> Fate:
    """Whether an engine could not be started for lack of memory, died, or the machine
    was not fit.
    """
    if not isinstance(error, EngineError):
        return Fate.INVALID
    text = "\n".join((str(error), error.root_cause, *error.log_tail))
    return Fate.NO_MEMORY if _NO_MEMORY.search(text) else Fate.CRASHED
