"""A cell that is far off while the others on its engine moved the other way. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from k3perf.records.verdict import CellVerdict, MetricVerdict
from k3perf.report.causes import cell_name
from k3perf.stats.estimators import median

_MOVED_SHARE: Final = 0.25
"""Share of the tolerance by which the others must have moved: less is noise."""

_ALONE_SHARE: Final = 0.5
"""Share of the tolerance that no other cell may exceed in the same direction."""

Moved = tuple[CellVerdict, MetricVerdict, float]


def sibling_notes(cells: Iterable[CellVerdict]) -> list[str]:
    """One note for each such cell and metric, in the order of the cells. Cells of one
    target and mode are served by the same engine, so a change of the engine moves all
    of them.
    """
    groups: dict[tuple[str, str, str], list[Moved]] = {}
    for cell in cells:
        for metric in cell.metrics:
            # exact metrics have no noise: one that differs is a finding, not a doubt
            if metric.loss_ratio is not None and metric.alpha is not None:
                key = (cell.target, cell.mode, metric.metric)
                groups.setdefault(key, []).append((cell, metric, metric.loss_ratio))
    return [
        note
        for group in groups.values()
        for place, moved in enumerate(group)
        if (note := _note(moved, [*group[:place], *group[place + 1 :]]))
    ]


def _note(moved: Moved, others: Sequence[Moved]) -> str:
    cell, metric, loss = moved
    tolerance = metric.tolerance_ratio
    if not others or tolerance is None or abs(loss) <= tolerance:
        return ""
    sign = 1 if loss > 0 else -1
    theirs = [sign * other for _, _, other in others]
    if median(theirs) >= -_MOVED_SHARE * tolerance or max(theirs) > _ALONE_SHARE * tolerance:
        return ""
    own, other = ("worse", "better") if loss > 0 else ("better", "worse")
    count = len(others)
    return (
        f"{metric.metric} of {cell_name(cell)} is {abs(loss):.1%} {own}, while the"
        f" {f'{count} other cells' if count > 1 else 'other cell'} on this engine moved the other"
        f" way (median {abs(median(theirs)):.1%} {other}): look at this config and its measurement"
        " before the engine"
    )
