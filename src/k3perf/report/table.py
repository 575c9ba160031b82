"""A verdict as tables that people read in a terminal. Pure: verdict in, text out."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Container, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict, MetricVerdict, SuiteVerdict
from k3perf.report.causes import (
    cause_lines,
    cell_name,
    difference_text,
    shared_differences,
    unjudged_blocks,
)
from k3perf.units import format_bytes

NATURAL_WIDTH: Final = 160  # no table is wider

MEANING: Final = {
    Outcome.PASS: "No gated metric lost more than its tolerance.",
    Outcome.IMPROVED: (
        "A gated metric is better than its baseline. To keep the gain: k3perf baseline propose,"
        " then accept."
    ),
    Outcome.INCONCLUSIVE: (
        "The measurement plan ended before the evidence decided. The estimate lies inside the"
        " tolerance. Run it again, or raise maximum_sessions of the target."
    ),
    Outcome.SUSPECT: (
        "The estimate lies beyond the tolerance and the loss is not proven. Raise"
        " maximum_suspect_sessions of the target, or compare with --k3-ab-base."
    ),
    Outcome.INVALID: (
        "This measurement cannot be trusted and says nothing about the change. Fix the cause above,"
        " then run again."
    ),
    Outcome.NO_BASELINE: "Nothing is committed to compare with. Record it with the commands above.",
    Outcome.CONFIG_DRIFT: (
        "The engine runs with other settings than the approved ones. Set the values in the config,"
        " or record and accept."
    ),
    Outcome.REGRESSED: (
        "A loss beyond the tolerance is proven. Fix the change, or record and accept the loss with"
        " a reason."
    ),
}

OUTCOME_STYLE: Final = {
    Outcome.PASS: "green",
    Outcome.IMPROVED: "bold green",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.SUSPECT: "red",
    Outcome.INVALID: "magenta",
    Outcome.NO_BASELINE: "blue",
    Outcome.CONFIG_DRIFT: "bold yellow",
    Outcome.REGRESSED: "bold red",
}


def cell_table(
    cell: CellVerdict,
    *,
    width: int = NATURAL_WIDTH,
    color: bool = False,
    elsewhere: Container[str] = (),
) -> str:
    """One cell: metric, baseline, now, change, tolerance, outcome, then differences,
    reasons and notes as lines below.

    Where ``width`` columns do not hold the table, each metric gets two lines
    instead. ``elsewhere``: differences that are shown elsewhere.
    """
    heading = (
        f"{cell.target} · {cell.config} · {cell.workload}   {cell.outcome}   ({cell.mode} mode)"
    )
    if not cell.metrics:
        return "\n".join([heading, *lines_below(cell, elsewhere)])
    body = _render(_table(cell), color=color)
    if max(len(line) for line in Text.from_ansi(body).plain.splitlines()) > width:
        body = _render(_list(cell), color=color)
    return "\n".join([heading, body, *lines_below(cell, elsewhere)])


def _table(cell: CellVerdict) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=None)
    for heading in ("metric", "baseline", "now", "change", "MDE", "tolerance", "outcome"):
        table.add_column(
            heading, justify="left" if heading in ("metric", "outcome") else "right", no_wrap=True
        )
    for metric in cell.metrics:
        table.add_row(
            metric.metric,
            value_text(metric.baseline_value, metric.unit),
            value_text(metric.now_value, metric.unit),
            change_text(metric),
            mde_text(metric),
            tolerance_text(metric),
            Text(str(metric.outcome), style=OUTCOME_STYLE[metric.outcome]),
        )
    return table


def _list(cell: CellVerdict) -> Text:
    """The table's contents for a narrow terminal: two lines a metric."""
    lines = Text()
    for metric in cell.metrics:
        lines.append(f"\n  {metric.metric}: ").append(
            str(metric.outcome), style=OUTCOME_STYLE[metric.outcome]
        )
        change = change_text(metric)
        lines.append(", no change" if change == "=" else f", {change}")
        values = (
            f"baseline {value_text(metric.baseline_value, metric.unit)}, now"
            f" {value_text(metric.now_value, metric.unit)}"
        )
        seen = mde_text(metric)
        lines.append(
            f"\n    {values}, tolerance {tolerance_text(metric)}{f', MDE {seen}' if seen else ''}"
        )
    return lines


def lines_below(cell: CellVerdict, elsewhere: Container[str] = ()) -> list[str]:
    """Differences, reasons and notes of a cell, a line each. Without the differences
    in ``elsewhere``.
    """
    lines = [
        f"  config drift: {text}"
        for text in map(difference_text, cell.differences)
        if text not in elsewhere
    ]
    if len(lines) < len(cell.differences):
        lines.append("  config drift: see the changed values of several cells below")
    lines += [f"  invalid: {reason.text} [{reason.rule}]" for reason in cell.invalid_reasons]
    lines += [f"  no baseline: {cell.missing}"] if cell.missing else []
    lines += [
        f"  {metric.metric}: {metric.reason}"
        for metric in cell.metrics
        if metric.reason and metric.outcome is not Outcome.PASS
    ]
    lines += [f"  note: {note}" for note in cell.notes]
    return lines


