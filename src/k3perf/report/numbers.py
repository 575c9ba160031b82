"""Values and changes as text. Pure."""

from __future__ import annotations

from k3perf.records.verdict import MetricVerdict
from k3perf.units import format_bytes


def value_text(value: float | None, unit: str) -> str:
    """A value with its unit. None is a dash, never 0."""
    if value is None:
        return "-"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "tokens":
        return f"{value:,.0f}"
    if unit == "ratio":
        return f"{value:.4f}"
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.4g} {unit}"


def change_text(metric: MetricVerdict) -> str:
    """The change in the metric's own sense, with the interval where there is one:
    ``-4.1 % (-6.0 .. -2.2)``.
    """
    if metric.loss_ratio is None:
        if metric.now_value is None or metric.baseline_value is None:
            return "-"
        difference = metric.now_value - metric.baseline_value
        return "=" if difference == 0 else f"{difference:+,.0f}"
    if metric.loss_ratio == 0 and metric.now_value == metric.baseline_value:
        return "="
    text = f"{_sign(metric.loss_ratio)} {abs(metric.loss_ratio):.1%}"
    if metric.loss_lower_bound_ratio is None or metric.loss_upper_bound_ratio is None:
        return text
    return (
        f"{text} ({-metric.loss_upper_bound_ratio:+.1%} .. {-metric.loss_lower_bound_ratio:+.1%})"
    )


def mde_text(metric: MetricVerdict) -> str:
    """The minimum detectable effect. Empty for a metric that is compared exactly."""
    return (
        ""
        if metric.smallest_detectable_loss_ratio is None
        else f"{metric.smallest_detectable_loss_ratio:.1%}"
    )


def _sign(loss_ratio: float) -> str:
    return "worse" if loss_ratio > 0 else "better"


def tolerance_text(metric: MetricVerdict) -> str:
    """The accepted loss, as a share or in the metric's unit."""
    if metric.tolerance_ratio is not None:
        return f"{metric.tolerance_ratio:.1%}"
    if metric.tolerance_absolute is not None:
        return value_text(metric.tolerance_absolute, metric.unit)
    return "-"
