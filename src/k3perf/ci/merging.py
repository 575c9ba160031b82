"""Verdicts of a plan's shards, and of their retries, to one verdict. Pure.

A planned cell without a result becomes INVALID, never absent. A retry's result replaces
an INVALID one and nothing else. The chosen results together spend at most the suite's
family-wise error rate. The noise of all cells together judges the candidate's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from k3perf.ci.commits import distinct_commits
from k3perf.ci.run_noise import judged_by_own_noise
from k3perf.errors import UsageError
from k3perf.records.outcome import SEVERITY, Outcome
from k3perf.records.plan_file import PlanDocument, PlannedCell, PlannedShard
from k3perf.records.samples import InvalidReason
from k3perf.records.verdict import CellVerdict, VerdictDocument

LOST_RULE = "shard_lost"
UNJUDGED_RULE = "nothing_judged"
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Judged:
    cell: CellVerdict
    share: float


def merge(
    plan: PlanDocument, verdicts: Iterable[VerdictDocument], *, lost: str = ""
) -> VerdictDocument:
    """One verdict over all planned cells, in the plan's order. Cells that were measured
    without a plan come last, with a note. Cells that were recorded have no verdict.

    ``lost`` says what is known about unreadable results. A file that is given twice
    counts once. Raises UsageError when the files are of several commits, or when the
    shards together spent more than the suite's family-wise error rate.
    """
    files = _each_once(verdicts)
    commit = _one_commit(files)
    found: dict[str, _Judged] = {}
    for document in files:
        for judged in _judged(document):
            if judged.cell.cell_id in plan.recorded_cells:
                continue
            known = found.get(judged.cell.cell_id)
            found[judged.cell.cell_id] = judged if known is None else _choose(known, judged)
    _check_budget(plan, found)
    planned = {entry.cell for entry in plan.cells}
    cells = [
        _judged_cell(found[entry.cell].cell) if entry.cell in found else _lost_cell(entry, lost)
        for entry in plan.cells
        if entry.cell not in plan.recorded_cells
    ]
    cells += [
        _noted(judged.cell, "measured, but not in the plan")
        for key, judged in found.items()
        if key not in planned
    ]
    first = files[0] if files else None
    return VerdictDocument(
        schema_version=1,
        run_id=first.run_id if first else "none",
        commit=commit,
        created_at_utc=max((document.created_at_utc for document in files), default=""),
        vllm_version=_only(document.vllm_version for document in files),
        false_alarm_budget=plan.false_alarm_budget,
        gated_metric_count=plan.gated_metric_count,
        cells=judged_by_own_noise(cells),
    )


def _each_once(verdicts: Iterable[VerdictDocument]) -> tuple[VerdictDocument, ...]:
    """Drop copies of a file, such as an artefact that was unpacked twice."""
    kept: list[VerdictDocument] = []
    for document in verdicts:
        if document not in kept:
            kept.append(document)
    return tuple(kept)


def _one_commit(files: Iterable[VerdictDocument]) -> str:
    """The commit of all files, as the longest hash among theirs, or an empty text.
    Results of an older commit would let the new one pass unmeasured: UsageError.
    """
    commits = sorted(distinct_commits(document.commit for document in files))
    if len(commits) > 1:
        raise UsageError(
            f"the results come from {len(commits)} commits ({', '.join(commits)[:400]}). Merge"
            " those of one commit only."
        )
    return commits[0] if commits else ""


def _judged(document: VerdictDocument) -> list[_Judged]:
    """Each cell with what its metrics spent: ``alpha`` is a metric's share of the
    budget (exact metrics spend none).
    """
    return [
        _Judged(cell, sum(metric.alpha or 0.0 for metric in cell.metrics))
        for cell in document.cells
    ]


def _choose(first: _Judged, second: _Judged) -> _Judged:
    """A usable result over an INVALID one. Of two usable results the worse, so that a
    repeat cannot hide a loss.
    """
    if (first.cell.outcome is Outcome.INVALID) != (second.cell.outcome is Outcome.INVALID):
        kept, dropped = (
            (second, first) if first.cell.outcome is Outcome.INVALID else (first, second)
        )
        why = dropped.cell.invalid_reasons[0].rule if dropped.cell.invalid_reasons else "a metric"
        return _Judged(
            _noted(
                kept.cell, f"measured again on another runner: the other result was INVALID ({why})"
            ),
            kept.share,
        )
    if first.cell.outcome is Outcome.INVALID:
        return _Judged(_noted(second.cell, "measured twice, INVALID both times"), second.share)
    kept = max(first, second, key=lambda judged: SEVERITY[judged.cell.outcome])
    return _Judged(
        _noted(kept.cell, "measured twice; the worse result counts"), first.share + second.share
    )


def _noted(cell: CellVerdict, note: str) -> CellVerdict:
    return replace(cell, notes=(*cell.notes, note))


def _lost_cell(planned: PlannedCell, lost: str) -> CellVerdict:
    text = (
        "no result for this cell: its runner ended without one or never"
        f" started{'; ' + lost if lost else ''}"
    )
    return CellVerdict(
        target=planned.target,
        config=planned.config,
        workload=planned.workload,
        invalid_reasons=(InvalidReason(rule=LOST_RULE, text=text[:2_000]),),
    )


def _judged_cell(cell: CellVerdict) -> CellVerdict:
    """Make a planned cell without any finding INVALID: it would pass unjudged."""
    if cell.metrics or cell.drifted or cell.invalid_reasons or cell.missing:
        return cell
    reason = InvalidReason(
        rule=UNJUDGED_RULE,
        text=(
            "the run judged no metric of this cell; it was only recorded, or the result is"
            " incomplete"
        ),
    )
    return replace(cell, invalid_reasons=(reason,))


def _check_budget(plan: PlanDocument, found: dict[str, _Judged]) -> None:
    spent = sum(judged.share for judged in found.values())
    if spent > plan.false_alarm_budget * (1 + _ROUNDING) + _ROUNDING:
        raise UsageError(
            f"the shards' error rates add up to {spent:.4g}, the suite's is"
            f" {plan.false_alarm_budget:.4g}. Run each shard with --k3-gated-metric-count of"
            " the whole plan."
        )


def _only(values: Iterable[str]) -> str:
    """The one value, or all of them joined where they differ."""
    distinct = sorted({value for value in values if value})
    return ", ".join(distinct)[:200]


def retry_shards(
    plan: PlanDocument, merged: VerdictDocument, pools: tuple[str, ...], used: dict[str, str]
) -> tuple[PlannedShard, ...]:
    """Shards that hold the INVALID cells alone. ``used`` names the pool that measured a
    shard. The retry asks for another one of ``pools``.

    A hosted runner is a new machine each time and needs no pool. With fewer than two
    pools any runner of the class may take the retry.
    """
    invalid = {cell.cell_id for cell in merged.cells if cell.outcome is Outcome.INVALID}
    found = []
    for shard in plan.shards:
        cells = tuple(cell for cell in shard.cells if cell in invalid)
        if not cells:
            continue
        other = (
            next((pool for pool in pools if pool != used.get(shard.shard)), "")
            if len(pools) > 1
            else ""
        )
        minutes = shard.minutes * len(cells) / len(shard.cells)
        changes = {"cells": cells, "shard": f"{shard.shard}-retry", "minutes": minutes}
        found.append(
            shard.model_copy(update={**changes, "pool": "" if shard.kind == "cpu" else other})
        )
    return tuple(found)
