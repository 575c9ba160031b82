"""Every metric, defined once in ``metrics.yaml``: name with unit, direction, scope, how
it is compared. ``docs/metrics.md`` is generated from that table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Final

from k3perf.documents import validated, yaml_of


class Direction(StrEnum):
    """Which way is a loss."""

    HIGHER_IS_BETTER = "higher_is_better"
    LOWER_IS_BETTER = "lower_is_better"


class Scope(StrEnum):
    """A ROUND metric has a value per valid round; a SESSION metric one per session."""

    ROUND = "round"
    SESSION = "session"


class Comparison(StrEnum):
    """STATISTICAL metrics vary from run to run and are judged with an interval; EXACT
    ones are compared as they are.
    """

    STATISTICAL = "statistical"
    EXACT = "exact"


class Family(StrEnum):
    """What a metric is about; one test module each, and the report groups by it."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    MEMORY = "memory"
    CAPACITY = "capacity"
    STARTUP = "startup"
    CACHE = "cache"
    ENERGY = "energy"
    QUALITY = "quality"


class Gain(StrEnum):
    """Which gain of an EXACT metric is an improvement: one of more than half of the
    tolerance, one of more than all of it (a resident size, which wanders), or none
    (fewer bytes of KV cache are a loss of capacity).
    """

    ANY = "any"
    BEYOND_TOLERANCE = "beyond_tolerance"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class MetricDef:
    """One metric: what it is called, which way is a loss, per what it has a value, and
    how it is compared. ``counted``: of whole requests or tokens, so that 0 is a value
    and rounds may read the very same one. ``both_ways``: of an EXACT metric, a change
    in either direction is a loss and no gain.
    """

    name: str
    unit: str
    direction: Direction
    scope: Scope
    comparison: Comparison
    family: Family
    description: str
    counted: bool = False
    gain: Gain = Gain.ANY
    both_ways: bool = False

    def loss(self, was: float, now: float) -> float:
        """The change in the metric's unit; positive is worse."""
        return now - was if self.direction is Direction.LOWER_IS_BETTER else was - now

    def loss_ratio(self, was: float, now: float) -> float | None:
        """``loss`` as a share of ``was``. None where ``was`` is 0, since no share of 0
        says how much, and where the result is not finite.
        """
        ratio = self.loss(was, now) / abs(was) if was else math.nan
        return ratio if math.isfinite(ratio) else None


METRIC_TABLE: Final[tuple[MetricDef, ...]] = validated(
    tuple[MetricDef, ...],
    yaml_of(files(__package__).joinpath("metrics.yaml").read_text(encoding="utf-8")),
)

METRICS: Final[dict[str, MetricDef]] = {metric.name: metric for metric in METRIC_TABLE}
