"""One cell measured: sessions and rounds are bought while the gate is undecided, within
the target's plan.

The arms of a comparison alternate as finely as the device allows: rounds (both engines
resident, the idle one frozen) or sessions. The order within a pair is ABBA, so that a
linear drift cancels.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from k3perf.config.suite import Cell
from k3perf.errors import EngineError, MeasurementInvalid, PreflightError
from k3perf.metrics.resolved import forced_by
from k3perf.records.measurement import CellMeasurement, SessionMetrics
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm, EngineFailure, InvalidReason, RoundKind, SessionRecord
from k3perf.records.verdict import Buy, CellVerdict
from k3perf.run.gate_keeper import GateKeeper
from k3perf.run.live import LiveEngine, RoundPlace, SessionLog
from k3perf.run.patience import RecordingStopped
from k3perf.run.pool import EnginePool, RepeatedCrashError, Wanted
from k3perf.run.progress import Progress, RoundDone
from k3perf.run.quality_pass import QualityPass
from k3perf.run.rounds import RoundRunner
from k3perf.run.settings import arm_name

_LONGEST_TEXT: Final = 2_000  # a verdict file with a longer text would be refused


@dataclass
class CellRun:
    """The measurement of one cell in one run. ``nothing`` is its measurement without a
    session.

    ``measure`` is called once. Then ``lost`` has a sentence for each session that died.
    """

    cell: Cell
    nothing: CellMeasurement
    wanted: tuple[Wanted, ...]
    pool: EnginePool
    rounds: RoundRunner
    keeper: GateKeeper
    progress: Progress
    quality: QualityPass | None = None
    sessions: list[SessionMetrics] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    session_number: int = 0
    # the sessions whose rounds alternate now, and how many rounds they want
    _beside: list[SessionLog] = field(default_factory=list)
    _goal: int = 0

    def measure(self) -> tuple[CellMeasurement, CellVerdict]:
        """Buy sessions until the gate is decided or the plan is spent; an engine's
        death is an INVALID reason, never an exception.
        """
        plan = self.cell.target.measurement
        reasons: tuple[InvalidReason, ...] = ()
        verdict: CellVerdict | None = None
        for session_index in range(plan.suspect_sessions):
            last = session_index + 1 >= self._most_sessions(verdict)
            try:
                verdict = self._measure_session(session_index)
            except EngineError as error:
                # whatever failed, no engine that may hang is used again
                self.pool.stop_all()
                if isinstance(error, RepeatedCrashError) or last:
                    reasons = (engine_reason(error),)
                    self.lost = [
                        note
                        for note in self.lost
                        if not error.root_cause or error.root_cause not in note
                    ]
                    break
                self.progress.note(
                    f"{self.cell.cell_id}: the engine failed, starting it once more:"
                    f" {error.root_cause or error.message}"
                )
                self.lost.append(
                    f"session {session_index + 1} was lost and repeated:"
                    f" {engine_reason(error).text}"
                )
                continue
            # this session cannot give the rounds that are still asked for: another may
            if verdict.buy is Buy.NOTHING and session_index + 1 >= plan.minimum_sessions:
                break
            most = self._most_sessions(verdict)
            if session_index + 1 >= most:
                break
            until_count = min(max(verdict.buy_until_sessions, session_index + 2), most)
            self.progress.undecided(self.cell.cell_id, until_count, 0)
        measurement = replace(self.nothing, sessions=tuple(self.sessions), invalid_reasons=reasons)
        if reasons or verdict is None:
            verdict = self.keeper.judge(self.cell, measurement)
        # an engine that dies now and then must not pass in silence
        return measurement, replace(verdict, notes=(*verdict.notes, *self.lost))

    def _most_sessions(self, verdict: CellVerdict | None) -> int:
        """The plan's maximum, or that of suspected losses while there is one."""
        plan = self.cell.target.measurement
        metrics = () if verdict is None else verdict.metrics
        suspect = any(metric.outcome is Outcome.SUSPECT for metric in metrics)
        return plan.suspect_sessions if suspect else plan.maximum_sessions

    def record_session(self) -> None:
        """One session with the full number of rounds and no judgement: what baselines
        are made of. EngineError when it dies, RecordingStopped on a busy machine.
        """
        self.rounds.wait_for_quiet()
        self._measure_session(0, judged=False)

    def _measure_session(self, session_index: int, *, judged: bool = True) -> CellVerdict:
        self.session_number = session_index + 1
        pair_id = uuid.uuid4().hex[:12] if len(self.wanted) > 1 else None
        if self.cell.target.measurement.interleave == "rounds" or len(self.wanted) == 1:
            if session_index:
                self.pool.stop_all()
            lives = self.pool.acquire(self.wanted)
            return self._alternate_rounds(lives, pair_id, judged=judged)
        return self._alternate_sessions(session_index, pair_id, judged=judged)

    def _alternate_rounds(
        self, lives: Sequence[LiveEngine], pair_id: str | None, *, judged: bool
    ) -> CellVerdict:
        plan = self.cell.target.measurement
        logs = [self.rounds.open(live, pair_id) for live in lives]
        goal = plan.minimum_rounds if judged else plan.maximum_rounds
        with _OneAwake(lives) as awake:
            for log in logs:
                awake.only(log.live)
                self._warm_up(log)
            while True:
                self._rounds_up_to(goal, logs, awake)
                awake.all()
                records = [self.rounds.record(log) for log in logs]
                current = [self.rounds.metrics(record) for record in records]
                verdict = self._verdict([*self.sessions, *current], lives, judged=judged)
                wanted = min(verdict.buy_until_rounds, plan.maximum_rounds)
                if not judged or verdict.buy is not Buy.ROUNDS or wanted <= goal:
                    # also where repeats are spent: this session cannot give more then
                    break
                goal = wanted
                self.progress.undecided(self.cell.cell_id, 0, goal)
            awake.all()
        records = self._with_quality(lives, records)
        current = [self.rounds.metrics(record) for record in records]
        for record in records:
            self.rounds.end(record)
        self.sessions += current
        return self._verdict(self.sessions, lives, judged=judged)

    def _alternate_sessions(
        self, session_index: int, pair_id: str | None, *, judged: bool
    ) -> CellVerdict:
        # a stopped engine sells no more rounds
        goal = self.cell.target.measurement.maximum_rounds
        order = self.wanted if session_index % 2 == 0 else tuple(reversed(self.wanted))
        for item in order:
            self.pool.stop_all()
            (live,) = self.pool.acquire((item,))
            log = self.rounds.open(live, pair_id)
            with _OneAwake((live,)) as awake:
                self._warm_up(log)
                self._rounds_up_to(goal, [log], awake)
            if item.arm is Arm.CANDIDATE:
                candidate = live
            (record,) = self._with_quality((live,), [self.rounds.record(log)])
            self.rounds.end(record)
            self.sessions.append(self.rounds.metrics(record))
        return self._verdict(self.sessions, [candidate], judged=judged)

    def _with_quality(
        self, lives: Sequence[LiveEngine], records: list[SessionRecord]
    ) -> list[SessionRecord]:
        """The engines' answers, asked after rounds and memory were read."""
        return records if self.quality is None else self.quality.of_pair(self.cell, lives, records)

    def _verdict(
        self, sessions: Sequence[SessionMetrics], lives: Sequence[LiveEngine], *, judged: bool
    ) -> CellVerdict:
        """The gate's verdict, with the engine's own word on who forced each changed
        value, where its log has one.
        """
        if not judged:
            names = (self.nothing.target, self.nothing.config, self.nothing.workload)
            return CellVerdict(*names, self.nothing.mode, ())
        verdict = self.keeper.judge(self.cell, replace(self.nothing, sessions=tuple(sessions)))
        if not verdict.differences:
            return verdict
        candidate = next(live for live in lives if live.arm is Arm.CANDIDATE)
        if candidate.outside:  # its log is elsewhere
            return verdict
        lines = candidate.engine.log.lines()
        return replace(
            verdict,
            differences=tuple(
                replace(d, forced_by=forced_by(d.key, lines)) for d in verdict.differences
            ),
        )

    def _warm_up(self, log: SessionLog) -> None:
        warmed = log.live.warmed_workloads
        count = self.cell.target.measurement.warm_up_rounds
        if self.cell.workload.name in warmed:
            # the engine has seen this workload; one round settles its caches again
            count = min(count, 1)
        for index in range(count):
            self._one_round(log, RoundPlace(index - count, RoundKind.WARM_UP, None))
        warmed.add(self.cell.workload.name)
        self.rounds.reset_peaks(log)

    def _rounds_up_to(self, goal: int, logs: list[SessionLog], awake: _OneAwake) -> None:
        """Measure pairs until every arm has ``goal`` valid pairs; an invalid round
        repeats its pair, within the session's budget.
        """
        done_count = sum(1 for r in logs[0].rounds if r.kind is RoundKind.MEASURED)
        repeats_left = self.cell.target.measurement.repeat_invalid_rounds - (
            done_count - _valid_pairs(logs)
        )
        pair_index = (
            max(
                (r.pair_index for log in logs for r in log.rounds if r.pair_index is not None),
                default=-1,
            )
            + 1
        )
        valid_count = _valid_pairs(logs)
        self._beside, self._goal = logs, goal
        while valid_count < goal:
            for log in logs if pair_index % 2 == 0 else list(reversed(logs)):
                awake.only(log.live)
                self._one_round(log, RoundPlace(pair_index, RoundKind.MEASURED, pair_index))
            pair_index += 1
            now_valid = _valid_pairs(logs)
            if now_valid == valid_count:
                repeats_left -= 1
                if repeats_left < 0:
                    return
                self.rounds.wait_for_quiet()
            valid_count = now_valid

    def _one_round(self, log: SessionLog, place: RoundPlace) -> None:
        arm = arm_name(log.live.arm, self.nothing.mode)
        self.progress.measuring(arm)
        record = self.rounds.measure(log, place)
        self.progress.round(
            RoundDone(
                cell=self.cell.cell_id,
                arm=arm,
                session_number=self.session_number,
                number=sum(1 for r in log.rounds if r.kind is RoundKind.MEASURED),
                valid_count=_valid_pairs(self._beside),
                wanted_count=self._goal,
                arm_count=len(self._beside),
                invalid=record.invalid_reasons[0].text if record.invalid_reasons else "",
            )
        )


