"""What the gate judges by: tolerances, plan, error budgets, recorded noise, waivers, and the day. Everything it needs to stay pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date

from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.errors import UnknownNameError, UsageError
from k3perf.gate.baseline import Waiver
from k3perf.gate.noise import NO_NOISE, MetricNoise
from k3perf.metrics.definitions import METRICS


@dataclass(frozen=True, slots=True)
class Policy:
    """How one target's cells are judged.

    ``tolerances`` maps metric name to tolerance; a metric without one is not gated. ``workload_tolerances`` overlay them for single
    workloads (None: not gated there); ``for_workload`` applies them. ``gated_metric_count`` is the number of gated
    metrics of the WHOLE run, over which the budgets are spent in equal parts (Bonferroni: valid under any dependence between metrics,
    and it lets a cell be judged before the others are measured). ``noise`` comes from ``gate.noise.pool_noise`` over the target's
    baselines.

    ``false_alarm_budget``: probability that a run in which nothing changed has any REGRESSED metric.
    ``half_tolerance_budget``: the same when every metric truly lost half of its tolerance.
    ``missed_loss_budget``: per metric, probability of PASS when the true loss equals the tolerance.
    ``build`` names the build under test (a vLLM version), for waivers.
    """

    tolerances: Mapping[str, Tolerance]
    plan: MeasurementPlan
    gated_metric_count: int
    today: date
    build: str = ""
    false_alarm_budget: float = 0.01
    half_tolerance_budget: float = 0.02
    missed_loss_budget: float = 0.05
    cumulative_loss_cap_ratio: float = 0.1
    noise: Mapping[tuple[str, str], MetricNoise] = field(default_factory=dict)
    waivers: tuple[Waiver, ...] = ()
    workload_tolerances: Mapping[str, Mapping[str, Tolerance | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.gated_metric_count < 1:
            raise UsageError(f"gated_metric_count is {self.gated_metric_count}; a run gates at least one metric.")
        for tolerances in (self.tolerances, *self.workload_tolerances.values()):
            for name in tolerances:
                if name not in METRICS:
                    raise UnknownNameError("metric", name, tuple(METRICS))

    def for_workload(self, workload: str) -> Policy:
        """The policy of one workload's cells: ``tolerances`` are all that hold there."""
        own = self.workload_tolerances.get(workload)
        if not own:
            return self
        overlaid = {**self.tolerances, **own}
        return replace(self, tolerances={name: tolerance for name, tolerance in overlaid.items() if tolerance is not None})

    @property
    def known_tolerances(self) -> dict[str, Tolerance]:
        """A tolerance for every metric that is gated in any workload; they are of one kind in all (``ToleranceFile``)."""
        overlaid = [item for own in self.workload_tolerances.values() for item in own.items()]
        return {**{name: tolerance for name, tolerance in overlaid if tolerance is not None}, **self.tolerances}

    @property
    def alpha(self) -> float:
        """One metric's share of the false-alarm budget."""
        return self.false_alarm_budget / self.gated_metric_count

    @property
    def half_tolerance_alpha(self) -> float:
        """One metric's share of the budget for losses of half the tolerance."""
        return self.half_tolerance_budget / self.gated_metric_count

    def noise_of(self, metric: str, basis: str) -> MetricNoise:
        """The target's recorded noise of a metric; nothing known if there is none."""
        return self.noise.get((metric, basis), NO_NOISE)
