"""Proposed and committed baselines as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from k3perf.baselines.accept import Change


def proposal_table(rows: Sequence[Change]) -> str:
    """A proposal's rows: what was committed, what is proposed, the loss of the one
    against the other and of both against the anchor.
    """
    lines = [
        f"  {'workload':<14} {'metric':<26} {'old':>16} {'new':>16} {'loss':>8} {'anchor':>8} "
        f" {'unit':<12} new, of sessions"
    ]
    for row in rows:
        lines.append(
            f"  {row.workload or '(all)':<14} {row.metric:<26}"
            f" {_value(row.old_value, row.unit):>16} {_value(row.new_value, row.unit):>16}"
            f" {_percent(row.loss_ratio):>8} {_percent(row.cumulative_loss_ratio):>8} "
            f" {row.unit:<12} {row.of_sessions}"
        )
    return "\n".join(lines) + "\n"


def committed_table(rows: Sequence[Change]) -> str:
    """A committed baseline's rows: its values, and their loss against the anchor."""
    lines = [
        f"  {'workload':<14} {'metric':<26} {'value':>16} {'anchor':>8}  {'unit':<12} value, of"
        " sessions"
    ]
    for row in rows:
        lines.append(
            f"  {row.workload or '(all)':<14} {row.metric:<26}"
            f" {_value(row.new_value, row.unit):>16} {_percent(row.cumulative_loss_ratio):>8} "
            f" {row.unit:<12} {row.of_sessions}"
        )
    return "\n".join(lines) + "\n"


def _value(value: float | None, unit: str) -> str:
    """Bytes and tokens in full, all else to six digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if unit in ("bytes", "tokens") else f"{value:.6g}"


def _percent(ratio: float | None) -> str:
    # the sum makes -0 a 0
    return "-" if ratio is None else f"{round(ratio, 4) + 0.0:+.2%}"
