"""The Pareto front of measured points, with noise: a point leaves it only if another
one is proven better in a metric and is not worse beyond noise in any. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from k3perf.records.metric_definitions import METRICS
from k3perf.records.tuning import Change, Effect, FrontPoint, label_of
from k3perf.stats.quantiles import upper_quantile
from k3perf.tune.block_fit import BlockFit, ratio

FRONT_LEVEL: Final = 0.025
"""One-sided level of a difference between two points of the front."""

WORST_NOISE: Final = 1.0
"""Standard errors by which a point may look worse and still count as equal."""


@dataclass(frozen=True, slots=True)
class Place:
    """One point's log gain over the base in one metric, its variance and the degrees of
    freedom of that.
    """

    gain: float
    variance: float
    df: int


@dataclass
class Front:
    """Collects points by label. The base is the origin."""

    metrics: tuple[str, ...]
    places: dict[str, dict[str, Place]] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)
    means: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(
        self,
        change: Change,
        parent: Change,
        fits: Mapping[str, BlockFit],
        means: dict[str, float],
    ) -> None:
        """A point measured against ``parent``, whose own place is added to it."""
        label, over = label_of(change), label_of(parent)
        if label in self.places:
            return
        origin = self.places.get(over, {})
        found: dict[str, Place] = {}
        for name in self.metrics:
            fit = fits.get(name)
            if fit is None or not (fit.measured(label) and fit.measured(over)) or fit.df < 1:
                continue
            if label == over:
                found[name] = origin.get(name, Place(0.0, 0.0, fit.df))
                continue
            before = origin.get(name, Place(0.0, 0.0, fit.df))
            found[name] = Place(
                before.gain + fit.gain(label, over),
                before.variance + fit.error(label, over) ** 2,
                min(before.df, fit.df),
            )
        self.places[label], self.changes[label] = found, change
        self.means[label] = means

    def points(self) -> tuple[FrontPoint, ...]:
        """The points that no other one dominates. A point that differs from the base in
        nothing is omitted, since it is the base again.
        """
        base = label_of({})
        labels = [label for label in self.places if self._read(label)]
        standing = [
            label
            for label in labels
            if not any(self.dominates(other, label) for other in labels if other != label)
            and (label == base or self._differs(label))
        ]
        return tuple(
            FrontPoint(
                self.changes[label],
                self.means[label],
                {name: self._effect(label, name) for name in self.places[label]},
                self._trade(label),
            )
            for label in standing
        )

    def dominates(self, one: str, other: str) -> bool:
        """Proven better in a metric, not worse beyond noise in any."""
        shared = [name for name in self.metrics if name in self.places[other]]
        if any(name not in self.places[one] for name in shared):
            return False
        better = False
        for name in shared:
            gain, error, df = self._difference(one, other, name)
            if gain < -WORST_NOISE * error:
                return False
            better |= gain > upper_quantile(FRONT_LEVEL / len(shared), df) * error
        return better

    def _difference(self, one: str, other: str, name: str) -> tuple[float, float, int]:
        mine, its = self.places[one][name], self.places[other][name]
        error = math.sqrt(mine.variance + its.variance)
        return mine.gain - its.gain, error, min(mine.df, its.df)

    def _read(self, label: str) -> bool:
        return bool(self.places[label])

    def _differs(self, label: str) -> bool:
        return any(
            abs(place.gain) > upper_quantile(FRONT_LEVEL, place.df) * math.sqrt(place.variance)
            for place in self.places[label].values()
        )

    def _effect(self, label: str, name: str) -> Effect:
        place = self.places[label][name]
        width = upper_quantile(FRONT_LEVEL, place.df) * math.sqrt(place.variance)
        return Effect(ratio(place.gain), ratio(place.gain - width), ratio(place.gain + width))

    def _trade(self, label: str) -> str:
        if label == label_of({}):
            return "the base"
        effects = {name: self._effect(label, name) for name in self.places[label]}
        return trade_text(effects)


def trade_text(effects: Mapping[str, Effect]) -> str:
    """What is better, what is worse, what is equal within noise, in words."""
    better, worse, equal = _sorted_effects(effects.items())
    parts = [f"better: {', '.join(better)}"] if better else []
    parts += [f"worse: {', '.join(worse)}"] if worse else []
    parts += [f"equal within noise: {', '.join(equal)}"] if equal else []
    return "; ".join(parts) or "nothing was read"


def _sorted_effects(
    effects: Iterable[tuple[str, Effect]],
) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    better: list[str] = []
    worse: list[str] = []
    equal: list[str] = []
    for name, effect in effects:
        if effect.ratio is None or effect.low_ratio is None or effect.high_ratio is None:
            continue
        if effect.low_ratio > 0 or effect.high_ratio < 0:
            into = better if effect.low_ratio > 0 else worse
            into.append(f"{name} {_as_value(name, effect.ratio):+.1%}")
        else:
            equal.append(name)
    return better, worse, equal


def _as_value(name: str, gain_ratio: float) -> float:
    """A gain as the change of the value itself: 25 % less TTFT is a gain of a third."""
    if METRICS[name].direction.value == "lower_is_better":
        return 1 / (1 + gain_ratio) - 1
    return gain_ratio
