"""A verdict document to annotations on the config files: workflow commands and a check
run. Pure. The documents are hostile, as in ``ci.markdown``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from k3perf.ci.markdown import by_severity, heading, is_partial, refusal_comment, summary
from k3perf.records.outcome import Outcome
from k3perf.records.plan_file import PlanDocument
from k3perf.records.verdict import CellVerdict, MetricVerdict, VerdictDocument
from k3perf.report.escaping import command_data, command_property, number, percent, visible

_MAXIMUM_ANNOTATIONS = 50
_CONFIG_NAME = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")

_LEVEL: Final[dict[Outcome, str]] = {
    Outcome.REGRESSED: "failure",
    Outcome.CONFIG_DRIFT: "failure",
    Outcome.NO_BASELINE: "failure",
    Outcome.SUSPECT: "failure",
    Outcome.INVALID: "warning",
    Outcome.INCONCLUSIVE: "notice",
    Outcome.IMPROVED: "notice",
}


@dataclass(frozen=True, slots=True)
class ChangedLines:
    """The first changed line of each file of a change."""

    lines: Mapping[str, int] = field(default_factory=dict)

    def of(self, path: str) -> int:
        """1 where the file did not change."""
        return self.lines.get(path, 1)


def _findings(verdict: VerdictDocument) -> list[tuple[str, str, str, str]]:
    """(path, level, title, message) per config, worst first, one each: a reader opens a
    file once.
    """
    found: dict[str, list[CellVerdict]] = {}
    for cell in by_severity(verdict.cells):
        if cell.outcome in _LEVEL and _CONFIG_NAME.fullmatch(cell.config):
            found.setdefault(cell.config, []).append(cell)
    entries = []
    for config, cells in list(found.items())[:_MAXIMUM_ANNOTATIONS]:
        worst = cells[0].outcome
        text = "; ".join(_finding(cell) for cell in cells if cell.outcome is worst)
        path, title = f"perf_tests/configs/{config}.yaml", f"k3perf: {worst.value}"
        entries.append((path, _LEVEL[worst], title, visible(text, 900)))
    return entries


def _finding(cell: CellVerdict) -> str:
    where = f"{cell.target} {cell.workload}"
    judged = (*cell.metrics, *cell.reference_arm)
    bad = [metric for metric in judged if metric.outcome is cell.outcome]
    if bad:
        return f"{where}: {', '.join(_moved(metric) for metric in bad)}"
    if cell.outcome is Outcome.CONFIG_DRIFT:
        return f"{where}: " + ", ".join(
            f"{change.key} was {change.was}, is {change.now}" for change in cell.differences
        )
    if cell.outcome is Outcome.INVALID:
        return f"{where}: " + "; ".join(reason.text for reason in cell.invalid_reasons)
    return f"{where}: {cell.missing}"


def _moved(metric: MetricVerdict) -> str:
    if metric.tolerance_ratio is None:  # exact: a share of a huge number says nothing
        return (
            f"{metric.metric} {number(metric.baseline_value, metric.unit)} ->"
            f" {number(metric.now_value, metric.unit)}"
        )
    return (
        f"{metric.metric} {percent(metric.loss_ratio)} (tolerance"
        f" {percent(metric.tolerance_ratio)})"
    )


def workflow_commands(verdict: VerdictDocument, changed: ChangedLines = ChangedLines()) -> str:
    """Workflow commands, one a config: errors and warnings on the config's file."""
    commands = {"failure": "error", "warning": "warning", "notice": "notice"}
    lines = [
        f"::{commands[level]}"
        f" file={command_property(path)},line={changed.of(path)},title={command_property(title)}"
        f"::{command_data(message)}"
        for path, level, title, message in _findings(verdict)
    ]
    return "\n".join(lines) + "\n" if lines else ""


def check_run(
    verdict: VerdictDocument,
    plan: PlanDocument | None,
    head_sha: str,
    changed: ChangedLines = ChangedLines(),
) -> dict[str, Any]:
    """The body of GitHub's "create a check run" request, with at most 50 annotations as
    one request takes.
    """
    failed = verdict.outcome not in (Outcome.PASS, Outcome.IMPROVED, Outcome.INCONCLUSIVE)
    conclusion = (
        "failure"
        if failed
        else "neutral"
        if verdict.outcome is Outcome.INCONCLUSIVE or is_partial(verdict, plan)
        else "success"
    )
    entries = [
        {
            "path": path,
            "start_line": changed.of(path),
            "end_line": changed.of(path),
            "annotation_level": level,
            "title": title,
            "message": message,
        }
        for path, level, title, message in _findings(verdict)
    ]
    title = heading(verdict, plan)
    return _check_run(head_sha, conclusion, title, summary(verdict, plan), entries)


def refused_check_run(reason: str, head_sha: str) -> dict[str, Any]:
    """As ``check_run``, for results that cannot be read."""
    return _check_run(head_sha, "failure", Outcome.INVALID.value, refusal_comment(reason))


def _check_run(
    head_sha: str,
    conclusion: str,
    outcome: str,
    text: str,
    annotations: Iterable[dict[str, Any]] = (),
) -> dict[str, Any]:
    output = {"title": f"k3perf: {outcome}", "summary": text, "annotations": annotations or []}
    heading = {"name": "k3perf report", "head_sha": head_sha}
    return {**heading, "status": "completed", "conclusion": conclusion, "output": output}
