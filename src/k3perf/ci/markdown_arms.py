"""Absolute values of both arms and the baseline behind a verdict, for a pull request's
comment. Pure. Every text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from k3perf.records.outcome import Outcome
from k3perf.records.verdict import ArmValues, BaselineSource, CellVerdict
from k3perf.report.escaping import code, number

_WORSE: Final = (Outcome.REGRESSED, Outcome.SUSPECT)
_ROWS: Final = 40


def absolute_section(cells: Iterable[CellVerdict]) -> list[str]:
    """Both arms' values of what got worse, in the metric's unit. Empty where the other
    tables show units already.
    """
    rows = [_row(cell, values) for cell in cells for values in _worse_values(cell)]
    if not rows:
        return []
    head = [
        "### Absolute values of both arms",
        "",
        "| cell | metric | candidate: recorded | candidate: now | reference or base: recorded"
        " | reference or base: now |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    more = ["", f"and {len(rows) - _ROWS} more."] if len(rows) > _ROWS else []
    return [*head, *rows[:_ROWS], *more, ""]


def source_text(source: BaselineSource) -> str:
    """``recorded 2026-11-02 to 2026-11-05 with vLLM 0.33.0, 6 sessions``."""
    days = " to ".join(dict.fromkeys(filter(None, (source.first_day, source.last_day))))
    when = f"recorded {code(days)}" if days else "recorded on an unknown day"
    if not days and source.accepted_at_utc:
        when = f"accepted {code(source.accepted_at_utc[:10])}"
    version = f"vLLM {code(source.vllm_version)}" if source.vllm_version else "an unknown vLLM"
    return f"{when} with {version}, {counted(source.session_count, 'session')}"


def counted(count: int, noun: str) -> str:
    """``1 session``, ``3 sessions``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def evidence_lines(cells: Iterable[CellVerdict]) -> list[str]:
    """The baselines of all judged cells, and the least evidence behind a metric. Each
    distinct baseline is named once, at most three.
    """
    cells = tuple(cells)
    sources = list(dict.fromkeys(source_text(c.judged_by) for c in cells if c.judged_by))
    lines = [f"Baseline: {text}." for text in sources[:3]]
    if len(sources) > 3:
        lines.append(f"{len(sources) - 3} more baselines are in verdict.json.")
    measured = [metric for cell in cells for metric in cell.metrics if metric.round_count]
    if measured:
        sessions = min(metric.session_count for metric in measured)
        rounds = min(metric.round_count for metric in measured)
        lines.append(
            f"Each judged metric has at least {counted(sessions, 'session')} and"
            f" {counted(rounds, 'round')} behind it."
        )
    return [" ".join(lines), ""] if lines else []


def _worse_values(cell: CellVerdict) -> list[ArmValues]:
    worse = {m.metric for m in (*cell.metrics, *cell.reference_arm) if m.outcome in _WORSE}
    return [values for values in cell.arm_values if values.metric in worse]


def _row(cell: CellVerdict, values: ArmValues) -> str:
    numbers = (
        values.recorded_candidate_value,
        values.candidate_value,
        values.recorded_reference_value,
        values.reference_value,
    )
    fields = [
        f"{code(cell.target)} {code(cell.config)} {code(cell.workload)}",
        code(values.metric),
        *(number(value, values.unit) for value in numbers),
    ]
    return f"| {' | '.join(fields)} |"
