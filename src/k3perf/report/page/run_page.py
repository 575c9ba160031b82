"""A run's results to its page. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from k3perf.records.outcome import SEVERITY, Outcome, join
from k3perf.records.verdict import CellVerdict
from k3perf.report.attribution_lines import headline as cause_headline
from k3perf.report.causes import causes_of
from k3perf.report.page.cells import CellView, MetricRow, cell_view
from k3perf.report.page.chart_data import cell_data
from k3perf.report.page.frame import html_page
from k3perf.report.page.material import RunMaterial
from k3perf.report.page.shown import Sentence, plain
from k3perf.report.page.timeline import READINGS, timeline
from k3perf.report.reference_arm import blind_side
from k3perf.report.table import MEANING


def run_page(materials: Sequence[RunMaterial]) -> str:
    """One page for one run, or for the shards of one."""
    pairs = [
        (material, place) for material in materials for place in range(len(material.verdict.cells))
    ]
    verdicts = [material.verdict.cells[place] for material, place in pairs]
    views = [cell_view(*pair, number) for number, pair in enumerate(pairs)]
    ordered = sorted(views, key=lambda view: (-view.severity, _minus_size(view)))
    outcome = join(cell.outcome for cell in verdicts)
    data: dict[str, Any] = {
        f"cell-data-{view.number}": cell_data(pairs[view.number][0], verdicts[view.number])
        for view in views
        if view.drawn
    }
    runs, run_data = _runs(materials)
    data |= run_data
    counts = Counter(str(cell.outcome) for cell in verdicts)
    drifted = any(cell.drifted for cell in verdicts) and outcome is not Outcome.CONFIG_DRIFT
    context = {
        "title": f"k3perf: {outcome}",
        "outcome": str(outcome),
        "drifted": drifted,
        "headline": headline(ordered, outcome),
        "meaning": " ".join(filter(None, (MEANING[outcome], _blind(verdicts)))),
        "facts": _facts(materials, verdicts),
        "absent": _absent(materials),
        "cells": ordered,
        "counts": sorted(counts.items(), key=lambda entry: -SEVERITY[Outcome(entry[0])]),
        "failures": _failures(verdicts),
        "runs": runs,
    }
    drawn = any(view.drawn for view in views) or any(run["drawn"] for run in runs)
    return html_page("run.html.j2", context, data, charts=drawn)


def _minus_size(view: CellView) -> float:
    worst = view.worst
    return -(worst.times.value or 0.0) if worst is not None else 0.0


def headline(views: Sequence[CellView], outcome: Outcome) -> Sentence:
    """The worst row in one sentence, and the likeliest cause. A mean would hide it."""
    first = next((view for view in views if view.outcome == str(outcome)), None)
    if first is None:
        return ["This run judged no cell."]
    name = f"{first.target} · {first.config} · {first.workload}"
    count = sum(view.outcome == str(outcome) for view in views)
    others = (
        f" {count - 1} more cell{'s' if count > 2 else ''} ended the same way." if count > 1 else ""
    )
    if first.worst is not None and outcome in (Outcome.REGRESSED, Outcome.SUSPECT):
        cause = cause_headline(first.attribution)
        return [*_lost(first.worst, name), f" {cause}." if cause else "", others]
    if outcome is Outcome.IMPROVED and first.worst is not None:
        return [*_lost(first.worst, name), others]
    if first.reasons:
        return [f"{name}: {first.reasons[0]}", others]
    if outcome is Outcome.CONFIG_DRIFT and first.differences:
        key, was, now, _ = first.differences[0]
        return [f"{name}: {key} was {was}, is {now}.", others]
    judged = sum(len(view.rows) for view in views)
    return [f"{judged} gated metrics of {len(views)} cell{'s' if len(views) != 1 else ''} judged."]


def _lost(row: MetricRow, name: str) -> Sentence:
    if row.loss.value is None:
        return [f"{row.name} of {name} went from ", row.baseline, " to ", row.now, "."]
    was, now = row.arms if len(row.arms) == 2 else (row.baseline, row.now)
    against = "the reference's " if row.arms else "the baseline's "
    return [
        f"{row.name} of {name}: loss ",
        row.loss,
        ", tolerance ",
        row.tolerance,
        ". Now ",
        now,
        f", {against}",
        was,
        ".",
    ]


def _blind(cells: Sequence[CellVerdict]) -> str:
    text = blind_side(cells)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _facts(materials: Sequence[RunMaterial], cells: Sequence[CellVerdict]) -> list[tuple[str, str]]:
    first = materials[0].verdict
    found = [
        ("run", ", ".join(dict.fromkeys(plain(one.verdict.run_id) for one in materials))),
        ("commit", plain(first.commit)),
        ("vLLM", plain(first.vllm_version)),
        ("written", plain(first.created_at_utc)),
        ("cells", str(len(cells))),
        ("gated metrics", str(max(one.verdict.gated_metric_count for one in materials))),
        ("family-wise error rate", f"{first.false_alarm_budget:.1%}"),
    ]
    devices = materials[0].measurements.identity if materials[0].measurements else {}
    for key in ("devices", "driver"):
        if devices.get(key) not in (None, "", "absent"):
            found.append((key, plain(devices[key])))
    injected = materials[0].measurements.injected if materials[0].measurements else ""
    return [*found, *([("injected fault", plain(injected))] if injected else [])]


def _absent(materials: Sequence[RunMaterial]) -> list[str]:
    """What is missing from the page, and why."""
    lines = []
    for material in materials:
        name = f"{plain(material.prefix)}" or "The run's directory: "
        if material.measurements is None:
            lines.append(f"{name} measurements.json is missing, so rounds and arms are not shown.")
        elif not material.sessions:
            lines.append(
                f"{name} results.jsonl is missing, so distributions and timeline are not shown."
            )
    return lines


def _failures(cells: Sequence[CellVerdict]) -> list[tuple[str, list[tuple[int, str]]]]:
    """Cells that were not judged or drifted, grouped by their causes, and lost cells by
    the part that moved.
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    for number, cell in enumerate(cells):
        if cell.outcome in (Outcome.PASS, Outcome.IMPROVED, Outcome.INCONCLUSIVE):
            continue
        cause = cause_headline(cell.attribution).partition(" (")[0]
        text = f"{cell.outcome}: {cause}" if cause else ": ".join(causes_of(cell)[:2])
        name = f"{cell.config} {cell.workload}"
        groups.setdefault(plain(text.rstrip(": ")), []).append((number, plain(name)))
    return sorted(groups.items(), key=lambda entry: -len(entry[1]))


def _runs(materials: Sequence[RunMaterial]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    runs, data = [], {}
    for number, material in enumerate(materials):
        found = timeline(material)
        names = {row["name"] for row in found["readings"]}
        runs.append(
            {
                "number": number,
                "label": f"Run {plain(material.verdict.run_id)}",
                "drawn": bool(found["spans"]),
                "readings": [name for name in READINGS.values() if name in names],
                "missing": "No results.jsonl with rounds: there is no timeline.",
            }
        )
        data[f"run-data-{number}"] = found
    return runs, data
