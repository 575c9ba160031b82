"""Measured cells to a proposed baseline, with the table a reviewer reads and the
reasons why it must not be accepted as it is. Pure.

Only ``accept`` makes a baseline of a proposal; nothing here writes a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from k3perf.baselines.reference_arm import reference_value
from k3perf.errors import UsageError
from k3perf.gate.losses import read_cell, read_metric
from k3perf.gate.policy import Policy
from k3perf.metrics.arm_parts import recorded_parts
from k3perf.metrics.drift import config_differences
from k3perf.metrics.environment import without_environment
from k3perf.metrics.loss_scale import Scale, scale_for
from k3perf.metrics.recorded_environments import joined, kept_environments, measured_environments
from k3perf.metrics.server_times import END_TO_END
from k3perf.metrics.session_values import RANK_METRICS, SERVING_METRICS
from k3perf.records.baseline import (
    Acceptance,
    Baseline,
    MetricBaseline,
    SessionValue,
    WorkloadBaseline,
    digest_of,
)
from k3perf.records.measurement import CellMeasurement, SessionMetrics
from k3perf.records.metric_definitions import METRICS, Comparison, MetricDef
from k3perf.records.samples import Arm
from k3perf.stats.estimators import mean, median

SIGNIFICANT_DIGITS: Final = 9


def propose(
    measurements: Sequence[CellMeasurement],
    *,
    versions: Mapping[str, str],
    policy: Policy,
    previous: Baseline | None,
    acceptance: Acceptance,
    new_anchor: bool = False,
) -> Baseline:
    """The baseline of one (target, config) from everything measured of it; several
    measurements of one workload add their sessions up.

    Measurements are taken in the order of their first sessions where every session
    says when it started, else as given; sessions of measurements made side by side are
    not mixed. Workloads that were not measured stay as they were while hardware class
    and resolved configuration stay the same. A metric's anchor stays unless it is new,
    ``new_anchor`` is given, or the new value is better: an improvement moves the anchor
    with it. Raises ``UsageError`` where the measurements do not belong together, hold
    too few valid sessions, or a gated metric has a value that cannot be recorded.
    """
    measurements = _in_order_of_time(measurements)
    first, resolved = _agreeing(measurements, policy)
    kept = previous if previous is not None and _still_holds(previous, first, resolved) else None
    by_workload: dict[str, list[CellMeasurement]] = {}
    for measurement in measurements:
        by_workload.setdefault(measurement.workload, []).append(measurement)
    recorded = {
        name: recorded_entries(cells, policy) for name, cells in sorted(by_workload.items())
    }
    _require_equal_ranks(first, recorded.values())
    workloads = {entry.workload: entry for entry in kept.workloads} if kept else {}
    for name, entries in recorded.items():
        before = previous.workload(name) if previous is not None and not new_anchor else None
        workloads[name] = _workload(name, by_workload[name], entries, before)
    exact = _merge_exact(recorded.values())
    anchors = previous.exact if previous is not None and not new_anchor else ()
    anchor_acceptance = acceptance if previous is None or new_anchor else previous.anchor_acceptance
    untouched = [
        entry for name, part in workloads.items() if name not in recorded for entry in part.metrics
    ]
    baseline = Baseline(
        schema_version=1,
        target=first.target,
        config=first.config,
        hardware_class=first.hardware_class,
        versions=dict(versions),
        resolved_config=without_environment(resolved),
        exact=tuple(_anchored(entry, anchors) for entry in exact),
        workloads=tuple(workloads[name] for name in sorted(workloads)),
        acceptance=acceptance,
        anchor_acceptance=anchor_acceptance,
        digest="",
        environments=joined(
            kept_environments(kept, untouched) if kept else (),
            measured_environments(_units(measurements)),
        ),
    )
    return baseline.model_copy(update={"digest": digest_of(baseline)})


def _in_order_of_time(measurements: Sequence[CellMeasurement]) -> Sequence[CellMeasurement]:
    """Sessions drift with time, so two orders of the same files are two baselines. A
    cell's own sessions are in order already; those of two cells that were measured at
    one time stay apart.
    """
    starts = [[session.started_at_utc for session in cell.sessions] for cell in measurements]
    if not all(all(times) for times in starts):
        return measurements
    return [
        cell
        for _, cell in sorted(zip(starts, measurements, strict=True), key=lambda pair: pair[0][:1])
    ]


def _still_holds(
    previous: Baseline, first: CellMeasurement, resolved: Mapping[str, object]
) -> bool:
    return previous.hardware_class == first.hardware_class and not config_differences(
        previous.resolved_config, resolved
    )


def _agreeing(
    measurements: Sequence[CellMeasurement], policy: Policy
) -> tuple[CellMeasurement, dict[str, object]]:
    if not measurements:
        raise UsageError("nothing to propose: no measurement was given.")
    first = measurements[0]
    keys = {(cell.target, cell.config, cell.hardware_class, cell.mode) for cell in measurements}
    if len(keys) > 1:
        listed = ", ".join("/".join(key) for key in sorted(keys))
        raise UsageError(
            "a baseline covers one target, config, hardware class and mode; these measurements"
            f" cover {listed}."
        )
    if first.mode == "ab":
        raise UsageError(
            "an ab run compares two environments and makes no baseline; run in the target's own"
            " mode."
        )
    sessions = _units(measurements)
    for session in sessions[1:]:
        differing = config_differences(sessions[0].resolved_config, session.resolved_config)
        if differing:
            names = ", ".join(difference.key for difference in differing[:5])
            raise UsageError(
                f"sessions {sessions[0].session_id} and {session.session_id} of"
                f" {first.target}/{first.config} resolved different configurations ({names});"
                " propose from runs of one engine version."
            )
    _enough(measurements, policy)
    return first, sessions[0].resolved_config


def _units(measurements: Sequence[CellMeasurement]) -> list[SessionMetrics]:
    """The valid candidate sessions of all cells."""
    return [unit.session for cell in measurements for unit in read_cell(cell).units]


def _enough(measurements: Sequence[CellMeasurement], policy: Policy) -> None:
    needed = policy.plan.baseline_sessions
    counts: dict[str, int] = {}
    digests: dict[str, str] = {}
    known: set[tuple[str, str]] = set()
    for cell in measurements:
        counts[cell.workload] = counts.get(cell.workload, 0) + (
            0 if cell.invalid_reasons else len(read_cell(cell).units)
        )
        if digests.setdefault(cell.workload, cell.plan_digest) != cell.plan_digest:
            raise UsageError(
                f"the runs measured different plans of workload {cell.workload!r}; propose from"
                " runs of one plan."
            )
        for session in cell.sessions:
            if (cell.workload, session.session_id) in known:
                given = f"session {session.session_id} of workload {cell.workload!r} is given twice"
                raise UsageError(
                    f"{given}, for example by a run and its recovered or resumed copy; its numbers"
                    " would count twice. Name one."
                )
            known.add((cell.workload, session.session_id))
    for workload, count in counts.items():
        if count < needed:
            raise UsageError(
                f"{measurements[0].target}/{measurements[0].config}, workload {workload!r}: {count}"
                f" valid sessions, a baseline needs {needed} (baseline_sessions of the target); run"
                " more and give all their measurements.json."
            )


def recorded_entries(cells: Sequence[CellMeasurement], policy: Policy) -> list[MetricBaseline]:
    """Entries of every gated metric that was measured, over all cells of one
    workload.
    """
    entries = []
    for name, tolerance in policy.for_cell(cells[0].config, cells[0].workload).tolerances.items():
        metric = METRICS[name]
        exact = metric.comparison is Comparison.EXACT
        scale = scale_for(metric, tolerance, "baseline" if exact else cells[0].mode)
        sessions = [
            session
            for cell in cells
            for session in (_exact_sessions(cell, name) if exact else _sessions(cell, scale))
        ]
        if sessions:
            entries.append(_entry(scale, sessions))
    return entries


def _entry(scale: Scale, sessions: list[SessionValue]) -> MetricBaseline:
    metric = scale.metric
    exact = metric.comparison is Comparison.EXACT
    value = (
        worst_value(metric, [session.value for session in sessions])
        if exact
        else typical_value(scale, sessions)
    )
    return MetricBaseline.model_validate(
        {
            "metric": metric.name,
            "unit": scale.unit,
            "basis": scale.basis,
            "sessions": tuple(sessions),
            "anchor_value": value,
        }
    )


def typical_value(scale: Scale, sessions: Sequence[SessionValue]) -> float:
    """What a candidate is compared with: the mean on the loss scale, a geometric mean
    for relative tolerances.
    """
    return scale.value(mean([scale.loss(session.value) for session in sessions]))


def worst_value(metric: MetricDef, values: Sequence[float]) -> float:
    """The value that an exact metric is compared with."""
    return max(values) if metric.direction.value == "lower_is_better" else min(values)


def _exact_sessions(
    cell: CellMeasurement, name: str, *, standing: bool = False
) -> list[SessionValue]:
    readings = read_cell(cell)
    found = [
        (unit.session, unit.session.values[name])
        for unit in (readings.standing if standing else readings.units)
        if name in unit.session.values
    ]
    return [
        SessionValue(
            session_id=session.session_id,
            value=value.value,
            rank_count=(value.n or None) if name in RANK_METRICS else None,
            **_batch(session),
        )
        for session, value in found
        if value.value is not None
    ]


def _require_equal_ranks(first: CellMeasurement, recorded: Iterable[list[MetricBaseline]]) -> None:
    """The worst of one rank and the worst of two are not values of one metric."""
    counts: dict[str, set[int]] = {}
    for entry in (entry for entries in recorded for entry in entries):
        counts.setdefault(entry.metric, set()).update(entry.rank_counts)
    for name, found in counts.items():
        if len(found) > 1:
            raise UsageError(
                f"{first.target}/{first.config}: {name} was read from"
                f" {' and from '.join(map(str, sorted(found)))} ranks in different sessions;"
                " propose from runs in which every rank was read (docs/multi-host.md)."
            )


def _sessions(cell: CellMeasurement, scale: Scale) -> list[SessionValue]:
    readings = read_cell(cell)
    series = read_metric(readings, scale)
    if series.defect:
        raise UsageError(
            f"{cell.target}/{cell.config}, {scale.metric.name}: {series.defect}; only sound values"
            " enter a baseline."
        )
    rounds = series.round_indices
    beside = {
        unit.session.session_id: _digits(value)
        for unit in readings.units
        if scale.basis == "ratio" and (value := reference_value(unit, scale)) is not None
    }
    batches = {session.session_id: _batch(session) for session in cell.sessions}
    return [
        SessionValue(
            session_id=session_id,
            value=_digits(scale.value(median(losses))),
            round_values=tuple(_digits(scale.value(loss)) for loss in losses) if indices else (),
            reference_value=beside.get(session_id),
            **batches[session_id],
        )
        for session_id, losses, indices in zip(
            series.session_ids, series.sessions, rounds, strict=True
        )
    ]


def _batch(session: SessionMetrics) -> dict[str, str]:
    host, day = session.batch or ("", "")
    return {"host": host, "day": day}


def _digits(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def settled_at_start(entry: MetricBaseline) -> bool:
    """An exact metric of the engine, whatever workload it serves."""
    return (
        METRICS[entry.metric].comparison is Comparison.EXACT and entry.metric not in SERVING_METRICS
    )


def _workload(
    name: str,
    cells: Sequence[CellMeasurement],
    entries: list[MetricBaseline],
    before: WorkloadBaseline | None,
) -> WorkloadBaseline:
    serving = tuple(
        _anchored(entry, before.metrics if before else ())
        for entry in entries
        if not settled_at_start(entry)
    )
    return WorkloadBaseline(
        workload=name, plan_digest=cells[0].plan_digest, metrics=serving, parts=_parts(cells)
    )


def _parts(cells: Sequence[CellMeasurement]) -> dict[Arm, dict[str, float]]:
    """Where the time of each arm's requests went. Empty for a recording that is older
    than these readings.
    """
    units = [unit for cell in cells for unit in read_cell(cell).units]
    found = {
        Arm.CANDIDATE: recorded_parts(unit.session for unit in units),
        Arm.REFERENCE: recorded_parts(unit.reference for unit in units if unit.reference),
    }
    return {arm: parts for arm, parts in found.items() if END_TO_END in parts}


def _merge_exact(recorded: Iterable[list[MetricBaseline]]) -> list[MetricBaseline]:
    """Exact metrics settled at the start, over the sessions of all workloads."""
    merged: dict[str, MetricBaseline] = {}
    for entries in recorded:
        for entry in filter(settled_at_start, entries):
            before = merged.get(entry.metric)
            sessions = entry.sessions if before is None else before.sessions + entry.sessions
            worst = worst_value(METRICS[entry.metric], [session.value for session in sessions])
            merged[entry.metric] = entry.model_copy(
                update={"sessions": sessions, "anchor_value": worst}
            )
    return list(merged.values())


def exact_entries(cells: Sequence[CellMeasurement], policy: Policy) -> list[MetricBaseline]:
    """Entries of the gated exact metrics of one config's cells, of their standing
    sessions: noise spoils no memory.
    """
    recorded = []
    for cell in cells:
        found = []
        for name, tolerance in policy.for_cell(cell.config, cell.workload).tolerances.items():
            if METRICS[name].comparison is not Comparison.EXACT:
                continue
            sessions = _exact_sessions(cell, name, standing=True)
            if sessions:
                found.append(_entry(scale_for(METRICS[name], tolerance, "baseline"), sessions))
        recorded.append(found)
    serving = [entry for entries in recorded for entry in entries if not settled_at_start(entry)]
    return [*_merge_exact(recorded), *serving]


def _anchored(entry: MetricBaseline, before: Iterable[MetricBaseline]) -> MetricBaseline:
    """The old anchor, unless the new value is better."""
    old = next(
        (item for item in before if item.metric == entry.metric and item.basis == entry.basis), None
    )
    if old is None:
        return entry
    return entry.model_copy(
        update={
            "anchor_value": _better(METRICS[entry.metric], old.anchor_value, entry.anchor_value)
        }
    )


def _better(metric: MetricDef, one: float, other: float) -> float:
    return min(one, other) if metric.direction.value == "lower_is_better" else max(one, other)
