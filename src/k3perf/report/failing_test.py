"""What a failing test of the suite says. Pure: verdict in, text out."""

from __future__ import annotations

from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict
from k3perf.report.causes import cause_lines, cell_name, difference_text
from k3perf.report.table import change_text, tolerance_text, value_text


def failure_text(verdict: CellVerdict, shown_at: str = "") -> str:
    """Why a test of a cell failed, in a few lines; the tables and an engine's log are
    in the summary of the run.

    ``shown_at``: the test that already failed for the cell as a whole (no metric of it
    was judged); this one refers to it.
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
