"""What a reader of a pull request's comment asks after the outcome: how sure, on how
much evidence, is it the config, the engine or the machine, what next, and with which
command. Pure. Every text from outside is escaped.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

from k3perf.ci.markdown_arms import counted, source_text
from k3perf.records.outcome import Outcome
from k3perf.records.plan_file import PlanDocument
from k3perf.records.verdict import CellVerdict, MetricVerdict, VerdictDocument
from k3perf.report.escaping import code, percent

_MAXIMUM_CELLS: Final = 10
_URL: Final = re.compile(r"https://[A-Za-z0-9.-]+(/[A-Za-z0-9._-]+)+")
_NEXT: Final[dict[Outcome, str]] = {
    Outcome.REGRESSED: (
        "find the cause, or accept the loss with `k3perf baseline propose` and `accept --reason`"
    ),
    Outcome.SUSPECT: "measure again with more sessions; the loss is not proven",
    Outcome.CONFIG_DRIFT: "restore the value, or accept the new configuration as a baseline",
    Outcome.NO_BASELINE: "record a baseline for it",
    Outcome.INVALID: "re-run the failed jobs; if it repeats, look at the runner",
    Outcome.INCONCLUSIVE: "nothing, or measure with more sessions",
}


def advice(verdict: VerdictDocument, plan: PlanDocument | None, run_url: str = "") -> list[str]:
    """Lines of the section. Empty where nothing needs a reader."""
    found = [cell for cell in verdict.cells if cell.outcome in _NEXT]
    if not found:
        return []
    reasons = {} if plan is None else {entry.cell: entry.reasons for entry in plan.cells}
    lines = ["### What to do", ""]
    for cell in found[:_MAXIMUM_CELLS]:
        name = f"{code(cell.target)} {code(cell.config)} {code(cell.workload)}"
        lines.append(f"* {name}, {cell.outcome}: {_NEXT[cell.outcome]}.")
        lines += [f"  * {text}" for text in _details(cell, reasons.get(cell.cell_id, ()))]
    if len(found) > _MAXIMUM_CELLS:
        lines += ["", f"and {len(found) - _MAXIMUM_CELLS} more."]
    if _URL.fullmatch(run_url):
        lines += ["", f"Results and logs of every shard are in [the run]({run_url})."]
    return [*lines, ""]


def _details(cell: CellVerdict, reasons: tuple[str, ...]) -> list[str]:
    found = [_evidence(m) for m in cell.metrics if m.outcome is cell.outcome][:3]
    if cell.outcome in (Outcome.REGRESSED, Outcome.SUSPECT):
        found.append(_suspect(cell, reasons))
    if cell.judged_by is not None:
        found.append(f"baseline: {source_text(cell.judged_by)}")
    return [*found, f"reproduce it: {code(_command(cell), 300)}"]


def _command(cell: CellVerdict) -> str:
    """The run of this cell alone. ``ab`` needs the base that it was compared with."""
    base = " --k3-ab-base BASE" if cell.mode == "ab" else ""
    chosen = shlex.quote(f"{cell.config} and {cell.workload}")
    return f"scripts/perf --k3-target {shlex.quote(cell.target)} -k {chosen}{base}"


def _evidence(metric: MetricVerdict) -> str:
    text = f"{code(metric.metric)} {percent(metric.loss_ratio)}"
    if metric.loss_lower_bound_ratio is not None and metric.loss_lower_bound_ratio > 0:
        sure = 1 - (metric.alpha or 0.0)
        text += f", at least {percent(metric.loss_lower_bound_ratio)} at {sure:.2%} confidence"
    evidence = f"{counted(metric.session_count, 'session')} and"
    return f"{text}, from {evidence} {counted(metric.round_count, 'round')}"


def _suspect(cell: CellVerdict, reasons: tuple[str, ...]) -> str:
    """The likely cause, by what the reference arm says and why the cell was planned."""
    if any(metric.outcome is cell.outcome for metric in cell.reference_arm):
        return "likely cause: machine or engine, since the reference config lost as well"
    if any(change.key.startswith("version.") for change in cell.differences):
        return "likely cause: the engine, since its version changed"
    own = [reason for reason in reasons if reason.startswith(("config ", "depends on config"))]
    if own:
        return f"likely cause: the config ({code(own[0], 200)})"
    if cell.mode == "reference":
        return "likely cause: the config or the engine; a slow machine slows both arms"
    return "likely cause: not known; this mode measures no reference config"
