"""Where the time of recorded sessions went, and the costs that follow. Pure.

A whole session lasts from its engine's start to the next engine's start in the same
run. Of that, rounds are measured one by one; the rest is start, warm-up and stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from k3perf.ci.costs import RecordedCosts
from k3perf.config.models import TargetSpec
from k3perf.records.measurement import MeasurementFile, SessionMetrics
from k3perf.records.samples import Arm

LEAST_S = 0.1
"""No cost is 0."""


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """One session of a cell. ``rounds_s``: its measured rounds and those of its
    reference. ``whole_s``: None if no other engine started after it in its run, or if
    several workloads share the engine. ``stages_s``: of the engine's start.
    """

    target: str
    config: str
    workload: str
    run_id: str
    rounds_s: float
    round_count: int
    whole_s: float | None
    stages_s: Mapping[str, float]

    @property
    def cell_id(self) -> str:
        """``target-config-workload``."""
        return f"{self.target}-{self.config}-{self.workload}"


def recorded_sessions(files: Iterable[MeasurementFile]) -> tuple[RecordedSession, ...]:
    """Every session with known times, in order of start in each file."""
    return tuple(session for file in files for session in _of_file(file))


def _of_file(file: MeasurementFile) -> list[RecordedSession]:
    dated = sorted(
        (
            (session.started_at_utc, cell, session)
            for cell in file.cells
            for session in cell.sessions
            if session.arm is Arm.CANDIDATE and session.started_at_utc and _timed(session)
        ),
        key=lambda entry: entry[0],
    )
    starts = sorted({started for started, _, _ in dated})
    found = []
    for started, cell, session in dated:
        alone = sum(other == started for other, _, _ in dated) == 1
        later = next((other for other in starts if other > started), None)
        members = [
            other
            for other in cell.sessions
            if other is session or (session.pair_id and other.pair_id == session.pair_id)
        ]
        found.append(
            RecordedSession(
                target=cell.target,
                config=cell.config,
                workload=cell.workload,
                run_id=file.run_id,
                rounds_s=sum(
                    entry.duration_s or 0.0 for member in members for entry in member.rounds
                ),
                round_count=len(session.rounds),
                whole_s=_between_s(started, later) if alone and later is not None else None,
                stages_s={stage.stage: stage.duration_s for stage in session.stages},
            )
        )
    return found


def _timed(session: SessionMetrics) -> bool:
    """Its rounds were timed, each of them."""
    return bool(session.rounds) and all(entry.duration_s for entry in session.rounds)


def _between_s(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def with_warm_up_s(session: RecordedSession, target: TargetSpec) -> float:
    """Its rounds and the target's warm-up rounds, which take as long each."""
    warm_up_count = target.measurement.warm_up_rounds
    return session.rounds_s * (session.round_count + warm_up_count) / session.round_count


def costs_of_sessions(
    sessions: Iterable[RecordedSession], targets: Mapping[str, TargetSpec]
) -> RecordedCosts:
    """Median rounds of each cell, and what a whole session of each engine takes beyond
    them: start, load and stop. Sessions of targets that are gone say nothing.
    """
    rounds: dict[str, list[float]] = {}
    starts: dict[str, list[float]] = {}
    runs = set()
    for session in sessions:
        target = targets.get(session.target)
        if target is None:
            continue
        runs.add(session.run_id)
        busy_s = with_warm_up_s(session, target)
        rounds.setdefault(session.cell_id, []).append(busy_s)
        if session.whole_s is not None:
            key = f"{session.target}/{session.config}"
            starts.setdefault(key, []).append(session.whole_s - busy_s)
    return RecordedCosts(
        runs=tuple(sorted(runs)),
        engine_start_s=_medians(starts),
        session_s=_medians(rounds),
    )


def _medians(values: Mapping[str, list[float]]) -> dict[str, float]:
    return {key: max(round(median(found), 1), LEAST_S) for key, found in sorted(values.items())}
