"""A night's measured and judged cells to the file that is kept, and the kept nights to
what later nights ask of them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from k3perf.baselines.propose import recorded_entries
from k3perf.ci.history import HistoryEntry, session_values
from k3perf.errors import UsageError
from k3perf.gate.policy import Policy
from k3perf.metrics.environment import without_environment
from k3perf.metrics.recorded_environments import measured_environments
from k3perf.records.baseline import MetricBaseline
from k3perf.records.measurement import CellMeasurement
from k3perf.records.night import (
    NightCell,
    NightFile,
    NightFinding,
    NightValue,
    lock_key,
)
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm
from k3perf.records.verdict import CellVerdict, MetricVerdict

PACE_NIGHTS = 7
"""Nights whose pace and session counts the next price rests on."""


@dataclass(frozen=True, slots=True)
class JudgedCell:
    """A cell of tonight. ``verdict`` None: recorded without a judgement. ``policy``: of
    its target. ``measurement`` None: nothing came back.
    """

    verdict: CellVerdict | None
    measurement: CellMeasurement | None
    policy: Policy | None


def night_cells(
    cells: Iterable[JudgedCell],
) -> tuple[tuple[NightCell, ...], dict[str, dict[str, object]]]:
    """The cells as they are kept, and their resolved configurations by ``lock_key``."""
    kept, locks = [], {}
    for cell in cells:
        entry, lock = _kept(cell)
        kept.append(entry)
        if lock is not None:
            locks[entry.lock] = lock
    return tuple(kept), locks


def _kept(cell: JudgedCell) -> tuple[NightCell, dict[str, object] | None]:
    judged, measured = cell.verdict, cell.measurement
    named = judged or measured
    if named is None:
        raise ValueError("a cell needs a verdict or a measurement")
    lock = _lock(measured)
    recorded, reason = _recorded(measured, cell.policy)
    values = session_values(measured) if measured is not None else {}
    sessions = [] if measured is None else measured.arm(Arm.CANDIDATE)
    valid = [session for session in sessions if not session.invalid_reasons]
    return (
        NightCell(
            target=named.target,
            config=named.config,
            workload=named.workload,
            hardware_class=measured.hardware_class if measured is not None else "",
            plan_digest=measured.plan_digest if measured is not None else "",
            outcome=None if judged is None else judged.outcome,
            lock="" if lock is None else lock_key(lock),
            session_count=len(sessions),
            values={
                metric: NightValue(value=median(found) if found else None, sessions=len(found))
                for metric, found in values.items()
            },
            findings=() if judged is None else tuple(_findings(judged)),
            recorded=recorded,
            environments=measured_environments(valid),
            reason=reason or _why(judged),
        ),
        lock,
    )


def _lock(measured: CellMeasurement | None) -> dict[str, object] | None:
    sessions = () if measured is None else measured.arm(Arm.CANDIDATE)
    resolved = (session.resolved_config for session in sessions if session.resolved_config)
    return next((dict(without_environment(one)) for one in resolved), None)


def _recorded(
    measured: CellMeasurement | None, policy: Policy | None
) -> tuple[tuple[MetricBaseline, ...], str]:
    """Sessions of an invalid measurement are not kept: they enter no baseline."""
    if measured is None or policy is None or measured.invalid_reasons:
        return (), ""
    try:
        return tuple(recorded_entries([measured], policy)), ""
    except UsageError as error:
        return (), str(error)[:2_000]


def _why(judged: CellVerdict | None) -> str:
    if judged is None:
        return ""
    reasons = [reason.text for reason in judged.invalid_reasons] + [judged.missing]
    return "; ".join(reason for reason in reasons if reason)[:2_000]


def _findings(judged: CellVerdict) -> Iterable[NightFinding]:
    for metric in (*judged.metrics, *judged.reference_arm):
        certain = _certain(metric)
        if metric.outcome is not Outcome.PASS or certain:
            yield NightFinding(
                metric=metric.metric,
                unit=metric.unit,
                outcome=metric.outcome,
                before=metric.baseline_value,
                now=metric.now_value,
                loss_ratio=metric.loss_ratio,
                certain=certain,
            )


def _certain(metric: MetricVerdict) -> bool:
    """A loss above 0 that is certain or waived. A bot must not accept it."""
    if metric.waived_by:
        return True
    worse = metric.loss_ratio is not None and metric.loss_ratio > 0
    lower = metric.loss_lower_bound_ratio
    return worse and (bool(metric.significant) or (lower is not None and lower > 0))


def history_entries(nights: Iterable[NightFile]) -> tuple[HistoryEntry, ...]:
    """The nights' values as entries of the history."""
    return tuple(
        HistoryEntry(
            run_id=night.run_id,
            commit=night.commit,
            created_at_utc=night.created_at_utc,
            vllm_version=night.versions.get("vllm", "absent"),
            hardware_class=cell.hardware_class,
            target=cell.target,
            config=cell.config,
            workload=cell.workload,
            plan_digest=cell.plan_digest,
            metric=metric,
            value=value.value,
            session_count=value.sessions,
        )
        for night in nights
        for cell in night.cells
        for metric, value in cell.values.items()
    )


