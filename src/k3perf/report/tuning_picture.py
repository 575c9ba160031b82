"""A tuning run as one SVG picture: each sweep's effect on the objective with its
interval, and the measured points over throughput and latency. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from k3perf.records.tuning import (
    Effect,
    ParameterFinding,
    TuningResult,
    ValueFinding,
    label_of,
    value_text,
)

WIDTH: Final = 760
ROW: Final = 22
_LEFT: Final = 240
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#222}.t{font-weight:600}.m{fill:#666}"
    ".a{stroke:#bbb}.i{stroke:#356;stroke-width:2}.p{fill:#356}.b{fill:#1a7f37}"
    ".w{fill:#b42318}.f{fill:none;stroke:#1a7f37;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.m{fill:#999}.a{stroke:#555}"
    ".i{stroke:#8bd}.p{fill:#8bd}}"
)


def tuning_picture(result: TuningResult) -> str:
    """The picture as a whole SVG document, readable on light and dark pages."""
    parts: list[str] = []
    height = 16
    scale = _scale(result)
    for finding in result.parameters:
        rows = [one for one in finding.values if _effect(one, result.objective) is not None]
        if len(rows) > 1:
            parts += _sweep(finding, rows, result.objective, height, scale)
            height += ROW * (len(rows) + 2)
    drawn, size = _scatter(result, height)
    height += size
    title = f"Tuning of {result.target} on {result.workload}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(title)}"><title>{escape(title)}</title><style>{_STYLE}</style>'
        + "".join([*parts, *drawn])
        + "</svg>\n"
    )


def _effect(one: ValueFinding, objective: str) -> Effect | None:
    effect = one.effects.get(objective)
    return effect if effect is not None and effect.ratio is not None else None


def _scale(result: TuningResult) -> float:
    """The largest effect or interval's end that is drawn, at least 5 %."""
    ends = [
        abs(end)
        for finding in result.parameters
        for one in finding.values
        if (effect := _effect(one, result.objective)) is not None
        for end in (effect.ratio, effect.low_ratio, effect.high_ratio)
        if end is not None
    ]
    return max(0.05, min(max(ends, default=0.05), 2.0))


def _sweep(
    finding: ParameterFinding,
    rows: Sequence[ValueFinding],
    objective: str,
    top: int,
    scale: float,
) -> list[str]:
    half = (WIDTH - _LEFT - 120) / 2
    zero = _LEFT + half
    bottom = top + ROW * (len(rows) + 1)
    parts = [
        _text(8, top + 12, f"{finding.parameter}: effect on {objective}", "t"),
        f'<line class="a" x1="{zero:.1f}" x2="{zero:.1f}" y1="{top + 18}" y2="{bottom}"/>',
    ]
    for number, one in enumerate(rows):
        effect = _effect(one, objective)
        if effect is None or effect.ratio is None:
            continue
        y = top + ROW * (number + 1) + 10

        def x(ratio: float) -> float:
            return zero + half * max(-1.0, min(ratio / scale, 1.0))

        low = effect.ratio if effect.low_ratio is None else effect.low_ratio
        high = effect.ratio if effect.high_ratio is None else effect.high_ratio
        shade = {"better": "b", "worse": "w"}.get(one.outcome, "p")
        name = "not set" if one.value is None else value_text(one.value)
        parts += [
            _text(24, y + 4, f"{name[:34]}{' (parent)' if one.outcome == 'parent' else ''}"),
            f'<line class="i" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y}" y2="{y}"/>',
            f'<circle class="{shade}" cx="{x(effect.ratio):.1f}" cy="{y}" r="4"/>',
            _text(WIDTH - 110, y + 4, f"{effect.ratio:+.1%}", "m"),
        ]
    return parts


def _scatter(result: TuningResult, top: int) -> tuple[list[str], int]:
    """Every measured point over throughput and TTFT, the front's circled."""
    first, second = "output_tokens_per_s", "ttft_p99_ms"
    points: dict[str, tuple[float, float]] = {}
    for finding in result.parameters:
        for one in finding.values:
            if first in one.means and second in one.means:
                points.setdefault(label_of(one.change), (one.means[first], one.means[second]))
    for front in result.front:
        if first in front.means and second in front.means:
            points.setdefault(label_of(front.change), (front.means[first], front.means[second]))
    if len(points) < 2:
        return [], 0
    size, left, width = 260, 70, WIDTH - 300
    highest_x, highest_y = (max(values) * 1.05 for values in zip(*points.values(), strict=True))
    on_front = {label_of(one.change) for one in result.front}
    bottom = top + size - 30
    parts = [
        _text(
            8, top + 12, f"points over {first} (right is better) and {second} (low is better)", "t"
        ),
        f'<line class="a" x1="{left}" x2="{left + width}" y1="{bottom}" y2="{bottom}"/>',
        f'<line class="a" x1="{left}" x2="{left}" y1="{top + 24}" y2="{bottom}"/>',
        _text(left + width - 40, bottom + 16, f"{highest_x:.0f}", "m"),
        _text(8, top + 32, f"{highest_y:.0f}", "m"),
        _text(left - 12, bottom + 16, "0", "m"),
    ]
    for label, (right, up) in points.items():
        x = left + width * right / highest_x
        y = bottom - (bottom - top - 24) * up / highest_y
        if label in on_front:
            parts.append(f'<circle class="f" cx="{x:.1f}" cy="{y:.1f}" r="7"/>')
        parts.append(
            f'<circle class="p" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(label)}</title>'
            "</circle>"
        )
        if label in on_front:
            parts.append(_text(x + 10, y + 4, label[:40]))
    return parts, size


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    shade = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{shade}>{escape(text)}</text>'
