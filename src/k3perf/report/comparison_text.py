"""Comparisons of configs as lines, Markdown and an HTML page. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from k3perf.baselines.comparison import ConfigComparison, Difference
from k3perf.report.escaping import code, prose
from k3perf.report.numbers import value_text
from k3perf.report.page.frame import html_page
from k3perf.report.page.shown import Shown, of_share, of_unit, plain

HEADINGS = ("workload", "metric", "parent", "config", "gain", "interval (95 %)")


def terminal_text(rows: Sequence[ConfigComparison]) -> str:
    """One block for each config, then the Pareto set of each target."""
    blocks = []
    for row in rows:
        lines = [f"{row.target} · {row.config} against {row.parent} ({row.change})"]
        lines += [f"  {line}" for line in _lines(row)]
        blocks.append("\n".join(lines))
    best = ["\n".join(["largest proven gains:", *(f"  {line}" for line in best_lines(rows))])]
    return "\n\n".join([*best, *blocks, *front_lines(rows)]) + "\n"


def best_lines(rows: Sequence[ConfigComparison]) -> list[str]:
    """At most ten: the proven gains of all configs, the largest first."""
    found = [
        (one.gain_ratio, row, one)
        for row in rows
        for one in row.differences
        if one.certain and one.gain_ratio > 0
    ]
    found.sort(key=lambda entry: -entry[0])
    lines = [
        f"{row.target} · {row.config}: {one.metric}{f' of {one.workload}' if one.workload else ''}"
        f" {gain_text(one)} over {row.parent}"
        for _, row, one in found[:10]
    ]
    return lines or ["none"]


def _lines(row: ConfigComparison) -> list[str]:
    if row.problem:
        return [f"not compared: {row.problem}"]
    lines = [
        f"{one.workload or '(all)':<10} {one.metric:<24} {value_text(one.was, one.unit):>16}"
        f" -> {value_text(one.now, one.unit):>16}  {gain_text(one)}"
        for one in row.differences
    ]
    return lines + [
        f"{one.workload or '(all)':<10} {one.metric:<24} together {one.gain_ratio:+.1%}, product of"
        f" its parts {one.parts_ratio:+.1%}"
        for one in row.combined
    ]


def gain_text(one: Difference) -> str:
    """The gain with its interval, and whether it is proven."""
    if one.lower_ratio is None or one.upper_ratio is None:
        return f"{one.gain_ratio:+.1%}, exact" if one.gain_ratio else "equal"
    known = "" if one.certain else ", not proven"
    return f"{one.gain_ratio:+.1%} ({one.lower_ratio:+.1%} to {one.upper_ratio:+.1%}{known})"


def front_lines(rows: Sequence[ConfigComparison]) -> list[str]:
    """Pareto sets of throughput, first token and memory, one line for each target."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for workload in row.on_front:
            found.setdefault((row.target, workload), []).append(row.config)
    return [
        f"Pareto set of {target} {workload} (throughput, TTFT, KV tokens): {', '.join(configs)}"
        for (target, workload), configs in found.items()
    ]


def markdown_text(rows: Sequence[ConfigComparison]) -> str:
    """A table for a pull request or a page."""
    lines = [
        "| target | config | change | workload | metric | parent | config | gain (95 %) |",
        "| --- | --- | --- | --- | --- | ---: | ---: | --- |",
    ]
    for row in rows:
        head = f"| {code(row.target)} | {code(row.config)} | {prose(row.change)} |"
        if row.problem:
            lines.append(f"{head} | | | | not compared: {prose(row.problem)} |")
        for one in row.differences:
            values = f"{value_text(one.was, one.unit)} | {value_text(one.now, one.unit)}"
            lines.append(
                f"{head} {code(one.workload) if one.workload else ''} | {code(one.metric)} |"
                f" {values} | {gain_text(one)} |"
            )
    lines += ["", *(f"* {prose(line)}" for line in front_lines(rows))]
    combined = [(row, one) for row in rows for one in row.combined]
    lines += [
        f"* {code(row.config)} {code(one.metric)}: together {one.gain_ratio:+.1%}, product of"
        f" its parts {one.parts_ratio:+.1%}"
        for row, one in combined
    ]
    return "\n".join(lines) + "\n"


def html_text(rows: Sequence[ConfigComparison]) -> str:
    """A self-contained page with a sortable table."""
    context = {
        "title": "k3perf: configs against their parents",
        "rows": [_html_row(row, one) for row in rows for one in row.differences],
        "problems": [
            f"{plain(row.target)} · {plain(row.config)}: {plain(row.problem)}"
            for row in rows
            if row.problem
        ],
        "fronts": [plain(line) for line in front_lines(rows)],
        "combined": [
            (plain(row.config), one.workload, one.metric, *_pair(one.gain_ratio, one.parts_ratio))
            for row in rows
            for one in row.combined
        ],
    }
    return html_page("compare.html.j2", context, {}, charts=False)


def _pair(gain: float, parts: float) -> tuple[Shown, Shown]:
    return of_share(gain, "baselines: gain over the parent"), of_share(
        parts, "baselines: product of the parts' gains"
    )


def _html_row(row: ConfigComparison, one: Difference) -> dict[str, object]:
    source = f"baselines/{plain(row.target)}/{plain(row.config)}.json {one.metric}"
    return {
        "target": plain(row.target),
        "config": plain(row.config),
        "parent": plain(row.parent),
        "change": plain(row.change),
        "workload": plain(one.workload),
        "metric": one.metric,
        "was": of_unit(one.was, one.unit, f"{source} parent"),
        "now": of_unit(one.now, one.unit, source),
        "gain": of_share(one.gain_ratio, f"{source} gain"),
        "lower": of_share(one.lower_ratio, f"{source} lower bound"),
        "upper": of_share(one.upper_ratio, f"{source} upper bound"),
        "known": "exact" if one.lower_ratio is None else "proven" if one.certain else "not proven",
    }