@dataclass(frozen=True, slots=True)
class Judgement:
    """The newest judgement of a cell, and the nights before it with the same colour.

    ``first_red``: the first of the newest red nights in a row, None while green.
    ``last_green``: the newest green night before those, None if there is none.
    """

    cell: NightCell
    night: NightFile
    first_red: NightFile | None
    last_green: NightFile | None


RED = (Outcome.REGRESSED, Outcome.SUSPECT, Outcome.CONFIG_DRIFT, Outcome.INVALID)
"""What makes a cell of ``main`` red. INVALID cells are named: no one looked at them."""


def judgements(nights: Sequence[NightFile]) -> dict[str, Judgement]:
    """By cell id, the newest judgement. ``nights`` oldest first. An INVALID night says
    nothing of a cell that was judged before: the earlier judgement stands.
    """
    found: dict[str, Judgement] = {}
    for night in nights:
        for cell in night.cells:
            before = found.get(cell.cell_id)
            if cell.outcome is None:
                continue
            if cell.outcome is Outcome.INVALID and before is not None:
                continue
            red = cell.outcome in RED
            if not red:
                found[cell.cell_id] = Judgement(cell, night, None, night)
                continue
            first = before.first_red if before is not None and before.first_red else night
            green = before.last_green if before is not None else None
            found[cell.cell_id] = Judgement(cell, night, first, green)
    return found


def last_days(nights: Sequence[NightFile]) -> dict[str, str]:
    """By cell id, when it was last measured (ISO 8601). Nights without a valid session
    do not count: the cell stays the oldest.
    """
    found: dict[str, str] = {}
    for night in nights:
        for cell in night.cells:
            if any(value.value is not None for value in cell.values.values()):
                found[cell.cell_id] = max(found.get(cell.cell_id, ""), night.created_at_utc)
    return found


def sessions_spent(nights: Sequence[NightFile]) -> dict[str, float]:
    """By cell id, the mean number of sessions of its newest judged nights. The key
    ``TARGET/`` has the mean over all cells of a target, for cells that were not judged.
    """
    counts: dict[str, list[int]] = {}
    for night in nights:
        for cell in night.cells:
            if cell.outcome is not None and cell.session_count:
                for key in (cell.cell_id, f"{cell.target}/"):
                    counts.setdefault(key, []).append(cell.session_count)
    return {
        key: mean(found if key.endswith("/") else found[-PACE_NIGHTS:])
        for key, found in counts.items()
    }


def pace_of(nights: Sequence[NightFile]) -> dict[str, float]:
    """By hardware class, the median of the newest nights' real time over the priced."""
    found: dict[str, list[float]] = {}
    for night in nights:
        for name, ratio in night.pace.items():
            found.setdefault(name, []).append(ratio)
    return {name: median(ratios[-PACE_NIGHTS:]) for name, ratios in found.items()}


def real_over_priced(
    shards: Mapping[str, tuple[str, float]], seconds: Mapping[str, float]
) -> dict[str, float]:
    """``pace`` of a night. ``shards``: by name, hardware class and priced minutes (the
    pace of earlier nights included). ``seconds``: by name, what it really took.
    """
    priced: dict[str, float] = {}
    real: dict[str, float] = {}
    for name, (hardware_class, minutes) in shards.items():
        if name in seconds and minutes > 0:
            priced[hardware_class] = priced.get(hardware_class, 0.0) + 60 * minutes
            real[hardware_class] = real.get(hardware_class, 0.0) + seconds[name]
    return {name: real[name] / priced[name] for name in priced if real[name] > 0}
