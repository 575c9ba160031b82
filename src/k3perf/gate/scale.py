"""The loss scale: metric values turned so that larger is worse, in logarithms or, for
absolute tolerances, in the metric's own unit.

On the log scale a difference is a relative loss whichever size the metric has, and a
ratio of two sessions is a difference too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from k3perf.config.models import Tolerance
from k3perf.records.metric_definitions import Direction, MetricDef

_LARGEST: Final = 1e100


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to losses and back. ``sign`` is +1 where lower is better, -1 where higher
    is better.
    """

    sign: int
    logarithmic: bool

    def basis(self, mode: str) -> str:
        """How a baseline must have recorded the metric to be compared in ``mode``:
        absolute, ratio or difference.
        """
        if mode == "baseline":
            return "absolute"
        return "ratio" if self.logarithmic else "difference"

    def loss(self, value: float) -> float:
        """One value on the loss scale. NaN where there is none: a logarithm of a number
        that is not positive, or not finite, or so large that its square is not.
        """
        if self.logarithmic:
            return self.sign * math.log(value) if 0 < value < math.inf else math.nan
        return self.sign * value if abs(value) < _LARGEST else math.nan

    def losses(self, values: Sequence[float]) -> tuple[float, ...]:
        """``loss`` of each value; written out, since this is where judging a large
        suite spends its time.
        """
        if self.logarithmic:
            sign, log = self.sign, math.log
            return tuple(
                [sign * log(value) if 0 < value < math.inf else math.nan for value in values]
            )
        return tuple([self.loss(value) for value in values])

    def value(self, loss: float) -> float:
        """The inverse of ``loss``."""
        return math.exp(self.sign * loss) if self.logarithmic else self.sign * loss

    def loss_ratio(self, loss_difference: float, baseline_value: float | None) -> float | None:
        """A difference of two losses as a share of the baseline's value; positive is
        worse. None: the baseline is 0 or unknown.
        """
        if self.logarithmic:
            return (
                self.sign * math.expm1(self.sign * loss_difference)
                if abs(loss_difference) < 700
                else None
            )
        if not baseline_value:
            return None
        return loss_difference / abs(baseline_value)

    def tolerance(self, tolerance: Tolerance) -> float:
        """The tolerance on the loss scale, non-negative."""
        if tolerance.loss_absolute is not None:
            return tolerance.loss_absolute
        ratio = tolerance.loss_ratio or 0.0
        return math.log1p(ratio) if self.sign > 0 else -math.log1p(-ratio)


@lru_cache(maxsize=256)
def _scale(sign: int, logarithmic: bool) -> Scale:
    return Scale(sign, logarithmic)


def scale_for(metric: MetricDef, tolerance: Tolerance) -> Scale:
    """Relative tolerances are judged on the log scale, absolute ones in the metric's
    unit.
    """
    sign = 1 if metric.direction is Direction.LOWER_IS_BETTER else -1
    return _scale(sign, tolerance.loss_absolute is None)
