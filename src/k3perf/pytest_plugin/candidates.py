"""Candidates in a pytest run: deselected after ``-k`` and ``-m`` unless an option asks
for them, so that a call that hits nothing else can say so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from k3perf.config.candidates import CandidateCell, candidates_of
from k3perf.errors import ExitStatus, K3PerfError
from k3perf.store.baselines import baseline_known

if TYPE_CHECKING:
    from k3perf.pytest_plugin.selection import Selection
    from k3perf.pytest_plugin.state import PluginState
    from k3perf.store.base_checkout import Judge

_COLLECTED_WITH: Final = ("--k3-candidates", "--k3-record", "--k3-ab-base", "--k3-cells")
_SHOWN_COUNT: Final = 10


class OnlyCandidatesError(K3PerfError):
    """A call selects cells, and none of them has a baseline."""

    exit_status = ExitStatus.NO_BASELINE


def left_out_candidates(
    config: pytest.Config, selection: Selection, suite_root: Path, judge: Judge | None
) -> dict[str, CandidateCell]:
    """By cell id, the candidates that this call does not ask for. Raises
    ConfigFileError for a baseline of a listed cell that cannot be read.
    """
    if any(config.getoption(option) for option in _COLLECTED_WITH):
        return {}
    directories = [Path(config.getoption("--k3-baselines") or suite_root.parent / "baselines")]
    if judge is not None:
        directories.append(judge.baselines_directory)

    every = (*selection.cells, *selection.on_request_cells)
    return {
        entry.cell.cell_id: entry for entry in candidates_of(every, baseline_known(directories))
    }


def deselect(state: PluginState, items: list[pytest.Item]) -> None:
    """Take the candidates' tests out of ``items``, and remember which cells they are
    of.
    """
    from k3perf.pytest_plugin.marks import cell_of

    kept, gone = [], []
    for item in items:
        cell = cell_of(item)
        listed = None if cell is None else state.candidates.get(cell.cell_id)
        if listed is None:
            kept.append(item)
        else:
            gone.append(item)
            state.deselected_candidates[listed.cell.cell_id] = listed
    if gone:
        state.config.hook.pytest_deselected(items=gone)
        items[:] = kept


def require_more_than_candidates(state: PluginState) -> None:
    """Raises OnlyCandidatesError if this call selects candidates and no other cell."""
    found = tuple(state.deselected_candidates.values())
    if not found or state.selected_cells:
        return
    keyword = state.config.getoption("keyword")
    asked = f"-k {keyword!r}" if keyword else "this call"
    lines = [f"  {entry.cell.cell_id}: {entry.reason}" for entry in found[:_SHOWN_COUNT]]
    if len(found) > _SHOWN_COUNT:
        lines.append(f"  and {len(found) - _SHOWN_COUNT} more")
    targets = " ".join(
        f"--k3-target {name}" for name in dict.fromkeys(entry.cell.target.name for entry in found)
    )
    selected = f" -k {keyword!r}" if keyword else ""
    raise OnlyCandidatesError(
        "\n".join(
            [
                f"{asked} selects only candidates, which have no baseline:",
                *lines,
                f"Record them: pytest perf_tests{selected} {targets} --k3-record, then `k3perf"
                " baseline propose` and `k3perf baseline accept`.",
                "List them: add --k3-candidates --collect-only.",
            ]
        )
    )


def header_line(state: PluginState) -> list[str]:
    """How many cells of this run's targets and workloads are not collected."""
    count = sum(cell.cell_id in state.candidates for cell in state.selection.cells)
    if not count:
        return []
    return [
        f"k3perf: {count} candidate cells have no baseline and are not collected (-v lists them,"
        " --k3-candidates collects them, --k3-record records them)"
    ]


def candidate_lines(state: PluginState) -> list[str]:
    """With -v: each candidate of this run's targets, and why it has no baseline."""
    return [
        f"candidate: {cell.cell_id}: {state.candidates[cell.cell_id].reason}"
        for cell in state.selection.cells
        if cell.cell_id in state.candidates
    ]
