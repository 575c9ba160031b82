"""An attribution as lines of text. Pure."""

from __future__ import annotations

from typing import Final

from k3perf.records.attribution import Attribution, CauseFinding
from k3perf.records.verdict import CellVerdict

_CHANGES: Final = 6


def attribution_lines(cell: CellVerdict) -> list[str]:
    """Of a lost cell: causes with their evidence, the unexplained rest, and what else
    changed. Empty for others.
    """
    found = cell.attribution
    if found is None:
        return []
    lines = []
    for place, finding in enumerate(found.causes, start=1):
        lines.append(f"cause {place}: {finding.text}")
        lines += [f"  {line}" for line in finding.evidence]
    if not found.causes:
        lines.append("cause: unknown, no readable part changed by more than its noise")
    rest = unexplained_text(found)
    lines += [rest] if rest else []
    lines += [f"changed: {line}" for line in found.changed[:_CHANGES]]
    if len(found.changed) > _CHANGES:
        lines.append(f"changed: {len(found.changed) - _CHANGES} more, in verdict.json")
    return [*lines, f"compared with {found.compared_with}"]


def headline(found: Attribution | None) -> str:
    """The first cause in a few words, empty without one."""
    first: CauseFinding | None = found.causes[0] if found is not None and found.causes else None
    return first.text if first is not None else ""


def unexplained_text(found: Attribution) -> str:
    """The rest of the slowdown, empty below one percent."""
    rest = found.unexplained_ratio
    return f"unexplained: {rest:.0%} of the slowdown" if rest is not None and rest >= 0.01 else ""
