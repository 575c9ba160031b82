"""Attributions for a pull request's comment. Pure. Every text is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from k3perf.records.verdict import CellVerdict
from k3perf.report.attribution_lines import unexplained_text
from k3perf.report.escaping import code, prose

_CELLS: Final = 10
_LINES: Final = 6


def attribution_section(cells: Iterable[CellVerdict]) -> list[str]:
    """The likeliest causes of each lost cell with their evidence. Empty without one."""
    found = [cell for cell in cells if cell.attribution is not None]
    if not found:
        return []
    lines = ["### Likely cause", ""]
    for cell in found[:_CELLS]:
        lines += _of_cell(cell)
    if len(found) > _CELLS:
        lines.append(f"* and {len(found) - _CELLS} more cells")
    return [*lines, ""]


def with_link(body: list[str], url: str) -> list[str]:
    """The body with a link to the HTML report below its first paragraph. Only a plain
    https address is linked.
    """
    if not re.fullmatch(r"https://[A-Za-z0-9.-]+(/[A-Za-z0-9._~/-]*)?", url):
        return body
    return [*body[:3], "", f"[Full report (HTML)]({url})", *body[3:]]


def _of_cell(cell: CellVerdict) -> list[str]:
    found = cell.attribution
    if found is None:
        return []
    name = f"{code(cell.target)} {code(cell.config)} {code(cell.workload)}"
    if not found.causes:
        return [f"* {name}: unknown, no part that can be read moved beyond its noise"]
    first, *others = found.causes
    lines = [f"* {name}: **{prose(first.text)}**, against {prose(found.compared_with)}"]
    lines += [f"  * {prose(line)}" for line in first.evidence[:_LINES]]
    lines += [f"  * then: {prose(other.text)}" for other in others[:2]]
    rest = unexplained_text(found)
    lines += [f"  * {prose(rest)}"] if rest else []
    lines += [f"  * changed: {prose(line)}" for line in found.changed[:_LINES]]
    return lines
