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
from k3perf.report.attribution_lines import attribution_lines
from k3perf.report.causes import (
    cause_lines,
    cell_name,
    difference_lines,
    difference_text,
    shared_differences,
    unjudged_blocks,
)
from k3perf.report.numbers import change_text, mde_text, tolerance_text, value_text
from k3perf.report.reference_arm import arm_lines, blind_side, failing_arm_lines
from k3perf.report.siblings import sibling_notes

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
    Outcome.NO_BASELINE: "No baseline is committed. Record it with the commands above.",
    Outcome.CONFIG_DRIFT: (
        "The engine's settings differ from the approved ones. Set the values in the config,"
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
        f"{cell.target} · {cell.config} · {cell.workload}   {cell.outcome_text}   ({cell.mode}"
        " mode)"
    )
    if not cell.metrics:
        return "\n".join([heading, *lines_below(cell, elsewhere)])
    body = _render(_table(cell), color=color)
    if max(len(line) for line in Text.from_ansi(body).plain.splitlines()) > width:
        body = _render(_list(cell), color=color)
    return "\n".join([heading, body, *lines_below(cell, elsewhere)])


def _table(cell: CellVerdict) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=None)
    for heading in ("metric", *_sides(cell), "change", "MDE", "tolerance", "outcome"):
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
        values = _values(cell, metric)
        seen = mde_text(metric)
        lines.append(
            f"\n    {values}, tolerance {tolerance_text(metric)}{f', MDE {seen}' if seen else ''}"
        )
    return lines


def _sides(cell: CellVerdict) -> tuple[str, str]:
    """What a cell's numbers are compared with, and what is judged."""
    return ("base", "candidate") if cell.mode == "ab" else ("baseline", "now")


def _values(cell: CellVerdict, metric: MetricVerdict) -> str:
    was, now = _sides(cell)
    return (
        f"{was} {value_text(metric.baseline_value, metric.unit)},"
        f" {now} {value_text(metric.now_value, metric.unit)}"
    )


def lines_below(cell: CellVerdict, elsewhere: Container[str] = ()) -> list[str]:
    """Differences, reasons and notes of a cell, a line each. Without the differences
    in ``elsewhere``.
    """
    known = difference_lines(cell)
    lines = [f"  {line}" for line in known if line not in elsewhere]
    if len(lines) < len(known):
        kind = known[0].partition(":")[0]
        lines.append(f"  {kind}: see the differences of several cells below")
    lines += [f"  invalid: {reason.text} [{reason.rule}]" for reason in cell.invalid_reasons]
    lines += [f"  no baseline: {cell.missing}"] if cell.missing else []
    lines += [
        f"  {metric.metric}: {metric.reason}"
        for metric in cell.metrics
        if metric.reason and metric.outcome is not Outcome.PASS
    ]
    failing = failing_arm_lines(cell)
    lines += [f"  {line}" for line in failing or arm_lines(cell)]
    lines += [f"  {line}" for line in attribution_lines(cell)]
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
                    "differences of several cells:",
                    *(f"  {text} ({len(names)} cells)" for text, names in shared.items()),
                ]
            )
        )
    parts += unjudged_blocks(cell for cell in verdict.cells if not cell.metrics)
    alone = [f"note: {note}" for note in sibling_notes(verdict.cells)]
    parts += ["\n".join(alone)] if alone else []
    counts = Counter(cell.outcome_text for cell in verdict.cells)
    each = (
        f" ({', '.join(f'{count} {outcome}' for outcome, count in counts.items())})"
        if len(counts) > 1
        else ""
    )
    meanings = [MEANING[verdict.outcome]]
    if verdict.drifted and verdict.outcome is not Outcome.CONFIG_DRIFT:
        meanings.append(MEANING[Outcome.CONFIG_DRIFT])
    parts.append(
        f"outcome: {verdict.outcome_text} - {len(verdict.cells)}"
        f" cell{'s' if len(verdict.cells) != 1 else ''}{each}, {verdict.gated_metric_count} gated"
        f" metrics, family-wise error rate of the whole run {verdict.false_alarm_budget:.1%}\n "
        f" {' '.join(meanings)}"
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
    lines = [f"{verdict.outcome_text}: {name}"]
    for metric in verdict.metrics:
        if metric.outcome not in (Outcome.PASS, Outcome.IMPROVED):
            lines.append(
                f"  {metric.metric}: {metric.outcome}, {change_text(metric)}, tolerance"
                f" {tolerance_text(metric)}, {_values(verdict, metric)}"
            )
            lines += [f"    {metric.reason}"] if metric.reason else []
    lines += [f"  {line}" for line in failing_arm_lines(verdict)]
    for reason in verdict.invalid_reasons:
        lines.append(
            f"  {reason.failure.message if reason.failure is not None else reason.text}"
            f" [{reason.rule}]"
        )
        lines += [f"  {line}" for line in cause_lines(reason)]
    if verdict.drifted:
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
        lines.append(blind_side(cells))
    if any(cell.mode == "ab" for cell in cells):
        lines.append(
            "ab mode: base is what --k3-ab-base names, candidate is this checkout on the engine of"
            " --k3-engine-python, measured side by side in this run; worse means that the candidate"
            " is worse than the base"
        )
    return "\n".join(f"  {line}" for line in lines)


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
