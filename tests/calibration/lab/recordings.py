"""Recorded sessions to what the self-test replays, with the reasons why a recording is
left out. Pure.

A replay splits one cell's sessions at random into a baseline's and a candidate's, so a
recording must hold enough of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from k3perf.config.models import MeasurementPlan
from k3perf.config.tolerances import ToleranceFile
from k3perf.records.measurement import CellMeasurement, RoundMetrics, SessionMetrics
from k3perf.records.metric_definitions import METRICS, Comparison, Scope
from k3perf.records.samples import Arm

BASELINE_SESSIONS: Final = 6
CANDIDATE_SESSIONS: Final = 3
"""The fewest of each that a replay needs. Of a longer recording the candidate gets up
to four and the baseline the rest: a recording has few cells to pool, so that it needs
more sessions of each than a suite does.
"""

NEEDED_SESSIONS: Final = BASELINE_SESSIONS + CANDIDATE_SESSIONS
MOST_CANDIDATE_SESSIONS: Final = 4
MINIMUM_ROUNDS: Final = 4
SHORT_SHARE: Final = 2 / 3
"""A session with less than this share of the cell's usual rounds was cut short by
invalid ones; it is left out.
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """The replayable cells of one target and mode, of one file or joined from several,
    and what was left out of it and why.
    """

    name: str
    target: str
    mode: str
    hardware_class: str
    cells: tuple[CellMeasurement, ...]
    left_out: tuple[str, ...]

    @property
    def sessions(self) -> int:
        """The fewest usable sessions of a cell."""
        return min(len(usable_sessions(cell)) for cell in self.cells)

    @property
    def rounds(self) -> int:
        """The fewest usable rounds of a session."""
        return min(
            len(paired_rounds(*pair)) for cell in self.cells for pair in usable_sessions(cell)
        )

    def plan(self) -> MeasurementPlan:
        """Up to four sessions for the candidate, the rest for the baseline, at least
        six.
        """
        candidate = min(MOST_CANDIDATE_SESSIONS, self.sessions - BASELINE_SESSIONS)
        return MeasurementPlan.model_validate(
            {
                "mode": self.mode,
                "baseline_sessions": self.sessions - candidate,
                "maximum_sessions": candidate,
                "maximum_suspect_sessions": candidate,
                "minimum_rounds": MINIMUM_ROUNDS,
                "maximum_rounds": self.rounds,
            }
        )


def recordings_of_files(
    files: Mapping[str, Sequence[CellMeasurement]],
    declared: ToleranceFile | None = None,
    preferred: Sequence[str] = (),
) -> tuple[list[Recording], list[str]]:
    """Every file's recordings, then what several files hold together; and sentences for
    what cannot be replayed.

    ``declared``: the suite's tolerances, which say what configs pool their noise apart
    from their siblings'; None: none does. ``preferred``: the metrics to replay where
    they were recorded, as in ``recorded_metrics``.

    A cell of which one file alone has too few sessions is joined with the same cell of
    others: same requests, hardware class, mode and vLLM release. Its noise then holds
    what differs from run to run and from host to host, as a committed baseline of
    several runs does.
    """
    alone: dict[str, list[CellMeasurement]] = {name: [] for name in files}
    short: dict[tuple[str, ...], list[tuple[str, CellMeasurement]]] = {}
    for name, cells in files.items():
        for cell in cells:
            if cell.mode == "baseline" and len(usable_sessions(cell)) < NEEDED_SESSIONS:
                key = (
                    cell.target,
                    cell.config,
                    cell.workload,
                    cell.hardware_class,
                    cell.plan_digest,
                    cell.vllm_release,
                )
                short.setdefault(key, []).append((name, cell))
            else:
                alone[name].append(cell)
    few: dict[str, list[str]] = {}
    for (target, config, workload, hardware_class, *_), parts in short.items():
        sessions = _joined_sessions(parts)
        if len(sessions) < NEEDED_SESSIONS:
            few.setdefault(f"{target} on {hardware_class}", []).append(
                f"{config}/{workload} {len(sessions)}"
            )
        else:
            names = ", ".join(dict.fromkeys(name for name, _ in sessions))
            alone.setdefault(names, []).append(
                replace(parts[0][1], sessions=tuple(session for _, session in sessions))
            )
    found: list[Recording] = []
    left_out: list[str] = []
    for name, kept in alone.items():
        recordings, objections = recordings_of(name, kept, declared, preferred)
        found += recordings
        left_out += objections
    left_out += [
        f"{place} in baseline mode: too few usable sessions ({', '.join(cells)}), a replay needs"
        f" {NEEDED_SESSIONS}"
        for place, cells in few.items()
    ]
    return found, left_out


