"""The table of a change's judge, for a terminal and for GitHub. Pure.

Names and reasons come from files of a pull request: each goes through
``report.escaping``, and the table has an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from k3perf.ci.judge_changes import Effect, JudgeChange
from k3perf.report.escaping import code, prose, visible

_MAXIMUM_ROWS: Final = 200
_WIDEST: Final = 60
_HEAD: Final = ("effect", "kind", "key", "was", "is")
_ORDER: Final = {effect: position for position, effect in enumerate(Effect)}


def sorted_changes(changes: Sequence[JudgeChange]) -> tuple[JudgeChange, ...]:
    """Findings first, then by kind and key."""
    return tuple(sorted(changes, key=lambda one: (_ORDER[one.effect], one.kind, one.key)))


def text_table(changes: Sequence[JudgeChange]) -> str:
    """Aligned columns. Ends with the count line."""
    rows = [
        tuple(visible(cell, _WIDEST) for cell in (one.effect, one.kind, one.key, one.was, one.now))
        for one in changes[:_MAXIMUM_ROWS]
    ]
    widths = [max(len(row[index]) for row in (_HEAD, *rows)) for index in range(len(_HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in ((_HEAD, *rows) if rows else ())
    ]
    return "\n".join([*lines, *_cut(changes), counted(changes)]) + "\n"


def markdown_table(changes: Sequence[JudgeChange], *, acknowledged: bool) -> str:
    """A section of a job summary."""
    lines = ["## k3perf: what judges this change", "", f"{counted(changes)}."]
    if changes:
        lines += ["", f"| {' | '.join(_HEAD)} |", "| --- | --- | --- | --- | --- |"]
    for one in changes[:_MAXIMUM_ROWS]:
        effect = f"**{one.effect}**" if one.finding else one.effect.value
        lines.append(
            f"| {effect} | {prose(one.kind)} | {code(one.key, 200)} | {prose(one.was)} |"
            f" {prose(one.now)} |"
        )
    lines += ["", *_cut(changes)]
    if any(one.finding for one in changes):
        lines.append(
            "Acknowledged by a person."
            if acknowledged
            else "A person must acknowledge the rows in bold. See docs/ci.md."
        )
    return "\n".join(lines) + "\n"


def counted(changes: Sequence[JudgeChange]) -> str:
    """How many rows there are, and how many need a person."""
    findings = sum(one.finding for one in changes)
    return f"{len(changes)} changes of the judge, {findings} to acknowledge"


def _cut(changes: Sequence[JudgeChange]) -> list[str]:
    left = len(changes) - _MAXIMUM_ROWS
    return [f"{left} further rows are not shown"] if left > 0 else []