def suite_summary(verdict: SuiteVerdict, *, width: int = NATURAL_WIDTH, color: bool = False) -> str:
    """The table of every judged cell, then why others have none, and what the run came
    to and what to do next.
    """
    judged = [cell for cell in verdict.cells if cell.metrics]
    shared = shared_differences(judged)
    parts = [cell_table(cell, width=width, color=color, elsewhere=shared) for cell in judged]
    if judged:
        parts.append(_legend(judged))
    if shared:
        parts.append(
            "\n".join(
                [
                    "changed values of several cells:",
                    *(f"  {text} ({len(names)} cells)" for text, names in shared.items()),
                ]
            )
        )
    parts += unjudged_blocks(cell for cell in verdict.cells if not cell.metrics)
    counts = Counter(str(cell.outcome) for cell in verdict.cells)
    each = (
        f" ({', '.join(f'{count} {outcome}' for outcome, count in counts.items())})"
        if len(counts) > 1
        else ""
    )
    parts.append(
        f"outcome: {verdict.outcome} - {len(verdict.cells)}"
        f" cell{'s' if len(verdict.cells) != 1 else ''}{each}, {verdict.gated_metric_count} gated"
        f" metrics, family-wise error rate of the whole run {verdict.false_alarm_budget:.1%}\n "
        f" {MEANING[verdict.outcome]}"
    )
    return "\n\n".join(parts)


def recording_summary(cells: Sequence[CellVerdict]) -> str:
    """What was recorded of each cell, then why others have nothing, each cause once."""
    lines = ["recorded, not judged:"]
    for cell in cells:
        if not cell.invalid_reasons:
            lines += [f"  {cell_name(cell)}", *(f"  {line}" for line in lines_below(cell))]
    parts = ["\n".join(lines)] if len(lines) > 1 else []
    return "\n\n".join([*parts, *unjudged_blocks(cell for cell in cells if cell.invalid_reasons)])


def failure_text(verdict: CellVerdict, shown_at: str = "") -> str:
    """Why a test of a cell failed, in a few lines. The run's summary has the tables and
    an engine's log.

    ``shown_at``: the test that already failed for a cell of which no metric was judged.
    This one refers to it.
    """
    name = cell_name(verdict)
    if not verdict.metrics and shown_at:
        return f"{verdict.outcome}: {name}, see {shown_at} above"
    lines = [f"{verdict.outcome}: {name}"]
    for metric in verdict.metrics:
        if metric.outcome not in (Outcome.PASS, Outcome.IMPROVED):
            values = (
                f"baseline {value_text(metric.baseline_value, metric.unit)}, now"
                f" {value_text(metric.now_value, metric.unit)}"
            )
            lines.append(
                f"  {metric.metric}: {metric.outcome}, {change_text(metric)}, tolerance"
                f" {tolerance_text(metric)}, {values}"
            )
            lines += [f"    {metric.reason}"] if metric.reason else []
    for reason in verdict.invalid_reasons:
        lines.append(
            f"  {reason.failure.message if reason.failure is not None else reason.text}"
            f" [{reason.rule}]"
        )
        lines += [f"  {line}" for line in cause_lines(reason)]
    lines += [f"  {difference_text(difference)}" for difference in verdict.differences]
    lines += [f"  {verdict.missing}"] if verdict.missing else []
    if verdict.metrics or any(reason.failure is not None for reason in verdict.invalid_reasons):
        lines.append('More under "k3perf" below.')
    return "\n".join(lines)


def _legend(cells: Sequence[CellVerdict]) -> str:
    """What the columns mean, for someone who sees the table for the first time."""
    lines = [
        "change: better or worse than the baseline, with its confidence interval (- is worse, + is"
        " better)"
    ]
    lines.append("MDE: minimum detectable effect, the smallest loss that this run could detect")
    if any(cell.mode == "reference" for cell in cells):
        lines.append(
            "reference mode: timings are ratios to the reference config, measured side by side in"
            " this run; the rest is absolute"
        )
    if any(cell.mode == "ab" for cell in cells):
        lines.append(
            "ab mode: the baseline is the base named by --k3-ab-base, measured side by side in"
            " this run"
        )
    return "\n".join(f"  {line}" for line in lines)


def value_text(value: float | None, unit: str) -> str:
    """A value with its unit. None is a dash, never 0."""
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
    """The change in the metric's own sense, with the interval where there is one:
    ``-4.1 % (-6.0 .. -2.2)``.
    """
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
    return (
        f"{text} ({-metric.loss_upper_bound_ratio:+.1%} .. {-metric.loss_lower_bound_ratio:+.1%})"
    )


def mde_text(metric: MetricVerdict) -> str:
    """The minimum detectable effect. Empty for a metric that is compared exactly."""
    return (
        ""
        if metric.smallest_detectable_loss_ratio is None
        else f"{metric.smallest_detectable_loss_ratio:.1%}"
    )


def _sign(loss_ratio: float) -> str:
    return "worse" if loss_ratio > 0 else "better"


def tolerance_text(metric: MetricVerdict) -> str:
    """The accepted loss, as a share or in the metric's unit."""
    if metric.tolerance_ratio is not None:
        return f"{metric.tolerance_ratio:.1%}"
    if metric.tolerance_absolute is not None:
        return value_text(metric.tolerance_absolute, metric.unit)
    return "-"


def _render(body: Table | Text, *, color: bool) -> str:
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=NATURAL_WIDTH,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
    )
    console.print(body)
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip().splitlines())