def _joined_sessions(
    parts: Iterable[tuple[str, CellMeasurement]],
) -> list[tuple[str, SessionMetrics]]:
    """The valid candidate sessions of all parts with the part's name, each once. Those
    with fewer rounds than is usual among them would shorten all others: they are left
    out where enough are left without them, and always when they were cut short.
    """
    found = {
        session.session_id: (name, session)
        for name, cell in parts
        for session in cell.arm(Arm.CANDIDATE)
        if not session.invalid_reasons
    }
    counts = {key: len(paired_rounds(session, None)) for key, (_, session) in found.items()}
    usual = sorted(counts.values())[len(counts) // 2] if counts else 0
    whole = [found[key] for key, count in counts.items() if count >= usual]
    if len(whole) >= NEEDED_SESSIONS:
        return whole
    return [found[key] for key, count in counts.items() if count >= SHORT_SHARE * usual]


def recordings_of(
    name: str,
    cells: Iterable[CellMeasurement],
    declared: ToleranceFile | None = None,
    preferred: Sequence[str] = (),
) -> tuple[list[Recording], list[str]]:
    """A file's cells by target, mode and whose noise they share, and one sentence for
    each cell that cannot be replayed.

    A replay tries one tolerance a metric on all its cells and pools their noise, so
    configs with tolerances of their own for a replayed metric are replayed apart, under
    a name that says which they are.
    """
    kept: dict[tuple[str, str, str], dict[str, list[CellMeasurement]]] = {}
    left_out: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for cell in cells:
        key = (cell.target, cell.mode, cell.hardware_class)
        pool = _pool_of(cell, declared, preferred)
        problem = _objection(cell)
        if problem:
            left_out.setdefault(key, {}).setdefault(pool, []).append(
                f"{name}: {cell.target}/{cell.config}/{cell.workload} in {cell.mode} mode:"
                f" {problem}"
            )
        else:
            kept.setdefault(key, {}).setdefault(pool, []).append(cell)
    found = [
        Recording(
            _part_name(name, pool, members),
            *key,
            tuple(members),
            tuple(left_out.get(key, {}).get(pool, ())),
        )
        for key, pools in sorted(kept.items())
        for pool, members in sorted(pools.items())
    ]
    return found, [
        text for parts in left_out.values() for texts in parts.values() for text in texts
    ]


def _pool_of(
    cell: CellMeasurement, declared: ToleranceFile | None, preferred: Sequence[str]
) -> str:
    """Equal for cells that share their noise in the replayed metrics: empty for those
    without tolerances of their own for any of them, else what these are.
    """
    own = {} if declared is None else declared.own(cell.target).get(cell.config, {})
    replayed = recorded_metrics([cell], preferred) if own else ()
    return "; ".join(
        f"{name} {tolerance!r}" for name, tolerance in sorted(own.items()) if name in replayed
    )


def _part_name(name: str, pool: str, members: Sequence[CellMeasurement]) -> str:
    """A file's rows would have one name otherwise."""
    return (
        f"{name} ({', '.join(sorted({cell.config for cell in members}))} apart)" if pool else name
    )


def _objection(cell: CellMeasurement) -> str:
    if cell.mode == "ab":
        return "an ab run has no baseline to be split off"
    usable = usable_sessions(cell)
    if len(usable) < NEEDED_SESSIONS:
        return f"{len(usable)} usable sessions, a replay needs {NEEDED_SESSIONS}"
    rounds = min(len(paired_rounds(*pair)) for pair in usable)
    if rounds < MINIMUM_ROUNDS:
        return f"a session of {rounds} usable rounds, a replay needs {MINIMUM_ROUNDS}"
    if not recorded_metrics([cell]):
        return "no statistical metric was recorded in every valid round"
    return ""


def usable_sessions(cell: CellMeasurement) -> list[tuple[SessionMetrics, SessionMetrics | None]]:
    """Valid candidate sessions that were not cut short, outside baseline mode each with
    the valid reference session beside it.
    """
    references = {
        session.pair_id: session
        for session in cell.arm(Arm.REFERENCE)
        if session.pair_id is not None
    }
    found: list[tuple[SessionMetrics, SessionMetrics | None]] = []
    for session in cell.arm(Arm.CANDIDATE):
        beside = (
            references.get(session.pair_id)
            if session.pair_id is not None and cell.mode != "baseline"
            else None
        )
        if session.invalid_reasons or (beside is not None and beside.invalid_reasons):
            continue
        if cell.mode == "baseline" or beside is not None:
            found.append((session, beside))
    counts = [len(paired_rounds(*pair)) for pair in found]
    usual = sorted(counts)[len(counts) // 2] if counts else 0
    return [pair for pair, count in zip(found, counts, strict=True) if count >= SHORT_SHARE * usual]


def paired_rounds(
    session: SessionMetrics, beside: SessionMetrics | None
) -> list[tuple[RoundMetrics, RoundMetrics | None]]:
    """Valid rounds only; with a reference beside, only rounds whose neighbour is valid
    too, so that neighbours stay neighbours.
    """
    own = [measured for measured in session.rounds if not measured.invalid_reasons]
    if beside is None:
        return [(measured, None) for measured in own]
    others = {
        measured.pair_index: measured for measured in beside.rounds if not measured.invalid_reasons
    }
    return [
        (measured, others[measured.pair_index]) for measured in own if measured.pair_index in others
    ]


def recorded_metrics(
    cells: Sequence[CellMeasurement], preferred: Sequence[str] = ()
) -> tuple[str, ...]:
    """The ``preferred`` metrics that every valid round of every cell recorded as a
    positive number; without any, whichever statistical round metrics did.
    """

    def complete(name: str) -> bool:
        rounds = [
            r
            for cell in cells
            for s in cell.sessions
            if not s.invalid_reasons
            for r in s.rounds
            if not r.invalid_reasons
        ]
        values = [
            measured.values[name].value if name in measured.values else None for measured in rounds
        ]
        return bool(values) and all(value is not None and value > 0 for value in values)

    statistical = [
        m.name
        for m in METRICS.values()
        if m.comparison is Comparison.STATISTICAL and m.scope is Scope.ROUND
    ]
    found = tuple(name for name in statistical if complete(name))
    return tuple(name for name in preferred if name in found) or found
