"""``reference`` mode: the reference arm's values beside its recorded ones. Pure.

A ratio of two arms divides out what slows both: an engine, a kernel, a driver, a
machine. The reference arm's own values show that. They differ from day to day, so their
limit is wide: a tripwire, not a judgement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from k3perf.gate.losses import Unit, read_cell
from k3perf.gate.policy import Policy
from k3perf.metrics.environment import environment_of
from k3perf.metrics.loss_scale import Scale, scale_for
from k3perf.metrics.recorded_environments import recorded_environments
from k3perf.records.baseline import Baseline, MetricBaseline, SessionValue
from k3perf.records.measurement import CellMeasurement, RoundMetrics, SessionMetrics
from k3perf.records.metric_definitions import METRICS, Scope
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict, MetricVerdict
from k3perf.stats.estimators import mean, median

COMMON_LOSS: Final = Outcome.SUSPECT
"""What a reference arm beyond the limit comes to. Not a proven loss of the change."""

_UNREAD: Final = "a loss common to both arms cannot be seen"
_DIVIDED_OUT: Final = (
    "a slower engine, kernel, driver or machine is divided out of the ratios. To decide, measure"
    " against the base's engine with --k3-ab-base: a loss there is the engine's, none is the"
    " machine's"
)


def with_reference_arm(
    verdict: CellVerdict, baseline: Baseline | None, measurement: CellMeasurement, policy: Policy
) -> CellVerdict:
    """The verdict with the reference arm's values, ``COMMON_LOSS`` where one is worse
    than recorded by more than ``common_loss_limit_ratio``. In other modes, and where
    nothing was judged, as it is. A note says why the values cannot be read.
    """
    if measurement.mode != "reference" or baseline is None or not verdict.metrics:
        return verdict
    workload = baseline.workload(measurement.workload)
    cell_policy = policy.for_cell(measurement.config, measurement.workload)
    ratios = [
        entry
        for entry in (() if workload is None else workload.metrics)
        if entry.basis == "ratio" and entry.metric in cell_policy.tolerances
    ]
    units = read_cell(measurement).units
    if not ratios or not units:
        return verdict
    unread = _unread(baseline, measurement)
    metrics = (_metric(entry, units, cell_policy) for entry in ratios if not unread)
    found = [metric for metric in metrics if metric is not None]
    if not found and not unread:
        unread = "the baseline holds no absolute values of it, record the cell again"
    notes = (f"reference arm not compared ({unread}): {_UNREAD}",) if unread else ()
    return replace(verdict, reference_arm=tuple(found), notes=(*verdict.notes, *notes))


def reference_value(unit: Unit, scale: Scale) -> float | None:
    """The reference arm's own value beside one candidate session: the median of its
    rounds, or its one value. None: it has none that is positive and finite.
    """
    return None if unit.reference is None else _value(unit.beside, [unit.reference], scale)


def candidate_value(unit: Unit, scale: Scale) -> float | None:
    """As ``reference_value``, of the candidate session itself."""
    return _value(unit.rounds, [unit.session], scale)


def mean_value(values: Iterable[float], scale: Scale) -> float:
    """A geometric mean where the scale is logarithmic, as for ratios."""
    return scale.value(mean([scale.loss(value) for value in values]))


def _unread(baseline: Baseline, measurement: CellMeasurement) -> str:
    """Why the machine's absolute values do not compare with the recorded ones. A
    hardware class of CPUs has models of any speed, so there the model must be a
    recorded one.
    """
    was, now = baseline.hardware_class, measurement.hardware_class
    if was != now:
        return f"recorded on hardware class {was!r}, measured on {now!r}"
    recorded = {part.values.get("processor") for part in recorded_environments(baseline)}
    measured = {
        environment_of(session.environment, session.resolved_config).get("processor")
        for session in measurement.sessions
    }
    other = measured - recorded - {None}
    if not now.startswith("cpu-") or not other or recorded <= {None}:
        return ""
    return f"measured on another CPU, {', '.join(sorted(filter(None, other)))}"


def _metric(entry: MetricBaseline, units: Sequence[Unit], policy: Policy) -> MetricVerdict | None:
    scale = scale_for(METRICS[entry.metric], policy.tolerances[entry.metric])
    kept = [one for one in entry.sessions if one.reference_value is not None]
    measured = [value for unit in units if (value := reference_value(unit, scale)) is not None]
    if not kept or not measured:
        return None
    recorded = mean_value([one.reference_value or 0.0 for one in kept], scale)
    now, limit = mean_value(measured, scale), policy.common_loss_limit_ratio
    loss_ratio = scale.loss_ratio(scale.loss(now) - scale.loss(recorded), recorded) or 0.0
    beyond = loss_ratio > limit
    return MetricVerdict(
        metric=entry.metric,
        unit=scale.metric.unit,
        outcome=COMMON_LOSS if beyond else Outcome.PASS,
        baseline_value=recorded,
        now_value=now,
        loss_ratio=loss_ratio,
        tolerance_ratio=limit,
        session_count=len(measured),
        reason=f"{_slower(units, scale, kept)} slower than recorded; {_DIVIDED_OUT}"
        if beyond
        else "",
    )


def _slower(units: Sequence[Unit], scale: Scale, kept: Iterable[SessionValue]) -> str:
    own = [value for unit in units if (value := candidate_value(unit, scale)) is not None]
    was = mean_value([one.value * (one.reference_value or 0.0) for one in kept], scale)
    both = bool(own) and scale.loss(mean_value(own, scale)) > scale.loss(was)
    return "both arms are" if both else "the reference arm is"


def _value(
    rounds: Sequence[RoundMetrics], sessions: Sequence[SessionMetrics], scale: Scale
) -> float | None:
    parts = rounds if scale.metric.scope is Scope.ROUND else sessions
    found = [
        part.values[scale.metric.name].value for part in parts if scale.metric.name in part.values
    ]
    usable = [
        value for value in found if value is not None and scale.loss(value) == scale.loss(value)
    ]
    return median(usable) if usable else None
