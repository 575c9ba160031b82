"""What the gate judges by: tolerances, plan, error rates and recorded noise. Everything
it needs to stay pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.errors import UnknownNameError, UsageError
from k3perf.metrics.validity import SESSION_RULES, SPREAD_LIMIT
from k3perf.records.metric_definitions import METRICS
from k3perf.stats.noise import NO_NOISE, MetricNoise

OwnTolerances = Mapping[str, Mapping[str, Tolerance | None]]
"""By config or workload: its own tolerances. None: the metric is not gated there."""

NoiseKey = tuple[str, str]
"""Metric and basis."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How one target's cells are judged.

    ``tolerances``: by metric; one without is not gated. ``workload_tolerances`` overlay
    them, and ``config_tolerances`` both; ``for_cell`` applies them.
    ``gated_metric_count``: gated metrics of the WHOLE run, over which the error rates
    are divided in equal parts (Bonferroni: valid under any dependence, and a cell can
    be judged before the others are measured). ``noise`` is that of the target's
    baselines, ``config_noise`` that of metrics with a config's own tolerance.

    ``false_alarm_budget``: probability that a run in which nothing changed has any
    REGRESSED metric. ``half_tolerance_budget``: the same when every metric lost half of
    its tolerance. ``missed_loss_budget``: per metric, probability of PASS when the loss
    equals the tolerance. ``spread_over_noise_ratio``: rounds that spread (robust sigma)
    more than this times as much as recorded add to the variance of their session.
    """

    tolerances: Mapping[str, Tolerance]
    plan: MeasurementPlan
    gated_metric_count: int
    false_alarm_budget: float = 0.01
    half_tolerance_budget: float = 0.02
    missed_loss_budget: float = 0.05
    cumulative_loss_cap_ratio: float = 0.1
    common_loss_limit_ratio: float = 0.25
    spread_over_noise_ratio: float = SESSION_RULES[SPREAD_LIMIT]
    noise: Mapping[NoiseKey, MetricNoise] = field(default_factory=dict)
    workload_tolerances: OwnTolerances = field(default_factory=dict)
    config_tolerances: OwnTolerances = field(default_factory=dict)
    config_noise: Mapping[str, Mapping[NoiseKey, MetricNoise]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.gated_metric_count < 1:
            raise UsageError(
                f"gated_metric_count is {self.gated_metric_count}; a run gates at least one metric."
            )
        overlays = (*self.workload_tolerances.values(), *self.config_tolerances.values())
        for name in (name for given in (self.tolerances, *overlays) for name in given):
            if name not in METRICS:
                raise UnknownNameError("metric", name, tuple(METRICS))

    def for_cell(self, config: str, workload: str) -> Policy:
        """The policy of one cell: all tolerances that hold there, and the noise that
        its metrics are judged by.
        """
        own = self.config_tolerances.get(config, {})
        overlay = {**self.workload_tolerances.get(workload, {}), **own}
        if not overlay:
            return self
        overlaid = {**self.tolerances, **overlay}
        siblings = {key: noise for key, noise in self.noise.items() if key[0] not in own}
        return replace(
            self,
            tolerances={name: given for name, given in overlaid.items() if given is not None},
            noise={**siblings, **self.config_noise.get(config, {})} if own else self.noise,
        )

    @property
    def known_tolerances(self) -> dict[str, Tolerance]:
        """A tolerance for every metric that is gated in any cell. They are of one kind
        in all (``config.tolerances``).
        """
        overlays = (*self.config_tolerances.values(), *self.workload_tolerances.values())
        overlaid = {
            name: given for own in overlays for name, given in own.items() if given is not None
        }
        return {**overlaid, **self.tolerances}

    @property
    def alpha(self) -> float:
        """One metric's share of the family-wise error rate."""
        return self.false_alarm_budget / self.gated_metric_count

    @property
    def half_tolerance_alpha(self) -> float:
        """One metric's share of the error rate for losses of half the tolerance."""
        return self.half_tolerance_budget / self.gated_metric_count

    def noise_of(self, metric: str, basis: str) -> MetricNoise:
        """The recorded noise of a metric; ``NO_NOISE`` if there is none."""
        return self.noise.get((metric, basis), NO_NOISE)
