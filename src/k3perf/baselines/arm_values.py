"""What a reader of a verdict asks next to its ratios: both arms' absolute values, and
which baseline judged. Pure. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from k3perf.baselines.reference_arm import candidate_value, mean_value, reference_value
from k3perf.gate.losses import Unit, read_cell
from k3perf.gate.policy import Policy
from k3perf.metrics.loss_scale import Scale, scale_for
from k3perf.records.baseline import Baseline, MetricBaseline
from k3perf.records.measurement import CellMeasurement
from k3perf.records.metric_definitions import METRICS, Comparison
from k3perf.records.verdict import ArmValues, BaselineSource, CellVerdict


def with_arm_values(
    verdict: CellVerdict, baseline: Baseline | None, measurement: CellMeasurement, policy: Policy
) -> CellVerdict:
    """The verdict with both arms' values and its baseline. ``baseline`` mode shows
    absolute values already, so it gets the baseline alone.
    """
    workload = None if baseline is None else baseline.workload(measurement.workload)
    recorded = {entry.metric: entry for entry in (() if workload is None else workload.metrics)}
    source = None if baseline is None else _source(baseline, verdict, recorded)
    if measurement.mode == "baseline" or not verdict.metrics:
        return replace(verdict, judged_by=source)
    units = read_cell(measurement).units
    tolerances = policy.for_cell(measurement.config, measurement.workload).tolerances
    found = (
        _values(units, recorded.get(name), scale_for(METRICS[name], tolerances[name]))
        for name in (metric.metric for metric in verdict.metrics)
        if name in tolerances and METRICS[name].comparison is not Comparison.EXACT
    )
    shown = tuple(values for values in found if values is not None)
    return replace(verdict, arm_values=shown, judged_by=source)


def _values(
    units: Sequence[Unit], recorded: MetricBaseline | None, scale: Scale
) -> ArmValues | None:
    own, beside = _means(units, scale)
    was, was_beside = _recorded(recorded, scale)
    if own is None and beside is None:
        return None
    return ArmValues(scale.metric.name, scale.metric.unit, own, beside, was, was_beside)


def _means(units: Sequence[Unit], scale: Scale) -> tuple[float | None, float | None]:
    """Means over the sessions of the candidate and of the arm beside it."""
    return (
        _mean((candidate_value(unit, scale) for unit in units), scale),
        _mean((reference_value(unit, scale) for unit in units), scale),
    )


def _recorded(entry: MetricBaseline | None, scale: Scale) -> tuple[float | None, float | None]:
    """Candidate and reference arm as recorded. Older files hold ratios alone: None."""
    if entry is None or entry.basis != "ratio":
        return None, None
    kept = [one for one in entry.sessions if one.reference_value is not None]
    beside = [one.reference_value or 0.0 for one in kept]
    own = [one.value * (one.reference_value or 0.0) for one in kept]
    return _mean(own, scale), _mean(beside, scale)


def _mean(values: Iterable[float | None], scale: Scale) -> float | None:
    kept = [value for value in values if value is not None]
    return mean_value(kept, scale) if kept else None


def _source(
    baseline: Baseline, verdict: CellVerdict, recorded: dict[str, MetricBaseline]
) -> BaselineSource:
    judged = {metric.metric for metric in verdict.metrics}
    entries = [
        entry for entry in (*recorded.values(), *baseline.exact) if entry.metric in judged
    ] or list(recorded.values())
    days = sorted({one.day for entry in entries for one in entry.sessions if one.day})
    return BaselineSource(
        first_day=days[0] if days else "",
        last_day=days[-1] if days else "",
        accepted_at_utc=baseline.acceptance.accepted_at_utc[:200],
        vllm_version=baseline.versions.get("vllm", "")[:200],
        session_count=min((len(entry.sessions) for entry in entries), default=0),
    )
