"""The charts as Vega-Lite specifications without data: the page adds the data of a cell
when it is opened. Pure.

Colours are the page's CSS variables, so that a chart follows the colour scheme and
print without being drawn again.
"""

from __future__ import annotations

from typing import Any, Final

_ARMS: Final = ["baseline", "reference", "base", "candidate", "candidate / reference", "excluded"]
_ARM_COLOURS: Final = [
    "var(--baseline)",
    "var(--reference)",
    "var(--reference)",
    "var(--candidate)",
    "var(--candidate)",
    "var(--muted)",
]
_SHAPES: Final = ["circle", "square", "square", "circle", "circle", "cross"]
_KINDS: Final = ["engine start", "warm-up", "round", "invalid"]
_KIND_COLOURS: Final = ["var(--baseline)", "var(--band)", "var(--candidate)", "var(--bad)"]
_PARTS: Final = ["weights", "KV cache", "peak activations", "graph pool", "outside the allocator"]
_PART_COLOURS: Final = [f"var(--part{number})" for number in range(1, 6)]


def chart_specs() -> dict[str, dict[str, Any]]:
    """By name. Each reads the data sets that its ``data`` names."""
    return {
        "intervals": _intervals(),
        "rounds": _rounds(),
        "ecdf": _ecdf(),
        "memory": _memory(),
        "spans": _spans(),
        "readings": _readings(),
        "history": _history(),
    }


def chart_config() -> dict[str, Any]:
    """Fonts and colours of every chart."""
    axis = {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "gridColor": "var(--line)",
        "titleFontWeight": 500,
        "labelFontSize": 12,
        "titleFontSize": 12,
    }
    return {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "view": {"stroke": "transparent"},
        "axis": axis,
        "legend": {
            "labelColor": "var(--ink)",
            "titleColor": "var(--soft)",
            "orient": "top",
            "title": None,
            "labelFontSize": 12,
            "columns": 3,
        },
        "title": {"color": "var(--ink)", "fontSize": 13, "anchor": "start", "fontWeight": 600},
        "header": {"labelColor": "var(--soft)", "titleColor": "var(--soft)"},
    }


def _field(name: str, kind: str = "quantitative", **more: Any) -> dict[str, Any]:
    return {"field": name, "type": kind, **more}


def _arm_colour(**more: Any) -> dict[str, Any]:
    return _field("arm", "nominal", scale={"domain": _ARMS, "range": _ARM_COLOURS}, **more)


