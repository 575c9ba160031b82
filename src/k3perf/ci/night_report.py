"""Kept nights to what people read of them: the issue about main, and the text of the
refresh's pull request. Pure. Every text has an end and is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from k3perf.baselines.accept import Change
from k3perf.ci.nights import RED, Judgement
from k3perf.records.night import NightFinding
from k3perf.records.outcome import SEVERITY, Outcome
from k3perf.report.escaping import code, number, percent, prose

MAIN_MARKER: Final = "<!-- k3perf-main -->"
REFRESH_MARKER: Final = "<!-- k3perf-refresh -->"
MAXIMUM_BODY_CHARACTERS: Final = 60_000
"""GitHub's own limit is 65,536."""

_MAXIMUM_CELLS = 100
_METRICS_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class RefreshedBaseline:
    """One (target, config) of the refresh. ``rows``: empty where it stays as it is."""

    name: str
    rows: tuple[Change, ...]
    old_count: int
    new_count: int
    added_count: int
    dropped_count: int
    notes: tuple[str, ...]


def red_cells(judged: Mapping[str, Judgement]) -> tuple[Judgement, ...]:
    """Cells whose newest judgement is red, worst first."""
    red = [one for one in judged.values() if one.cell.outcome in RED]
    return tuple(sorted(red, key=lambda one: (-_severity(one), one.cell.cell_id)))


def _severity(one: Judgement) -> int:
    return SEVERITY[one.cell.outcome] if one.cell.outcome is not None else 0


def main_issue(judged: Mapping[str, Judgement]) -> str:
    """The issue's text: one row for each red cell, with the commits between which it
    turned red. Empty: nothing is red, and the issue can be closed.
    """
    red = red_cells(judged)
    if not red:
        return ""
    counts = {outcome: sum(one.cell.outcome is outcome for one in red) for outcome in RED}
    shown = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    lines = [
        MAIN_MARKER,
        f"`main` fails its performance gate: {shown}, of {len(judged)} judged cells.",
        "",
        "| cell | outcome | what got worse | last pass | first failure |",
        "| --- | --- | --- | --- | --- |",
        *(_red_row(one) for one in red[:_MAXIMUM_CELLS]),
    ]
    if len(red) > _MAXIMUM_CELLS:
        lines += ["", f"and {len(red) - _MAXIMUM_CELLS} more."]
    lines += [
        "",
        "Find the commit: `k3perf bisect GOOD BAD --cell CELL`, with the commit of the last pass"
        " as GOOD and of the first failure as BAD.",
        "Accept a loss: record the cell, then `k3perf baseline accept --reason WHY`"
        " (docs/ci.md). The issue closes when every cell passes.",
    ]
    return fitted(lines)


def _red_row(one: Judgement) -> str:
    cell = one.cell
    worse = [f for f in cell.findings if f.outcome is cell.outcome][:_METRICS_IN_A_ROW]
    told = ", ".join(map(_finding, worse)) or prose(cell.reason, 200) or "-"
    green = one.last_green
    last = "none kept" if green is None else f"{code(green.day)} {code(green.commit[:12])}"
    first = one.first_red or one.night
    fields = [
        f"{code(cell.target)} {code(cell.config)} {code(cell.workload)}",
        str(cell.outcome),
        told,
        last,
        f"{code(first.day)} {code(first.commit[:12])}",
    ]
    return f"| {' | '.join(fields)} |"


def _finding(finding: NightFinding) -> str:
    values = f"{number(finding.before, finding.unit)} to {number(finding.now, finding.unit)}"
    return f"{code(finding.metric)} {percent(finding.loss_ratio)} ({values})"


def refresh_text(refreshed: Sequence[RefreshedBaseline], *, run_id: str, window: str) -> str:
    """The pull request's text: a table of each baseline that grows, its largest change,
    old and new number of sessions. Then those that stay, and why.
    """
    grown = [one for one in refreshed if one.rows]
    rest = [one for one in refreshed if not one.rows]
    lines = [
        REFRESH_MARKER,
        f"{len(grown)} baselines grow by the sessions of judged nights, up to run {code(run_id)}.",
        f"{len(rest)} stay as they are. Window: {prose(window)}.",
        "Only cells that PASS or IMPROVE are here. A positive loss is worse.",
        "",
        "| baseline | sessions | added | dropped | largest loss | largest gain |",
        "| --- | ---: | ---: | ---: | --- | --- |",
        *map(_refresh_row, grown),
    ]
    if rest:
        lines += ["", "### Not changed", ""]
        lines += [
            f"* {code(one.name)}: {prose('; '.join(one.notes) or 'no new session', 300)}"
            for one in rest
        ]
    return fitted(lines)


def _refresh_row(one: RefreshedBaseline) -> str:
    moved = [row for row in one.rows if row.loss_ratio]
    worst = max(moved, key=lambda row: row.loss_ratio or 0.0, default=None)
    best = min(moved, key=lambda row: row.loss_ratio or 0.0, default=None)
    fields = [
        code(one.name),
        f"{one.old_count} to {one.new_count}",
        str(one.added_count),
        str(one.dropped_count),
        _row(worst) if worst is not None and (worst.loss_ratio or 0.0) > 0 else "-",
        _row(best) if best is not None and (best.loss_ratio or 0.0) < 0 else "-",
    ]
    return f"| {' | '.join(fields)} |"


def _row(row: Change) -> str:
    values = f"{number(row.old_value, row.unit)} to {number(row.new_value, row.unit)}"
    where = f"{code(row.workload)} " if row.workload else ""
    return f"{where}{code(row.metric)} {percent(row.loss_ratio)} ({values})"


def fitted(lines: Iterable[str], limit: int = MAXIMUM_BODY_CHARACTERS) -> str:
    """Whole lines up to the limit. The last one counts what was cut."""
    kept: list[str] = []
    cut_count, size = 0, 200
    for line in lines:
        size += len(line) + 1
        if cut_count or size > limit:
            cut_count += 1
        else:
            kept.append(line)
    if cut_count:
        kept += ["", f"{cut_count} more lines are in the run's summary and artefacts."]
    return "\n".join(kept) + "\n"


def outcome_counts(judged: Iterable[Judgement]) -> str:
    """``3 REGRESSED, 117 PASS``."""
    found: dict[Outcome, int] = {}
    for one in judged:
        if one.cell.outcome is not None:
            found[one.cell.outcome] = found.get(one.cell.outcome, 0) + 1
    ordered = sorted(found, key=SEVERITY.__getitem__, reverse=True)
    return ", ".join(f"{found[outcome]} {outcome}" for outcome in ordered) or "none"
