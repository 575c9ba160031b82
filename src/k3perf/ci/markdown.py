"""A verdict document and its plan to what GitHub shows: a sticky comment, a job
summary, annotations, a check run. Pure.

Documents come from artefacts of pull requests and are hostile: every string goes
through ``report.escaping``, every list has an end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from k3perf.ci.markdown_causes import attribution_section, with_link
from k3perf.records.outcome import SEVERITY, Outcome
from k3perf.records.plan_file import PlanDocument
from k3perf.records.verdict import CellVerdict, ConfigDifference, MetricVerdict, VerdictDocument
from k3perf.report.causes import arm_differences
from k3perf.report.escaping import (
    code,
    command_data,
    command_property,
    number,
    percent,
    prose,
    visible,
)
from k3perf.report.reference_arm import blind_side, failing_arm_lines
from k3perf.report.siblings import sibling_notes

COMMENT_MARKER: Final = "<!-- k3perf-report -->"
MAXIMUM_COMMENT_CHARACTERS: Final = 60_000  # GitHub's own limit is 65,536

_MAXIMUM_ROWS = 40
_MAXIMUM_LINES = 20
_MAXIMUM_ANNOTATIONS = 50
_CONFIG_NAME = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")

_MEANING: Final[dict[Outcome, str]] = {
    Outcome.PASS: "every gated metric is proven inside its tolerance",
    Outcome.IMPROVED: "no loss, and some metrics are better: update the baseline",
    Outcome.INCONCLUSIVE: "the budget ended before the evidence decided",
    Outcome.SUSPECT: "a loss beyond the tolerance was estimated and is not proven",
    Outcome.INVALID: "some measurements cannot be trusted; they say nothing about the change",
    Outcome.NO_BASELINE: "some cells have no baseline",
    Outcome.CONFIG_DRIFT: "the resolved configuration differs from the approved one",
    Outcome.REGRESSED: "a loss beyond the tolerance is proven",
}
_LEVEL: Final[dict[Outcome, str]] = {
    Outcome.REGRESSED: "failure",
    Outcome.CONFIG_DRIFT: "failure",
    Outcome.NO_BASELINE: "failure",
    Outcome.SUSPECT: "failure",
    Outcome.INVALID: "warning",
    Outcome.INCONCLUSIVE: "notice",
    Outcome.IMPROVED: "notice",
}


def comment(
    verdict: VerdictDocument, plan: PlanDocument | None = None, *, report_url: str = ""
) -> str:
    """The pull request's comment, worst findings first, within GitHub's limit."""
    return _fit([COMMENT_MARKER, *with_link(_body(verdict, plan, everything=False), report_url)])


def summary(
    verdict: VerdictDocument, plan: PlanDocument | None = None, *, report_url: str = ""
) -> str:
    """The job summary: as the comment, and every judged metric."""
    return _fit(with_link(_body(verdict, plan, everything=True), report_url))


def refusal_comment(reason: str) -> str:
    """The comment for results that cannot be read."""
    return (
        f"{COMMENT_MARKER}\n## k3perf: INVALID\n\n"
        f"The run's results could not be read: {prose(reason, 500)}\n\n"
        "They show neither a pass nor a loss. See the run's log.\n"
    )


def _body(verdict: VerdictDocument, plan: PlanDocument | None, *, everything: bool) -> list[str]:
    counts = {
        outcome: sum(cell.outcome is outcome for cell in verdict.cells)
        for outcome in reversed(Outcome)
    }
    shown = (
        ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
        or "none"
    )
    lines = [f"## k3perf: {verdict.outcome_text}", ""]
    lines += [_meaning(verdict)]
    lines += ["", f"Cells: {shown}.", ""]
    lines += _metric_table(verdict, (Outcome.REGRESSED,), "Regressed")
    lines += attribution_section(verdict.cells)
    lines += _drift(verdict)
    lines += _between_arms(verdict)
    lines += _missing(verdict)
    lines += _invalid(verdict)
    suspected = "Suspected: beyond the tolerance, not proven"
    lines += _metric_table(verdict, (Outcome.SUSPECT,), suspected)
    lines += _metric_table(verdict, (Outcome.INCONCLUSIVE,), "Undecided")
    improved = "Improved: run `k3perf baseline propose` to update the baseline"
    lines += _metric_table(verdict, (Outcome.IMPROVED,), improved)
    if everything:
        lines += _metric_table(verdict, (Outcome.PASS,), "Passed")
    lines += _notes(verdict)
    lines += _planned(plan)
    blind = blind_side(verdict.cells)
    lines += [f"{blind[0].upper()}{blind[1:]}.", ""] if blind else []
    lines += _provenance(verdict)
    return lines


def _meaning(verdict: VerdictDocument) -> str:
    if not verdict.cells:
        return "This change touches no cell. Nothing was measured."
    if verdict.outcome is Outcome.PASS and not any(cell.metrics for cell in verdict.cells):
        return "Nothing was judged."
    found = [verdict.outcome, *([Outcome.CONFIG_DRIFT] if verdict.drifted else [])]
    return " ".join(f"{_MEANING[outcome].capitalize()}." for outcome in dict.fromkeys(found))


def _fit(lines: list[str]) -> str:
    """Keep whole lines up to the limit, close open details, and say that the text was
    cut.
    """
    kept: list[str] = []
    size = 200
    for line in lines:
        size += len(line) + 1
        if size > MAXIMUM_COMMENT_CHARACTERS:
            kept.append("")
            kept += (
                ["</details>", ""]
                if kept.count("</details>") < sum(part.startswith("<details>") for part in kept)
                else []
            )
            kept.append("Truncated. The full report is in the run's artefacts.")
            break
        kept.append(line)
    return "\n".join(kept).rstrip("\n") + "\n"


def _by_severity(cells: Iterable[CellVerdict]) -> list[CellVerdict]:
    return sorted(cells, key=lambda cell: -SEVERITY[cell.outcome])


def _metric_table(verdict: VerdictDocument, outcomes: tuple[Outcome, ...], title: str) -> list[str]:
    rows = [
        (cell, metric)
        for cell in verdict.cells
        for metric in cell.metrics
        if metric.outcome in outcomes
    ]
    if not rows:
        return []
    rows.sort(key=lambda row: -(row[1].loss_ratio if row[1].loss_ratio is not None else 0.0))
    sides = "base | candidate" if all(cell.mode == "ab" for cell, _ in rows) else "baseline | now"
    lines = [
        f"### {title}",
        "",
        f"| cell | metric | {sides} | loss | bounds | tolerance | MDE |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    lines += [_metric_row(cell, metric) for cell, metric in rows[:_MAXIMUM_ROWS]]
    return [*lines, *_more(len(rows), _MAXIMUM_ROWS), ""]


def _metric_row(cell: CellVerdict, metric: MetricVerdict) -> str:
    bounds = "-"
    if metric.loss_lower_bound_ratio is not None or metric.loss_upper_bound_ratio is not None:
        bounds = (
            f"{percent(metric.loss_lower_bound_ratio)} .. {percent(metric.loss_upper_bound_ratio)}"
        )
    tolerance = (
        percent(metric.tolerance_ratio)
        if metric.tolerance_ratio is not None
        else number(metric.tolerance_absolute, metric.unit)
    )
    fields = [
        f"{code(cell.target)} {code(cell.config)} {code(cell.workload)}",
        code(metric.metric),
        number(metric.baseline_value, metric.unit),
        number(metric.now_value, metric.unit),
        percent(metric.loss_ratio),
        bounds,
        tolerance,
        percent(metric.smallest_detectable_loss_ratio),
    ]
    return f"| {' | '.join(fields)} |"


def _more(count: int, shown: int) -> list[str]:
    return ["", f"and {count - shown} more."] if count > shown else []


def _drift(verdict: VerdictDocument) -> list[str]:
    drifted = [cell for cell in verdict.cells if cell.drifted]
    lines = [_drift_row(cell, change) for cell in drifted for change in cell.differences]
    distinct = list(dict.fromkeys(lines))
    if not distinct:
        return []
    head = [
        "### The engine resolved another configuration",
        "",
        "| config | key | was | now | forced by |",
        "| --- | --- | --- | --- | --- |",
    ]
    return [*head, *distinct[:_MAXIMUM_ROWS], *_more(len(distinct), _MAXIMUM_ROWS), ""]


def _between_arms(verdict: VerdictDocument) -> list[str]:
    """``ab``: what the candidate resolved differently from the base. Judges nothing."""
    lines = dict.fromkeys(
        f"* {code(cell.target)} {code(cell.config)}: {line}"
        for cell in verdict.cells
        for line in arm_differences(cell, code, lambda value: code(str(value)))
    )
    return _folded("Candidate and base differ (not judged)", [*lines]) if lines else []


def _drift_row(cell: CellVerdict, change: ConfigDifference) -> str:
    values = f"{code(change.key)} | {code(str(change.was))} | {code(str(change.now))}"
    return f"| {code(cell.target)} {code(cell.config)} | {values} | {prose(change.forced_by)} |"


def _missing(verdict: VerdictDocument) -> list[str]:
    return _listed(
        "No baseline",
        [f"* {_cell(cell)}: {prose(cell.missing)}" for cell in verdict.cells if cell.missing],
    )


def _invalid(verdict: VerdictDocument) -> list[str]:
    lines = [
        f"* {_cell(cell)}: {code(reason.rule)},"
        f" {prose(reason.text)}{_reading(reason.reading, reason.limit)}"
        for cell in verdict.cells
        for reason in cell.invalid_reasons
    ]
    lines += [f"* {_cell(c)}: {prose(x)}" for c in verdict.cells for x in failing_arm_lines(c)]
    return _listed("Invalid", lines)


def _listed(title: str, lines: list[str]) -> list[str]:
    return [f"### {title}", "", *_first(lines), ""] if lines else []


def _folded(title: str, lines: list[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *_first(lines), "", "</details>", ""]


def _first(lines: list[str]) -> list[str]:
    return [*lines[:_MAXIMUM_LINES], *_more(len(lines), _MAXIMUM_LINES)]


def _reading(reading: float | None, limit: float | None) -> str:
    return (
        ""
        if reading is None and limit is None
        else f" (read {number(reading)}, limit {number(limit)})"
    )


def _notes(verdict: VerdictDocument) -> list[str]:
    lines = [f"* {_cell(cell)}: {prose(note)}" for cell in verdict.cells for note in cell.notes]
    lines = [*(f"* {prose(note)}" for note in sibling_notes(verdict.cells)), *lines]
    return _folded("Notes", lines) if lines else []


def _planned(plan: PlanDocument | None) -> list[str]:
    if plan is None:
        return []
    lines = [
        f"* omitted, over the budget: {code(entry.cell)}, {prose(entry.reason)}"
        for entry in plan.left_out
    ]
    lines += [f"* {prose(note)}" for note in plan.notes]
    if plan.over_budget:
        lines.insert(
            0,
            "* The directly touched cells alone exceed the budget; they were measured anyway.",
        )
    title = f"Plan: {len(plan.cells)} cell(s), about {number(plan.device_minutes)} device minutes"
    title += f" (an estimate for {plan.estimated_count})" if plan.estimated_count else ""
    title += f", {len(plan.left_out)} omitted"
    return _folded(title, lines) if lines else [title + ".", ""]


def _provenance(verdict: VerdictDocument) -> list[str]:
    source = f"Run {code(verdict.run_id)} of {code(verdict.commit)}"
    source += f" with vLLM {code(verdict.vllm_version)}" if verdict.vllm_version else ""
    budget = (
        f"{verdict.gated_metric_count} gated metrics share a family-wise error rate of"
        f" {verdict.false_alarm_budget * 100:.3g} %"
    )
    return [
        f"{source}. {budget}. A loss is positive. Bounds are one-sided. MDE is the minimum"
        " detectable effect: the smallest loss that this run could detect."
    ]


def _cell(cell: CellVerdict) -> str:
    return f"{code(cell.target)} {code(cell.config)} {code(cell.workload)}"


def _findings(verdict: VerdictDocument) -> list[tuple[str, str, str, str]]:
    """(path, level, title, message) per config, worst first, one each: a reader opens a
    file once.
    """
    found: dict[str, list[CellVerdict]] = {}
    for cell in _by_severity(verdict.cells):
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


def workflow_commands(verdict: VerdictDocument) -> str:
    """Workflow commands, one a config: errors and warnings on the config's file."""
    commands = {"failure": "error", "warning": "warning", "notice": "notice"}
    lines = [
        f"::{commands[level]}"
        f" file={command_property(path)},line=1,title={command_property(title)}::{command_data(message)}"  # noqa: E501
        for path, level, title, message in _findings(verdict)
    ]
    return "\n".join(lines) + "\n" if lines else ""


def check_run(verdict: VerdictDocument, plan: PlanDocument | None, head_sha: str) -> dict[str, Any]:
    """The body of GitHub's "create a check run" request, with at most 50 annotations as
    one request takes.
    """
    failed = verdict.outcome not in (Outcome.PASS, Outcome.IMPROVED, Outcome.INCONCLUSIVE)
    conclusion = (
        "failure" if failed else "neutral" if verdict.outcome is Outcome.INCONCLUSIVE else "success"
    )
    entries = [
        {
            "path": path,
            "start_line": 1,
            "end_line": 1,
            "annotation_level": level,
            "title": title,
            "message": message,
        }
        for path, level, title, message in _findings(verdict)
    ]
    return _check_run(head_sha, conclusion, verdict.outcome.value, summary(verdict, plan), entries)


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
