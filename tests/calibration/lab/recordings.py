"""Recorded sessions to what the self-test replays, with the reasons why a recording is
left out. Pure.

A replay splits one cell's sessions at random into a baseline's and a candidate's, so a
recording must hold enough of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from k3perf.baselines.testable import CATCH_MISS, smallest_tolerance
from k3perf.config.models import MeasurementPlan, Tolerance, ToleranceFile
from k3perf.gate.metric_verdict import analyses_of, limits_of
from k3perf.metrics.loss_scale import scale_for
from k3perf.records.measurement import CellMeasurement, RoundMetrics, SessionMetrics
from k3perf.records.metric_definitions import METRICS, Comparison, Direction, Scope
from k3perf.records.samples import Arm
from k3perf.stats.estimators import locate, sample_variance
from k3perf.stats.noise import MetricNoise
from k3perf.stats.reference import Level, cell_reference
from tests.calibration.lab.replay import CellSource, Session, Setting
from tests.calibration.lab.simulation import Rounds

BASELINE_SESSIONS: Final = 6
CANDIDATE_SESSIONS: Final = 3
"""The fewest of each that a replay needs. Of a longer recording the candidate gets up
to four and the baseline the rest: a recording has few cells to pool, so that it needs
more sessions of each than a suite does.
"""

NEEDED_SESSIONS: Final = BASELINE_SESSIONS + CANDIDATE_SESSIONS
MOST_CANDIDATE_SESSIONS: Final = 4
MINIMUM_ROUNDS: Final = 4
NOISE_SHARE: Final = 0.25
"""The noise between sessions, as a share of the tolerance, up to which the promises
hold.
"""

UNLUCKY_SHARE: Final = 0.1
"""``accept`` would refuse the tolerance on at most this share of the splits."""

LARGEST_TRIED: Final = 0.66
"""The largest tolerance that a replay tries: a loss of one and a half of it is
injected, and nothing can lose more than everything.
"""

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
            len(_paired_rounds(*pair)) for cell in self.cells for pair in usable_sessions(cell)
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
    counts = {key: len(_paired_rounds(session, None)) for key, (_, session) in found.items()}
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
    rounds = min(len(_paired_rounds(*pair)) for pair in usable)
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
    counts = [len(_paired_rounds(*pair)) for pair in found]
    usual = sorted(counts)[len(counts) // 2] if counts else 0
    return [pair for pair, count in zip(found, counts, strict=True) if count >= SHORT_SHARE * usual]


def _paired_rounds(
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


def recorded_sessions(cell: CellMeasurement, metrics: Sequence[str]) -> list[Session]:
    """The usable sessions as losses by round."""
    made: list[Session] = []
    for session, beside in usable_sessions(cell):
        pairs = _paired_rounds(session, beside)
        own = _losses([measured for measured, _ in pairs], metrics)
        made.append(
            (
                own,
                (
                    None
                    if beside is None
                    else _losses([other for _, other in pairs if other is not None], metrics)
                ),
            )
        )
    return made


def recorded_source(
    cell: CellMeasurement, metrics: Sequence[str], *, in_order: bool = False
) -> CellSource:
    """Sessions drawn from recorded ones without replacement, or in the order of
    recording; pairs stay together.
    """
    sessions = recorded_sessions(cell, metrics)

    def draw(rng: np.random.Generator, count: int) -> list[Session]:
        order = range(len(sessions)) if in_order else rng.permutation(len(sessions)).tolist()
        return [sessions[index] for index in order[:count]]

    return draw


def _losses(rounds: Sequence[RoundMetrics], metrics: Sequence[str]) -> Mapping[str, Rounds]:
    return {
        name: tuple(_loss(name, measured.values[name].value) for measured in rounds)
        for name in metrics
    }


def _loss(name: str, value: float | None) -> float:
    sign = 1 if METRICS[name].direction is Direction.LOWER_IS_BETTER else -1
    return sign * math.log((value or math.nan) / 100.0)


def recorded_setting(
    recording: Recording,
    tolerances: Mapping[str, Tolerance],
    *,
    suite_metrics: int,
    in_order: bool = False,
) -> Setting:
    """The recorded cells, drawn often enough for a suite of that many metrics."""
    sources = tuple(
        recorded_source(cell, tuple(tolerances), in_order=in_order) for cell in recording.cells
    )
    repeats = max(1, round(suite_metrics / len(tolerances) / len(sources)))
    return Setting(sources, tolerances, recording.plan(), repeats=repeats)


def testable_tolerances(
    recording: Recording, metrics: Sequence[str], *, suite_metrics: int
) -> dict[str, Tolerance]:
    """Per metric the smallest whole percentage that the promises speak of, up to
    ``LARGEST_TRIED``.

    ``baseline accept`` would take it in nine of ten splits of this recording, in a
    suite of that many metrics, and it is at least four times the standard deviation
    between sessions of the noisiest cell. A metric for which none does is left out.
    """
    plan = recording.plan()
    found = {}
    for name in metrics:
        tolerance = _smallest(recording, name, plan, suite_metrics)
        if tolerance is not None and math.ceil(100 * tolerance) <= 100 * LARGEST_TRIED:
            found[name] = Tolerance(loss_ratio=math.ceil(100 * tolerance) / 100)
    return found


testable_tolerances.__test__ = False  # type: ignore[attr-defined]  # no test for pytest to collect, whatever its name


def _smallest(
    recording: Recording, name: str, plan: MeasurementPlan, suite_metrics: int
) -> float | None:
    barely = Tolerance(loss_ratio=0.001)
    policy = Setting((), {name: barely}, plan).policy_for(suite_metrics)
    scale = scale_for(METRICS[name], barely)
    limits = limits_of(scale, policy)._replace(beta=CATCH_MISS)
    series = []
    for cell in recording.cells:
        pairs = [
            (own[name], None if beside is None else beside[name])
            for own, beside in recorded_sessions(cell, (name,))
        ]
        series.append(
            tuple(
                own if other is None else tuple(a - b for a, b in zip(own, other, strict=True))
                for own, other in pairs
            )
        )
    noise = MetricNoise(tuple(series), recording.rounds)
    needed = []
    for cell_series in series:
        rounds = (plan.minimum_rounds, plan.maximum_rounds)
        reference = cell_reference(
            cell_series,
            noise,
            recording.rounds,
            rounds,
            spread_over_noise_ratio=policy.spread_over_noise_ratio,
        )
        planned = reference.with_level(
            plan.baseline_sessions, partial(_as_planned, plan.baseline_sessions, len(cell_series))
        )
        needed.append(
            smallest_tolerance(scale, planned, limits, analyses_of(scale, planned, plan)[-1])
        )
        values = [locate(reference.location, losses[: reference.rounds]) for losses in cell_series]
        needed.append(scale.loss_ratio(math.sqrt(sample_variance(values)) / NOISE_SHARE, None))
    return (
        None if None in needed else max(tolerance for tolerance in needed if tolerance is not None)
    )


def _as_planned(planned: int, recorded: int, level: Level) -> Level:
    """A replay's baseline has fewer sessions than the recording and fewer degrees of
    freedom, and its variance is larger by chance: by as much as in one of ten splits
    (chi-square).
    """
    from scipy.special import chdtri

    df = level.df * (planned - 1) // (recorded - 1)
    return level._replace(df=df, variance=level.variance * float(chdtri(df, UNLUCKY_SHARE)) / df)
