"""Nightly series and slides to a page for GitHub Pages and to the text of an issue.
Pure. Escapes all text from outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from k3perf.ci.history import Series, Slide
from k3perf.records.metric_definitions import METRICS
from k3perf.report.escaping import code, number, percent

ISSUE_MARKER: Final = "<!-- k3perf-slide -->"
_WIDTH, _HEIGHT, _MARGIN = 320, 64, 4
_MAXIMUM_SLIDES = 50

_PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>k3perf history</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body{font:14px system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse}
td,th{padding:.3em .8em;border-bottom:1px solid #ddd;text-align:left}.slide{background:#fde8e8}
polyline{fill:none;stroke:#2563a8;stroke-width:1.5}line{stroke:#c33;stroke-dasharray:3 2}
</style>
<h1>k3perf history</h1>
<p>{{ rows|length }} series; {{ slide_count }} confirmed slide(s) marked red. One point a night, newest right.</p>
<table><tr><th>target</th><th>config</th><th>workload</th><th>metric</th><th>newest</th><th>nights</th>
<th>without a value</th><th></th></tr>
{%- for row in rows %}
<tr{% if row.loss %} class="slide"{% endif %}><td>{{ row.target }}</td><td>{{ row.config }}</td><td>{{ row.workload }}</td>
<td>{{ row.metric }}</td><td>{{ row.newest }}</td><td>{{ row.nights }}</td><td>{{ row.missing }}</td>
<td><svg width="{{ width }}" height="{{ height }}" role="img"><polyline points="{{ row.points }}"/>
{%- if row.loss %}<line x1="{{ row.change_x }}" x2="{{ row.change_x }}" y1="0" y2="{{ height }}"/>{% endif %}</svg>{{ row.loss }}</td></tr>
{%- endfor %}
</table></html>
"""


def page(all_series: Iterable[Series], slides: Iterable[Slide]) -> str:
    """One self-contained HTML document without scripts."""
    from jinja2 import Environment

    found = {id(slide.series): slide for slide in slides}
    rows = [_row(series, found.get(id(series))) for series in all_series if series.entries]
    template = Environment(autoescape=True).from_string(_PAGE)
    return template.render(rows=rows, slide_count=len(found), width=_WIDTH, height=_HEIGHT) + "\n"


def _row(series: Series, slide: Slide | None) -> dict[str, Any]:
    values = series.values
    unit = METRICS[series.metric].unit if series.metric in METRICS else ""
    return {
        "target": series.target,
        "config": series.config,
        "workload": series.workload,
        "metric": series.metric,
        "newest": number(values[-1], unit),
        "nights": len(values),
        "missing": series.missing_nights or "",
        "points": " ".join(
            f"{_x(index, len(values)):.1f},{_y(value, values):.1f}"
            for index, value in enumerate(values)
        ),
        "loss": percent(slide.loss_ratio) if slide else "",
        "change_x": f"{_x(len(values) - slide.nights_since, len(values)):.1f}" if slide else "",
    }


def _x(index: int, count: int) -> float:
    return _MARGIN + index * (_WIDTH - 2 * _MARGIN) / max(1, count - 1)


def _y(value: float, values: tuple[float, ...]) -> float:
    low, high = min(values), max(values)
    return (
        _HEIGHT / 2
        if high == low
        else _HEIGHT - _MARGIN - (value - low) / (high - low) * (_HEIGHT - 2 * _MARGIN)
    )


def issue(slides: tuple[Slide, ...]) -> str:
    """The issue's text: one row a slide, worst first, with the commit range to look
    at.
    """
    lines = [
        ISSUE_MARKER,
        "The nightly history holds changes for the worse that later nights confirm.",
        "",
    ]
    lines += [
        "| cell | metric | before | since | loss | first seen | nights since | p |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    lines += [_issue_row(slide) for slide in slides[:_MAXIMUM_SLIDES]]
    if len(slides) > _MAXIMUM_SLIDES:
        lines += ["", f"and {len(slides) - _MAXIMUM_SLIDES} more."]
    lines += [
        "",
        "A slide is a change of level by a permutation test over the last nights (docs/ci.md).",
        "Look at what changed just before the first night.",
    ]
    return "\n".join(lines) + "\n"


def _issue_row(slide: Slide) -> str:
    series, unit = slide.series, METRICS[slide.series.metric].unit
    fields = [
        f"{code(series.target)} {code(series.config)} {code(series.workload)}",
        code(series.metric),
        number(slide.before_value, unit),
        number(slide.after_value, unit),
        percent(slide.loss_ratio),
        (
            f"{code(slide.first.created_at_utc)} at {code(slide.first.commit[:12])}, vLLM"
            f" {code(slide.first.vllm_version)}"
        ),
        str(slide.nights_since),
        number(slide.p_value),
    ]
    return f"| {' | '.join(fields)} |"
