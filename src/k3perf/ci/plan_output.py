"""Fitted cells to the plan document, and the document to text and workflow matrices."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, Literal

from k3perf.ci.costs import CostBasis, CostModel
from k3perf.ci.night_plan import NEW_CELL_SESSIONS, FittedNight
from k3perf.ci.planning import Fitted, Shard, gated_metric_count
from k3perf.ci.selection import Priority, SelectedCell, Selection
from k3perf.config.suite import Suite
from k3perf.records.plan_file import CellLeftOut, PlanDocument, PlannedCell, PlannedShard

SECONDS_PER_MINUTE: Final = 60.0
_COST_NOTE: Final = {
    "measured": "",
    "related": " (minutes: estimated from other configs)",
    "assumed": " (minutes: assumed, no similar cell was recorded)",
}
_PRIORITY_NAME: Final[dict[Priority, Literal["direct", "descendant", "wide"]]] = {
    Priority.DIRECT: "direct",
    Priority.DESCENDANT: "descendant",
    Priority.WIDE: "wide",
}


def plan_document(
    suite: Suite,
    selection: Selection,
    cells: tuple[SelectedCell, ...],
    fitted: Fitted,
    shards: tuple[Shard, ...],
    costs: CostModel,
) -> PlanDocument:
    """The plan of the ``cells`` that ``fitted`` kept, split into ``shards``."""
    kept = {selected.cell.cell_id for group in fitted.groups for selected in group.cells}
    return PlanDocument(
        false_alarm_budget=suite.tolerances.false_alarm_budget,
        gated_metric_count=gated_metric_count(suite, fitted.groups),
        cells=tuple(
            _cell_entry(selected, costs.basis(selected.cell))
            for selected in cells
            if selected.cell.cell_id in kept
        ),
        left_out=tuple(
            CellLeftOut(cell=cell.cell_id, reason=reason) for cell, reason in fitted.left_out
        ),
        over_budget=fitted.over_budget,
        notes=selection.notes,
        device_minutes=round(
            sum(group.device_s for group in fitted.groups) / SECONDS_PER_MINUTE, 2
        ),
        shards=tuple(_shard_entry(shard, suite) for shard in shards),
    )


def night_document(
    suite: Suite,
    cells: Iterable[SelectedCell],
    fitted: FittedNight,
    costs: CostModel,
    notes: tuple[str, ...],
) -> PlanDocument:
    """The plan of a night. Cells without a baseline are in it too: none may be lost."""
    shards = [*(_shard_entry(shard, suite) for shard in fitted.judged)]
    shards += [_shard_entry(shard, suite, NEW_CELL_SESSIONS) for shard in fitted.recording]
    kept = {cell for shard in shards for cell in shard.cells}
    groups = [
        group for part in (fitted.judged, fitted.recording) for s in part for group in s.groups
    ]
    return PlanDocument(
        false_alarm_budget=suite.tolerances.false_alarm_budget,
        # a night that only records judges nothing, and a run takes no count of 0
        gated_metric_count=max(gated_metric_count(suite, fitted.groups), 1),
        cells=tuple(
            _cell_entry(one, costs.basis(one.cell)) for one in cells if one.cell.cell_id in kept
        ),
        left_out=tuple(
            CellLeftOut(cell=cell.cell_id, reason=reason) for cell, reason in fitted.left_out
        ),
        over_budget=False,
        notes=notes,
        device_minutes=round(sum(group.device_s for group in groups) / SECONDS_PER_MINUTE, 2),
        shards=tuple(shards),
        pace=dict(costs.pace),
    )


def _cell_entry(selected: SelectedCell, basis: CostBasis) -> PlannedCell:
    cell = selected.cell
    return PlannedCell(
        cell=cell.cell_id,
        target=cell.target.name,
        config=cell.config.name,
        workload=cell.workload.name,
        priority=_PRIORITY_NAME[selected.priority],
        reasons=selected.reasons,
        cost=basis.value,
    )


def _shard_entry(shard: Shard, suite: Suite, record_sessions: int = 0) -> PlannedShard:
    return PlannedShard(
        shard=f"{shard.hardware_class}-{'new-' if record_sessions else ''}{shard.index}",
        record_sessions=record_sessions,
        kind=suite.targets[shard.groups[0].target].hardware.kind,
        hardware_class=shard.hardware_class,
        targets=tuple(dict.fromkeys(group.target for group in shard.groups)),
        cells=shard.cell_ids,
        minutes=round(shard.duration_s / SECONDS_PER_MINUTE, 2),
    )


def runner_labels(kind: str, hardware_class: str, pool: str = "") -> list[str]:
    """The labels of ``runs-on``: hosted for CPU targets, else a runner of the hardware
    class, and of ``pool`` where one is given.
    """
    if kind == "cpu":
        return ["ubuntu-24.04"]
    return ["self-hosted", "gpu", hardware_class, *([f"pool-{pool}"] if pool else [])]


def matrix(shards: Iterable[PlannedShard]) -> dict[str, Any]:
    """A workflow's matrix. ``cells`` and ``runner`` are JSON inside strings, since a
    matrix value that a shell reads must be text.
    """
    include = [
        {
            "shard": shard.shard,
            "runner": json.dumps(runner_labels(shard.kind, shard.hardware_class, shard.pool)),
            "hardware_class": shard.hardware_class,
            "cells": json.dumps(shard.cells),
            "arguments": " ".join(
                [*(f"--k3-target {target}" for target in shard.targets), *_recording(shard)]
            ),
        }
        for shard in shards
    ]
    return {"include": include}


def _recording(shard: PlannedShard) -> list[str]:
    if not shard.record_sessions:
        return []
    return ["--k3-record", "--k3-sessions", str(shard.record_sessions)]


def github_output(shards: Iterable[PlannedShard], gated_metric_count: int) -> str:
    """Lines for a workflow step's output file: the matrices of hosted and of GPU
    runners, and whether each holds a job.
    """
    listed = tuple(shards)
    cpu = [shard for shard in listed if shard.kind == "cpu"]
    gpu = [shard for shard in listed if shard.kind != "cpu"]
    lines = [
        f"cpu_matrix={json.dumps(matrix(cpu))}",
        f"gpu_matrix={json.dumps(matrix(gpu))}",
        f"has_cpu={json.dumps(bool(cpu))}",
        f"has_gpu={json.dumps(bool(gpu))}",
        f"gated_metric_count={gated_metric_count}",
    ]
    return "\n".join(lines) + "\n"


def plan_text(plan: PlanDocument) -> str:
    """One line for each cell with its reasons, then the omitted cells and why."""
    lines = [f"{len(plan.cells)} cells, about {plan.device_minutes} device minutes"]
    lines += [
        f"  {entry.cell}: {'; '.join(entry.reasons)}{_COST_NOTE[entry.cost]}"
        for entry in plan.cells
    ]
    if plan.estimated_count:
        lines.append(
            f"{plan.estimated_count} of the cells were never measured: their minutes are an"
            " estimate."
        )
    if plan.over_budget:
        lines.append(
            "The directly touched cells alone exceed the budget; they are measured anyway."
        )
    if plan.left_out:
        lines.append(f"{len(plan.left_out)} cells omitted, over the budget:")
        lines += [f"  {entry.cell}: {entry.reason}" for entry in plan.left_out]
    lines += [f"note: {note}" for note in plan.notes]
    if len(plan.shards) > 1:
        lines += [
            f"shard {shard.shard}: {len(shard.cells)} cells, {shard.minutes} min"
            for shard in plan.shards
        ]
    return "\n".join(lines) + "\n"