class _OneAwake:
    """Keeps at most one of several resident engines running: an idle server still takes
    a share of a core.
    """

    def __init__(self, lives: Sequence[LiveEngine]) -> None:
        self._lives = lives
        self._frozen: set[str] = set()

    def __enter__(self) -> _OneAwake:
        return self

    def __exit__(self, *_: object) -> None:
        self.all()

    def only(self, awake: LiveEngine) -> None:
        """Freeze the others, thaw this one."""
        for live in self._lives:
            if live is not awake and live.session_id not in self._frozen:
                live.engine.freeze()
                self._frozen.add(live.session_id)
        self._thaw(awake)

    def all(self) -> None:
        """Thaw every engine."""
        for live in self._lives:
            self._thaw(live)

    def _thaw(self, live: LiveEngine) -> None:
        if live.session_id in self._frozen:
            live.engine.thaw()
            self._frozen.discard(live.session_id)


def engine_reason(error: MeasurementInvalid) -> InvalidReason:
    """Why a cell was not measured, as the reason of its being INVALID: an engine's
    death, a machine not fit to start, or one that failed later. The first line is the
    message, the root cause follows.
    """
    if isinstance(error, RecordingStopped):
        return error.reason
    text = str(error).splitlines()[0]
    root_cause = error.root_cause if isinstance(error, EngineError) else ""
    failure = None
    if isinstance(error, EngineError):
        failure = EngineFailure(
            text[:_LONGEST_TEXT], root_cause[:_LONGEST_TEXT], error.log_path, error.log_tail
        )
    rules = {EngineError: "engine_died", PreflightError: "not_fit_to_start"}
    rule = next((name for kind, name in rules.items() if isinstance(error, kind)), "machine_failed")
    told = f"{text}; root cause: {' '.join(root_cause.split())}" if root_cause else text
    return InvalidReason(rule, told[:_LONGEST_TEXT], failure=failure)


def _valid_pairs(logs: list[SessionLog]) -> int:
    """Pairs in which every arm's round is valid."""
    valid = [
        {r.pair_index for r in log.rounds if r.kind is RoundKind.MEASURED and r.valid}
        for log in logs
    ]
    return len(set.intersection(*valid)) if valid else 0