def _tooltip(*pairs: tuple[str, str], share: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return [
        {
            "field": name,
            "title": title,
            "type": "quantitative" if name in share else "nominal",
            **({"format": "+.2%"} if name in share else {}),
        }
        for name, title in pairs
    ]


def _interval_tooltip() -> list[dict[str, Any]]:
    return _tooltip(
        ("metric", "metric"),
        ("loss", "loss"),
        ("lower", "lower bound"),
        ("upper", "upper bound"),
        ("tolerance", "tolerance"),
        ("detectable", "minimum detectable"),
        ("outcome", "outcome"),
        share=("loss", "lower", "upper", "tolerance", "detectable"),
    )


def _intervals() -> dict[str, Any]:
    """Loss and interval of each metric, its tolerance and minimum detectable effect."""
    metric = _field("metric", "nominal", title=None, sort=None, axis={"labelLimit": 170})
    loss: dict[str, Any] = {"title": "loss (positive is worse)", "axis": {"format": "+.0%"}}
    outcome = {
        "condition": {
            "test": "datum.outcome == 'REGRESSED' || datum.outcome == 'SUSPECT'",
            "value": "var(--bad)",
        },
        "value": "var(--candidate)",
    }
    tooltip = _interval_tooltip()
    layers = [
        {
            "mark": {"type": "rule", "color": "var(--soft)", "strokeWidth": 1},
            "encoding": {"x": _field("zero", **loss)},
        },
        {
            "mark": {"type": "bar", "height": 18, "color": "var(--band)"},
            "encoding": {
                "y": metric,
                "x": _field("zero", **loss),
                "x2": {"field": "tolerance"},
                "tooltip": tooltip,
            },
        },
        {
            "mark": {"type": "tick", "color": "var(--soft)", "thickness": 1.5, "height": 18},
            "encoding": {"y": metric, "x": _field("detectable", **loss), "tooltip": tooltip},
        },
        {
            "mark": {"type": "rule", "strokeWidth": 2.5},
            "encoding": {
                "y": metric,
                "x": _field("lower", **loss),
                "x2": {"field": "upper"},
                "color": outcome,
                "tooltip": tooltip,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
            "encoding": {
                "y": metric,
                "x": _field("loss", **loss),
                "color": outcome,
                "tooltip": tooltip,
            },
        },
    ]
    return {"data": {"name": "intervals"}, "height": {"step": 30}, "layer": layers}


def _rounds() -> dict[str, Any]:
    """Every round as a point, sessions side by side, over the baseline's band."""
    value: dict[str, Any] = {"scale": {"zero": False}, "title": None}
    x = _field("session", "ordinal", title="session", axis={"labelAngle": 0})
    offset = {"xOffset": _field("round", "ordinal", scale={"paddingOuter": 0.4})}
    tooltip = _tooltip(
        ("value", "value"),
        ("of", "arm"),
        ("session", "session"),
        ("id", "session id"),
        ("round", "round"),
        ("reason", "excluded because"),
    )
    shape = _field("arm", "nominal", scale={"domain": _ARMS, "range": _SHAPES})
    return {
        "data": {"name": "points"},
        "height": 240,
        "layer": [
            {
                "data": {"name": "band"},
                "mark": {"type": "rect", "color": "var(--band)", "opacity": 0.75},
                "encoding": {"y": _field("low", **value), "y2": {"field": "high"}},
            },
            {
                "data": {"name": "band"},
                "mark": {"type": "rule", "color": "var(--baseline)", "strokeWidth": 1.5},
                "encoding": {"y": _field("middle", **value)},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.9},
                "encoding": {
                    "x": x,
                    **offset,
                    "y": _field("value", **value),
                    "color": _arm_colour(),
                    "shape": shape,
                    "tooltip": tooltip,
                },
            },
            {
                "transform": [{"filter": "datum.reason == ''"}],
                "mark": {"type": "tick", "thickness": 2.5, "width": 46},
                "encoding": {
                    "x": x,
                    "y": _field("value", aggregate="median", **value),
                    "color": _arm_colour(),
                },
            },
        ],
    }


def _ecdf() -> dict[str, Any]:
    """Shares of observations up to a time, with p50 and p99 as rules."""
    x = _field("ms", title="ms (log scale)", scale={"type": "log", "nice": False})
    colour = _arm_colour()
    return {
        "data": {"name": "curve"},
        "height": 220,
        "layer": [
            {
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
                "encoding": {
                    "x": x,
                    "y": _field("share", title="share of observations", axis={"format": ".0%"}),
                    "color": _arm_colour(),
                    "order": {"field": "ms"},
                },
            },
            {
                "data": {"name": "quantiles"},
                "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5},
                "encoding": {
                    "x": x,
                    "color": colour,
                    "tooltip": _tooltip(("name", "quantile"), ("arm", "arm"), ("ms", "ms")),
                },
            },
            {
                "data": {"name": "quantiles"},
                "mark": {
                    "type": "text",
                    "align": "left",
                    "dx": 4,
                    "baseline": "bottom",
                    "fontSize": 11,
                },
                "encoding": {
                    "x": x,
                    "y": _field("at", title=None),
                    "text": {"field": "name"},
                    "color": colour,
                },
            },
        ],
    }


def _memory() -> dict[str, Any]:
    part = _field("part", "nominal", scale={"domain": _PARTS, "range": _PART_COLOURS})
    return {
        "data": {"name": "memory"},
        "height": {"step": 34},
        "mark": {"type": "bar", "height": 22, "stroke": "var(--paper)", "strokeWidth": 1},
        "encoding": {
            "y": _field("arm", "nominal", title=None, sort=_ARMS),
            "x": _field("gib", title="GiB, worst rank", stack=True),
            "color": part,
            "order": {"field": "place"},
            "tooltip": _tooltip(
                ("arm", "arm"), ("part", "part"), ("gib", "GiB"), ("bytes", "bytes")
            ),
        },
    }


def _spans() -> dict[str, Any]:
    return {
        "data": {"name": "spans"},
        "height": {"step": 22},
        "mark": {"type": "bar", "height": 14, "stroke": "var(--paper)", "strokeWidth": 0.5},
        "encoding": {
            "y": _field("lane", "nominal", title=None, sort=None, axis={"labelLimit": 150}),
            "x": _field("from_s", title="seconds since the start"),
            "x2": {"field": "to_s"},
            "color": _field("kind", "nominal", scale={"domain": _KINDS, "range": _KIND_COLOURS}),
            "tooltip": _tooltip(
                ("what", "what"),
                ("lane", "session"),
                ("from_s", "from (s)"),
                ("length_s", "for (s)"),
            ),
        },
    }


def _readings() -> dict[str, Any]:
    return {
        "data": {"name": "readings"},
        "height": 110,
        "mark": {
            "type": "line",
            "point": {"filled": True, "size": 25, "color": "var(--candidate)"},
            "color": "var(--candidate)",
            "strokeWidth": 1.5,
        },
        "encoding": {
            "x": _field("at_s", title="seconds since the start"),
            "y": _field("value", title=None, scale={"zero": False}, axis={"tickCount": 4}),
            "detail": {"field": "source"},
            "tooltip": _tooltip(("value", "value"), ("at_s", "at (s)"), ("source", "source")),
        },
    }


def _history() -> dict[str, Any]:
    """A metric over time with the baseline and the tolerance's limit."""
    y: dict[str, Any] = {"title": None, "scale": {"zero": False}}
    x = _field("at", "temporal", title=None)
    tooltip = _tooltip(
        ("value", "value"),
        ("date", "date"),
        ("commit", "commit"),
        ("vllm", "vLLM"),
        ("sessions", "sessions"),
        ("run", "run"),
    )
    return {
        "data": {"name": "nights"},
        "height": 220,
        "layer": [
            {
                "data": {"name": "band"},
                "mark": {"type": "rect", "color": "var(--band)", "opacity": 0.75},
                "encoding": {"y": _field("low", **y), "y2": {"field": "high"}},
            },
            {
                "data": {"name": "band"},
                "mark": {"type": "rule", "color": "var(--baseline)", "strokeWidth": 1.5},
                "encoding": {"y": _field("middle", **y)},
            },
            {
                "data": {"name": "changes"},
                "mark": {"type": "rule", "color": "var(--bad)", "strokeDash": [4, 3]},
                "encoding": {"x": x, "tooltip": _tooltip(("text", "change"))},
            },
            {
                "mark": {"type": "line", "color": "var(--candidate)", "strokeWidth": 1.5},
                "encoding": {"x": x, "y": _field("value", **y)},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
                "encoding": {
                    "x": x,
                    "y": _field("value", **y),
                    "color": _field(
                        "vllm",
                        "nominal",
                        scale={"range": [f"var(--part{number})" for number in (2, 1, 3, 4, 5)]},
                        legend={"title": "vLLM"},
                    ),
                    "tooltip": tooltip,
                },
            },
        ],
    }
