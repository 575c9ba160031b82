"""Approved cells and candidates. A cell that its target lists as a candidate is not
collected until it has a baseline. Every other cell is approved: without a baseline it
ends NO_BASELINE, so that a lost file is never a silent gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from k3perf.config.declared import ConfigName, Declared, Name

if TYPE_CHECKING:
    from k3perf.config.models import TargetSpec
    from k3perf.config.suite import Cell


class Candidate(Declared):
    """Cells of a target that have no baseline yet, and why."""

    configs: tuple[ConfigName, ...] = ()
    """Names of the configs. Empty: every config of the target."""
    workloads: tuple[Name, ...] = ()
    """Names of the workloads. Empty: every workload of the target, on request too."""
    reason: str = Field(min_length=8)
    """Why no baseline was recorded. Listings and docs/guarded-cells.md show it."""


HasBaseline = Callable[["Cell"], bool]
"""Whether numbers of a cell are committed."""


@dataclass(frozen=True, slots=True)
class CandidateCell:
    """A cell that is not approved, and why."""

    cell: Cell
    reason: str


def candidate_reason(target: TargetSpec, config: str, workload: str) -> str:
    """Why the target lists the cell as a candidate; empty if it does not."""
    return next(
        (
            entry.reason
            for entry in target.candidates
            if (not entry.configs or config in entry.configs)
            and (not entry.workloads or workload in entry.workloads)
        ),
        "",
    )


def candidates_of(cells: Iterable[Cell], has_baseline: HasBaseline) -> tuple[CandidateCell, ...]:
    """Those of ``cells`` that are listed as candidates and have no baseline.
    ``has_baseline`` is asked only about listed cells.
    """
    found = []
    for cell in cells:
        reason = candidate_reason(cell.target, cell.config.name, cell.workload.name)
        if reason and not has_baseline(cell):
            found.append(CandidateCell(cell, reason))
    return tuple(found)


def approved_cells(cells: Iterable[Cell], has_baseline: HasBaseline) -> tuple[Cell, ...]:
    """``cells`` without the candidates among them, in the same order."""
    every = tuple(cells)
    left_out = {entry.cell.cell_id for entry in candidates_of(every, has_baseline)}
    return tuple(cell for cell in every if cell.cell_id not in left_out)
