"""What the charts of a cell show, as plain data. Pure.

A series is one metric in one unit. Where ratios are judged it exists twice: as ratios
with the baseline's band, and as the absolute values of both arms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from k3perf.gate.losses import Readings, read_cell
from k3perf.records.baseline import Baseline, MetricBaseline
from k3perf.records.measurement import CellMeasurement, RoundMetrics, SessionMetrics
from k3perf.records.metric_definitions import METRICS, Scope
from k3perf.records.samples import Arm
from k3perf.records.verdict import CellVerdict
from k3perf.report.page.arm_values import arm_value
from k3perf.report.page.distributions import distributions
from k3perf.report.page.material import RunMaterial
from k3perf.report.page.shown import plain

_ALWAYS: Final = (
    "output_tokens_per_s",
    "ttft_mean_ms",
    "ttft_p99_ms",
    "tpot_mean_ms",
    "itl_p99_ms",
)
MEMORY_PARTS: Final = {
    "weights_bytes": "weights",
    "kv_cache_bytes": "KV cache",
    "peak_activation_bytes": "peak activations",
    "graph_pool_bytes": "graph pool",
    "non_torch_bytes": "outside the allocator",
}
_GIB: Final = 1 << 30


def cell_data(material: RunMaterial, cell: CellVerdict) -> dict[str, Any]:
    """Intervals, series, distributions and memory. Empty lists for what is missing."""
    found = material.measurement(cell)
    data: dict[str, Any] = {"intervals": intervals(cell), "series": [], "ecdf": [], "memory": []}
    if found is None:
        return data
    measurement = found[1]
    baseline = material.baseline(cell)
    data["series"] = series(cell, measurement, baseline)
    data["memory"] = memory(measurement, baseline)
    data["ecdf"] = distributions(material, measurement)
    return data


def intervals(cell: CellVerdict) -> list[dict[str, Any]]:
    """A row for each metric with a loss, in shares."""
    return [
        {
            "metric": plain(metric.metric),
            "zero": 0,
            "loss": metric.loss_ratio,
            "lower": metric.loss_lower_bound_ratio,
            "upper": metric.loss_upper_bound_ratio,
            "tolerance": metric.tolerance_ratio,
            "detectable": metric.smallest_detectable_loss_ratio,
            "outcome": str(metric.outcome),
        }
        for metric in cell.metrics
        if metric.loss_ratio is not None and metric.tolerance_ratio is not None
    ]


def series(
    cell: CellVerdict, measurement: CellMeasurement, baseline: Baseline | None
) -> list[dict[str, Any]]:
    """The gated ROUND metrics first, each as it is judged, then absolute values."""
    recorded = baseline.workload(measurement.workload) if baseline is not None else None
    entries = {entry.metric: entry for entry in (recorded.metrics if recorded else ())}
    gated = [metric for metric in cell.metrics if _of_rounds(metric.metric)]
    found = []
    if measurement.mode != "baseline":
        readings = read_cell(measurement)
        found += [
            _ratios(metric.metric, readings, entries.get(metric.metric))
            for metric in gated
            if metric.unit == "ratio"
        ]
    names = dict.fromkeys((*(metric.metric for metric in gated), *_ALWAYS))
    found += [_absolute(name, measurement, entries.get(name)) for name in names]
    return [entry for entry in found if entry["points"]]


def _of_rounds(metric: str) -> bool:
    return metric in METRICS and METRICS[metric].scope is Scope.ROUND


def _ratios(metric: str, readings: Readings, entry: MetricBaseline | None) -> dict[str, Any]:
    """Candidate over the reference round next to it."""
    points = []
    for place, unit in enumerate(readings.units):
        for index, measured in enumerate(unit.rounds):
            own = _value(measured, metric)
            other = _beside(unit.beside, index, metric, alternating=unit.alternating)
            if own is not None and other:
                points.append(
                    _point(unit.session, place, measured, own / other, "candidate / reference")
                )
    return _series(f"{metric}, ratio", "ratio", points, entry, "ratio")


def _beside(
    rounds: Sequence[RoundMetrics], index: int, metric: str, *, alternating: bool
) -> float | None:
    if alternating:
        return _value(rounds[index], metric) if index < len(rounds) else None
    values = [value for one in rounds if (value := _value(one, metric)) is not None]
    return median(values) if values else None


def _absolute(
    metric: str, measurement: CellMeasurement, entry: MetricBaseline | None
) -> dict[str, Any]:
    unit = METRICS[metric].unit
    points = [
        _point(session, place, measured, value, _arm_name(session.arm, measurement.mode))
        for arm in (Arm.REFERENCE, Arm.CANDIDATE)
        for place, session in enumerate(measurement.arm(arm))
        for measured in session.rounds
        if (value := _value(measured, metric)) is not None
    ]
    label = metric if measurement.mode == "baseline" else f"{metric}, both arms"
    return _series(label, unit, points, entry, "absolute")


def _arm_name(arm: Arm, mode: str) -> str:
    return "base" if mode == "ab" and arm is Arm.REFERENCE else str(arm)


def _value(measured: RoundMetrics, metric: str) -> float | None:
    value = measured.values.get(metric)
    return None if value is None else value.value


@dataclass(frozen=True, slots=True)
class _Point:
    """A round's value. ``number``: of its session, from 1. ``reason``: why it is
    excluded, or empty.
    """

    number: int
    session_id: str
    round_index: int
    value: float
    arm: str
    reason: str


def _point(
    session: SessionMetrics, place: int, measured: RoundMetrics, value: float, arm: str
) -> _Point:
    reasons = (*session.invalid_reasons, *measured.invalid_reasons)
    reason = (plain(reasons[0].text) or reasons[0].rule) if reasons else ""
    name = plain(session.session_id)
    return _Point(place + 1, name, measured.round_index, value, arm, reason)


def _series(
    label: str,
    unit: str,
    points: list[_Point],
    entry: MetricBaseline | None,
    basis: str,
) -> dict[str, Any]:
    """``band``: the least and largest recorded session, and the middle. ``points``:
    rows of place in ``sessions``, round, value and place in ``reasons`` (-1: none).
    """
    band = []
    if entry is not None and entry.basis == basis:
        values = [session.value for session in entry.sessions]
        band = [{"low": min(values), "high": max(values), "middle": median(values)}]
    sessions = list(dict.fromkeys((one.number, one.session_id, one.arm) for one in points))
    reasons = list(dict.fromkeys(one.reason for one in points if one.reason))
    return {
        "label": label,
        "unit": unit,
        "band": band,
        "sessions": [{"number": number, "id": name, "arm": arm} for number, name, arm in sessions],
        "reasons": reasons,
        "points": [
            [
                sessions.index((one.number, one.session_id, one.arm)),
                one.round_index,
                one.value,
                reasons.index(one.reason) if one.reason else -1,
            ]
            for one in points
        ],
    }


def memory(measurement: CellMeasurement, baseline: Baseline | None) -> list[dict[str, Any]]:
    """Bytes of each part for each arm, and for the baseline where it holds them."""
    rows = []
    for arm in (Arm.REFERENCE, Arm.CANDIDATE):
        for name, label in MEMORY_PARTS.items():
            value, _ = arm_value(measurement, arm, name)
            if value is not None:
                rows.append(_part(_arm_name(arm, measurement.mode), label, value))
    for entry in baseline.exact if baseline is not None else ():
        if entry.metric in MEMORY_PARTS and entry.basis == "absolute":
            values = [session.value for session in entry.sessions]
            rows.append(_part("baseline", MEMORY_PARTS[entry.metric], median(values)))
    return rows


def _part(arm: str, label: str, value: float) -> dict[str, Any]:
    return {"arm": arm, "part": label, "bytes": value, "gib": value / _GIB}
