"""The loss scale: a metric's values turned so that larger is worse. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from k3perf.config.models import Tolerance
from k3perf.records.baseline import MetricBaseline
from k3perf.records.metric_definitions import Direction, MetricDef

Basis = Literal["absolute", "ratio", "difference"]

_LARGEST: Final = 1e100


@dataclass(frozen=True, slots=True)
class Scale:
    """One metric's loss scale under one tolerance: logarithms for a relative tolerance,
    the metric's own unit for an absolute one. A difference of logarithms is a relative
    loss whatever the metric's size.

    ``basis``: what is compared, the metric's values or their ratios or differences to
    the reference arm. ``sign``: +1 where lower is better, -1 where higher is.
    """

    metric: MetricDef
    tolerance: Tolerance
    basis: Basis
    sign: int
    logarithmic: bool

    @property
    def unit(self) -> str:
        """Of the compared values."""
        return "ratio" if self.basis == "ratio" else self.metric.unit

    @property
    def allowed(self) -> float:
        """The tolerance on the loss scale, not negative."""
        if self.tolerance.loss_absolute is not None:
            return self.tolerance.loss_absolute
        return self.loss_of(self.tolerance.loss_ratio or 0.0, 0.0)

    def loss_of(self, ratio: float, value: float) -> float:
        """A relative loss of ``value`` on the scale."""
        if not self.logarithmic:
            return ratio * abs(value)
        return math.log1p(ratio) if self.sign > 0 else -math.log1p(-ratio)

    def loss(self, value: float) -> float:
        """NaN where there is none: a logarithm of a number that is not positive and
        finite, or a number so large that its square is not finite.
        """
        if self.logarithmic:
            return self.sign * math.log(value) if 0 < value < math.inf else math.nan
        return self.sign * value if abs(value) < _LARGEST else math.nan

    def value(self, loss: float) -> float:
        """The inverse of ``loss``."""
        return math.exp(self.sign * loss) if self.logarithmic else self.sign * loss

    def loss_ratio(self, loss_difference: float, baseline_value: float | None) -> float | None:
        """A difference of two losses as a share of the baseline's value. None: the
        baseline is 0 or unknown.
        """
        if self.logarithmic:
            small = abs(loss_difference) < 700
            return self.sign * math.expm1(self.sign * loss_difference) if small else None
        return loss_difference / abs(baseline_value) if baseline_value else None


def scale_for(metric: MetricDef, tolerance: Tolerance, mode: str = "baseline") -> Scale:
    """The scale of a metric in a mode of measuring."""
    logarithmic = tolerance.loss_absolute is None
    basis: Basis = "absolute"
    if mode != "baseline":
        basis = "ratio" if logarithmic else "difference"
    sign = 1 if metric.direction is Direction.LOWER_IS_BETTER else -1
    return Scale(metric, tolerance, basis, sign, logarithmic)


def recorded_losses(entry: MetricBaseline, scale: Scale) -> tuple[tuple[float, ...], ...]:
    """A cell's recorded sessions on the loss scale: their rounds, or their values where
    the metric has no rounds. NaN where a value has no loss.
    """
    rounds = entry.round_count > 0
    return tuple(
        tuple(map(scale.loss, one.round_values))
        if rounds and math.isfinite(scale.loss(one.value))
        else (scale.loss(one.value),)
        for one in entry.sessions
    )
