"""A judged cell to what the page shows of it. Pure."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from functools import partial

from k3perf.records.attribution import Attribution
from k3perf.records.metric_definitions import METRICS
from k3perf.records.outcome import SEVERITY, Outcome
from k3perf.records.samples import Arm
from k3perf.records.verdict import CellVerdict, ConfigDifference, MetricVerdict
from k3perf.report.attribution_lines import unexplained_text
from k3perf.report.causes import reason_lines
from k3perf.report.page.arm_values import arm_value, measured_metrics
from k3perf.report.page.material import RunMaterial
from k3perf.report.page.shown import (
    Shown,
    of_share,
    of_unit,
    plain,
    times_tolerance,
    tolerance_of,
)


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A judged metric. ``arms``: the absolute values of candidate and reference, in
    modes that compare ratios.
    """

    name: str
    meaning: str
    outcome: str
    baseline: Shown
    now: Shown
    loss: Shown
    lower: Shown
    upper: Shown
    tolerance: Shown
    times: Shown
    detectable: Shown
    arms: tuple[Shown, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ValueRow:
    """A measured metric that is not gated."""

    name: str
    meaning: str
    arms: tuple[Shown, ...]


@dataclass(frozen=True, slots=True)
class CellView:
    """One cell. ``worst``: the row that its line in the overview shows."""

    number: int
    target: str
    config: str
    workload: str
    mode: str
    outcome: str
    outcome_text: str
    severity: int
    arm_names: tuple[str, ...]
    rows: tuple[MetricRow, ...]
    worst: MetricRow | None
    values: tuple[ValueRow, ...]
    attribution: Attribution | None
    unexplained: str
    differences: tuple[tuple[str, str, str, str], ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    command: str
    session_texts: tuple[str, ...]
    drawn: bool


def cell_view(material: RunMaterial, place: int, number: int) -> CellView:
    """The cell at ``place`` of the verdict. ``number``: its number in the page."""
    cell = material.verdict.cells[place]
    found = material.measurement(cell)
    arms = (Arm.CANDIDATE,) if cell.mode == "baseline" else (Arm.REFERENCE, Arm.CANDIDATE)
    rows = tuple(
        _metric_row(
            material, cell, f"{material.prefix}verdict.json#/cells/{place}/metrics/{index}", metric
        )
        for index, metric in enumerate(cell.metrics)
    )
    gated = {metric.metric for metric in cell.metrics}
    values: tuple[ValueRow, ...] = ()
    if found is not None:
        names = [name for name in measured_metrics(found[1]) if name not in gated]
        values = tuple(_value_row(material, cell, name, arms) for name in names)
    attribution = cell.attribution
    return CellView(
        number=number,
        target=plain(cell.target),
        config=plain(cell.config),
        workload=plain(cell.workload),
        mode=plain(cell.mode),
        outcome=str(cell.outcome),
        outcome_text=cell.outcome_text,
        severity=SEVERITY[cell.outcome],
        arm_names=tuple(_arm_name(arm, cell.mode) for arm in arms),
        rows=rows,
        worst=_worst(rows, cell.metrics),
        values=values,
        attribution=attribution,
        unexplained=unexplained_text(attribution) if attribution is not None else "",
        differences=tuple(map(_difference, cell.differences)),
        reasons=tuple(_reasons(cell)),
        notes=tuple(plain(note) for note in cell.notes),
        environment=_environment(material, cell),
        command=reproduce(material, cell),
        session_texts=_sessions(material, cell),
        drawn=found is not None and any(session.rounds for session in found[1].sessions),
    )


def _arm_name(arm: Arm, mode: str) -> str:
    return "base" if mode == "ab" and arm is Arm.REFERENCE else str(arm)


def _metric_row(
    material: RunMaterial, cell: CellVerdict, source: str, metric: MetricVerdict
) -> MetricRow:
    share = partial(of_share)
    arms = () if cell.mode == "baseline" else (Arm.REFERENCE, Arm.CANDIDATE)
    return MetricRow(
        name=plain(metric.metric),
        meaning=_meaning(metric.metric),
        outcome=str(metric.outcome),
        baseline=of_unit(metric.baseline_value, metric.unit, f"{source}/baseline_value"),
        now=of_unit(metric.now_value, metric.unit, f"{source}/now_value"),
        loss=share(metric.loss_ratio, f"{source}/loss_ratio"),
        lower=share(metric.loss_lower_bound_ratio, f"{source}/loss_lower_bound_ratio"),
        upper=share(metric.loss_upper_bound_ratio, f"{source}/loss_upper_bound_ratio"),
        tolerance=tolerance_of(metric, source),
        times=times_tolerance(metric, source),
        detectable=share(
            metric.smallest_detectable_loss_ratio,
            f"{source}/smallest_detectable_loss_ratio",
            signed=False,
        ),
        arms=tuple(_arm_shown(material, cell, metric.metric, arm) for arm in arms),
        reason=plain(metric.reason),
    )


def _meaning(metric: str) -> str:
    known = METRICS.get(metric)
    if known is None:
        return ""
    better = "higher" if known.direction.value == "higher_is_better" else "lower"
    return f"{known.description}. {better.capitalize()} is better."


def _arm_shown(material: RunMaterial, cell: CellVerdict, metric: str, arm: Arm) -> Shown:
    found = material.measurement(cell)
    unit = METRICS[metric].unit if metric in METRICS else ""
    if found is None:
        return Shown(None, "-", f"{material.prefix}measurements.json is missing")
    value, _ = arm_value(found[1], arm, metric)
    source = f"median of {material.prefix}measurements.json#/cells/{found[0]} {arm} {metric}"
    return of_unit(value, unit, source)


def _value_row(
    material: RunMaterial, cell: CellVerdict, metric: str, arms: tuple[Arm, ...]
) -> ValueRow:
    shown = tuple(_arm_shown(material, cell, metric, arm) for arm in arms)
    return ValueRow(metric, _meaning(metric), shown)


def _worst(rows: tuple[MetricRow, ...], metrics: tuple[MetricVerdict, ...]) -> MetricRow | None:
    """The worst outcome, then the largest loss for its tolerance."""
    ranked = sorted(
        zip(rows, metrics, strict=True),
        key=lambda pair: (SEVERITY[pair[1].outcome], _size(pair[1])),
    )
    return ranked[-1][0] if ranked else None


def _size(metric: MetricVerdict) -> float:
    if metric.loss_ratio is None:
        return -math.inf
    if metric.tolerance_ratio:
        return metric.loss_ratio / metric.tolerance_ratio
    return metric.loss_ratio if metric.outcome is not Outcome.PASS else -1.0


def _difference(one: ConfigDifference) -> tuple[str, str, str, str]:
    return plain(one.key), plain(repr(one.was)), plain(repr(one.now)), plain(one.forced_by)


def _reasons(cell: CellVerdict) -> list[str]:
    lines = [plain(line) for reason in cell.invalid_reasons for line in reason_lines(reason)]
    return [*lines, *([plain(cell.missing)] if cell.missing else [])]


def _environment(material: RunMaterial, cell: CellVerdict) -> tuple[tuple[str, str], ...]:
    found = material.measurement(cell)
    candidates = found[1].arm(Arm.CANDIDATE) if found is not None else ()
    if not candidates:
        return ()
    last = candidates[-1]
    own = {"host": last.host, "hardware class": found[1].hardware_class if found else ""}
    known = {**own, **last.environment}
    return tuple((plain(key), plain(value)) for key, value in sorted(known.items()) if value)


def _sessions(material: RunMaterial, cell: CellVerdict) -> tuple[str, ...]:
    """One text for each excluded session or round."""
    found = material.measurement(cell)
    lines = []
    for session in found[1].sessions if found is not None else ():
        name = f"{_arm_name(session.arm, cell.mode)} session {plain(session.session_id)}"
        lines += [f"{name}: {plain(reason.text)}" for reason in session.invalid_reasons]
        lines += [
            f"{name}, round {measured.round_index}: {plain(reason.text)}"
            for measured in session.rounds
            for reason in measured.invalid_reasons
        ]
    return tuple(lines)


def reproduce(material: RunMaterial, cell: CellVerdict) -> str:
    """The commands that measure the cell again."""
    known = material.experiment
    commit = plain(known.get("commit") or material.verdict.commit)
    words = ["pytest", "perf_tests", "-k", plain(cell.cell_id), "--k3-target", plain(cell.target)]
    base = known.get("ab_base", "")
    if cell.mode == "ab" and base:
        words += ["--k3-ab-base", plain(base)]
    elif cell.mode:
        words += ["--k3-mode", plain(cell.mode)]
    for fault in filter(None, known.get("injected", "").split(",")):
        words += ["--k3-inject", plain(fault)]
    revision = commit.removesuffix("-dirty")
    checkout = f"git checkout {shlex.quote(revision)}\n" if revision not in ("", "unknown") else ""
    edited = "# the work tree had uncommitted changes\n" if commit.endswith("-dirty") else ""
    return f"{checkout}{edited}{shlex.join(words)}"
