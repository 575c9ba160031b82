"""A verdict document and its plan to what GitHub shows: a sticky comment and a job
summary. Pure.

Documents come from artefacts of pull requests and are hostile: every string goes
through ``report.escaping``, every list has an end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from k3perf.ci.advice import advice
from k3perf.ci.markdown_arms import absolute_section, evidence_lines
from k3perf.ci.markdown_causes import attribution_section, with_link
from k3perf.records.outcome import SEVERITY, Outcome
from k3perf.records.plan_file import PlanDocument
from k3perf.records.verdict import CellVerdict, ConfigDifference, MetricVerdict, VerdictDocument
from k3perf.report.causes import arm_differences
from k3perf.report.escaping import (
    code,
    number,
    percent,
    prose,
)
from k3perf.report.reference_arm import blind_side, failing_arm_lines
from k3perf.report.siblings import sibling_notes

COMMENT_MARKER: Final = "<!-- k3perf-report -->"
MAXIMUM_COMMENT_CHARACTERS: Final = 60_000  # GitHub's own limit is 65,536

_MAXIMUM_ROWS = 40
_MAXIMUM_LINES = 20
_MAXIMUM_SECTION_CHARACTERS = 11_000  # so that loss, values, cause and advice fit together

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


def comment(verdict: VerdictDocument, plan: PlanDocument | None = None, run_url: str = "") -> str:
    """The pull request's comment, worst findings first, within GitHub's limit.
    ``run_url``: the page of the run, which has the report and the results.
    """
    body = with_link(_body(verdict, plan, everything=False, run_url=run_url), run_url)
    return _fit([COMMENT_MARKER, *body])


def summary(verdict: VerdictDocument, plan: PlanDocument | None = None, run_url: str = "") -> str:
    """The job summary: as the comment, and every judged metric."""
    return _fit(with_link(_body(verdict, plan, everything=True), run_url))


def refusal_comment(reason: str) -> str:
    """The comment for results that cannot be read."""
    return (
        f"{COMMENT_MARKER}\n## k3perf: INVALID\n\n"
        f"The run's results could not be read: {prose(reason, 500)}\n\n"
        "They show neither a pass nor a loss. See the run's log.\n"
    )


def _body(
    verdict: VerdictDocument, plan: PlanDocument | None, *, everything: bool, run_url: str = ""
) -> list[str]:
    counts = {
        outcome: sum(cell.outcome is outcome for cell in verdict.cells)
        for outcome in reversed(Outcome)
    }
    shown = (
        ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
        or "none"
    )
    lines = [f"## k3perf: {heading(verdict, plan)}", ""]
    lines += [_meaning(verdict)]
    lines += ["", f"Cells: {shown}.", ""]
    lines += _capped(_metric_table(verdict, (Outcome.REGRESSED,), "Regressed"))
    lines += _capped(absolute_section(verdict.cells))
    lines += _capped(attribution_section(verdict.cells))
    lines += _capped(advice(verdict, plan, run_url))
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
    lines += evidence_lines(verdict.cells)
    lines += _provenance(verdict)
    return lines


def heading(verdict: VerdictDocument, plan: PlanDocument | None) -> str:
    """The outcome, and how much of what the change touches it speaks for."""
    if not verdict.cells:
        return "nothing was measured"
    left_count = len(plan.left_out) if plan is not None else 0
    if not left_count:
        return verdict.outcome_text
    total = len(verdict.cells) + left_count
    return f"{verdict.outcome_text} ({len(verdict.cells)} of {total} touched cells measured)"


def is_partial(verdict: VerdictDocument, plan: PlanDocument | None) -> bool:
    """Nothing was measured, or touched cells were omitted: no PASS of the change."""
    return not verdict.cells or bool(plan is not None and plan.left_out)


def _meaning(verdict: VerdictDocument) -> str:
    if not verdict.cells:
        return "This change touches no cell. Nothing was measured."
    if verdict.outcome is Outcome.PASS and not any(cell.metrics for cell in verdict.cells):
        return "Nothing was judged."
    found = [verdict.outcome, *([Outcome.CONFIG_DRIFT] if verdict.drifted else [])]
    return " ".join(f"{_MEANING[outcome].capitalize()}." for outcome in dict.fromkeys(found))


def _capped(lines: list[str]) -> list[str]:
    """A section's first lines, within its share of the comment."""
    size = 0
    for index, line in enumerate(lines):
        size += len(line) + 1
        if size > _MAXIMUM_SECTION_CHARACTERS:
            return [*lines[:index], "", "The full report has the rest.", ""]
    return lines


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


def by_severity(cells: Iterable[CellVerdict]) -> list[CellVerdict]:
    """Worst first."""
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
