"""A verdict as tables that people read in a terminal. Pure: verdict in, text out."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from k3perf.gate.outcome import Outcome
from k3perf.gate.verdict import CellVerdict, MetricVerdict, SuiteVerdict
from k3perf.units import format_bytes

NATURAL_WIDTH: Final = 160  # no cell is cut: a terminal that is narrower wraps the line, and every number stays readable

OUTCOME_STYLE: Final = {
    Outcome.PASS: "green",
    Outcome.IMPROVED: "bold green",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.INVALID: "magenta",
    Outcome.NO_BASELINE: "blue",
    Outcome.CONFIG_DRIFT: "bold yellow",
    Outcome.REGRESSED: "bold red",
}


def cell_table(cell: CellVerdict, *, width: int = 120, color: bool = False) -> str:
    """One cell: metric, baseline, now, change, tolerance, outcome, then differences, reasons and notes as lines below."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=None)
    for heading in ("metric", "baseline", "now", "change", "could see", "tolerance", "outcome"):
        table.add_column(heading, justify="left" if heading in ("metric", "outcome") else "right", no_wrap=True)
    for metric in cell.metrics:
        table.add_row(
            metric.metric,
            value_text(metric.baseline_value, metric.unit),
            value_text(metric.now_value, metric.unit),
            change_text(metric),
            "" if metric.smallest_detectable_loss_ratio is None else f"{metric.smallest_detectable_loss_ratio:.1%}",
            tolerance_text(metric),
            Text(str(metric.outcome), style=OUTCOME_STYLE[metric.outcome]),
        )
    heading = f"{cell.target} · {cell.config} · {cell.workload}   {cell.outcome}   ({cell.mode} mode)"
    body = _render(table, width=max(width, NATURAL_WIDTH), color=color) if cell.metrics else ""
    return "\n".join([heading, *([body] if body else []), *lines_below(cell)])


def lines_below(cell: CellVerdict) -> list[str]:
    """Differences, reasons and notes of a cell, a line each."""
    lines = [
        f"  config drift: {d.key}: was {d.was!r}, is {d.now!r}{f' (forced by {d.forced_by})' if d.forced_by else ''}"
        for d in cell.differences
    ]
    lines += [f"  invalid: {reason.text} [{reason.rule}]" for reason in cell.invalid_reasons]
    lines += [f"  no baseline: {cell.missing}"] if cell.missing else []
    lines += [f"  {metric.metric}: {metric.reason}" for metric in cell.metrics if metric.reason and metric.outcome is not Outcome.PASS]
    lines += [f"  note: {note}" for note in cell.notes]
    return lines


def suite_summary(verdict: SuiteVerdict, *, width: int = 120, color: bool = False) -> str:
    """Every cell's table, causes that several cells share told once, and the error budget the run was judged under."""
    parts = [cell_table(cell, width=width, color=color) for cell in verdict.cells]
    causes = shared_causes(verdict.cells)
    if causes:
        parts.append("causes shared by several cells:\n" + "\n".join(f"  {len(cells)} cells: {text}" for text, cells in causes.items()))
    parts.append(
        f"outcome: {verdict.outcome} - {len(verdict.cells)} cell(s), {verdict.gated_metric_count} gated metrics, "
        f"false-alarm budget of the whole run {verdict.false_alarm_budget:.1%}"
    )
    return "\n\n".join(parts)


def shared_causes(cells: Sequence[CellVerdict]) -> dict[str, tuple[str, ...]]:
    """Reasons given by at least two cells, with the cells."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        texts = {reason.text for reason in cell.invalid_reasons} | {f"{d.key}: {d.was!r} -> {d.now!r}" for d in cell.differences}
        for text in sorted(texts):
            found.setdefault(text, []).append(f"{cell.target}-{cell.config}-{cell.workload}")
    return {text: tuple(names) for text, names in found.items() if len(names) > 1}


def value_text(value: float | None, unit: str) -> str:
    """A value with its unit; None is shown as a dash, never as 0."""
    if value is None:
        return "-"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "tokens":
        return f"{value:,.0f}"
    if unit == "ratio":
        return f"{value:.4f}"
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.4g} {unit}"


def change_text(metric: MetricVerdict) -> str:
    """The change in the metric's own sense, with the interval where there is one: ``-4.1 % (-6.0 .. -2.2)``."""
    if metric.loss_ratio is None:
        if metric.now_value is None or metric.baseline_value is None:
            return "-"
        difference = metric.now_value - metric.baseline_value
        return "=" if difference == 0 else f"{difference:+,.0f}"
    if metric.loss_ratio == 0 and metric.now_value == metric.baseline_value:
        return "="
    text = f"{_sign(metric.loss_ratio)} {abs(metric.loss_ratio):.1%}"
    if metric.loss_lower_bound_ratio is None or metric.loss_upper_bound_ratio is None:
        return text
    return f"{text} ({-metric.loss_upper_bound_ratio:+.1%} .. {-metric.loss_lower_bound_ratio:+.1%})"


def _sign(loss_ratio: float) -> str:
    return "worse" if loss_ratio > 0 else "better"


def tolerance_text(metric: MetricVerdict) -> str:
    """The accepted loss, as a share or in the metric's unit."""
    if metric.tolerance_ratio is not None:
        return f"{metric.tolerance_ratio:.1%}"
    if metric.tolerance_absolute is not None:
        return value_text(metric.tolerance_absolute, metric.unit)
    return "-"


def _render(table: Table, *, width: int, color: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=color, color_system="standard" if color else None, legacy_windows=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip().splitlines())
