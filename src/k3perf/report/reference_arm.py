"""What ``reference`` mode cannot see, and the reference arm's own values. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict, MetricVerdict
from k3perf.report.numbers import change_text, value_text

_BLIND_SIDE: Final = (
    "reference mode cannot see a loss common to both arms: a slower engine, kernel, driver or"
    " machine is divided out. --k3-ab-base measures against the base's engine"
)


def blind_side(cells: Iterable[CellVerdict]) -> str:
    """The line that every report of ``reference`` mode has. Empty without such a
    cell.
    """
    return _BLIND_SIDE if any(cell.mode == "reference" for cell in cells) else ""


def arm_lines(cell: CellVerdict) -> list[str]:
    """A line per metric: value, recorded value, change and limit."""
    return [f"reference arm: {_line(metric)}" for metric in cell.reference_arm]


def failing_arm_lines(cell: CellVerdict) -> list[str]:
    """Those beyond the limit, with the reason."""
    return [
        f"reference arm: {metric.outcome}, {_line(metric)}: {metric.reason}"
        for metric in cell.reference_arm
        if metric.outcome is not Outcome.PASS
    ]


def _line(metric: MetricVerdict) -> str:
    return (
        f"{metric.metric} {value_text(metric.now_value, metric.unit)},"
        f" recorded {value_text(metric.baseline_value, metric.unit)}, {change_text(metric)}"
        f" (limit {metric.tolerance_ratio or 0.0:.0%} worse)"
    )
