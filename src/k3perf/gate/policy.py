"""What the gate judges by: tolerances, plan, error budgets, recorded noise, waivers,
and the day. Everything it needs to stay pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from k3perf.config.models import MeasurementPlan, TargetSpec, Tolerance
from k3perf.config.suite import Suite
from k3perf.errors import UnknownNameError, UsageError
from k3perf.gate.gated import check_metric_names
from k3perf.gate.noise import (
    NO_NOISE,
    MetricNoise,
    NoiseKey,
    OwnTolerances,
    pool_noise,
    pool_own_noise,
)
from k3perf.metrics.validity import SESSION_RULES, SPREAD_LIMIT, ValidityRules
from k3perf.records.baseline import Baseline, Waiver
from k3perf.records.metric_definitions import METRICS, Comparison


@dataclass(frozen=True, slots=True)
class Policy:
    """How one target's cells are judged.

    ``tolerances`` maps metric name to tolerance; a metric without one is not gated.
    ``workload_tolerances`` overlay them for single workloads and ``config_tolerances``
    both for single configs (None: not gated there); ``for_cell`` applies them.
    ``gated_metric_count`` is the number of gated metrics of the WHOLE run, over which
    the budgets are spent in equal parts (Bonferroni: valid under any dependence between
    metrics, and it lets a cell be judged before the others are measured). ``noise`` is
    that of the target's baselines, ``config_noise`` by config that of the metrics in
    its ``config_tolerances``; ``with_noise_of`` pools both.

    ``false_alarm_budget``: probability that a run in which nothing changed has any
    REGRESSED metric. ``half_tolerance_budget``: the same when every metric truly lost
    half of its tolerance. ``missed_loss_budget``: per metric, probability of PASS when
    the true loss equals the tolerance. ``spread_over_noise_ratio``: a session whose
    rounds spread more than so many times as much as recorded (robust sigmas) is set
    aside. ``build`` names the build under test (a vLLM version), for waivers.
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
    spread_over_noise_ratio: float = SESSION_RULES[SPREAD_LIMIT]
    noise: Mapping[NoiseKey, MetricNoise] = field(default_factory=dict)
    waivers: tuple[Waiver, ...] = ()
    workload_tolerances: Mapping[str, Mapping[str, Tolerance | None]] = field(default_factory=dict)
    config_tolerances: OwnTolerances = field(default_factory=dict)
    config_noise: Mapping[str, Mapping[NoiseKey, MetricNoise]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.gated_metric_count < 1:
            raise UsageError(
                f"gated_metric_count is {self.gated_metric_count}; a run gates at least one metric."
            )
        for tolerances in (
            self.tolerances,
            *self.workload_tolerances.values(),
            *self.config_tolerances.values(),
        ):
            for name in tolerances:
                if name not in METRICS:
                    raise UnknownNameError("metric", name, tuple(METRICS))

    def for_cell(self, config: str, workload: str) -> Policy:
        """The policy of one cell: ``tolerances`` are all that hold there, ``noise`` is
        what its metrics are judged by.
        """
        by_workload, own = (
            self.workload_tolerances.get(workload),
            self.config_tolerances.get(config),
        )
        if not by_workload and not own:
            return self
        overlaid = {**self.tolerances, **(by_workload or {}), **(own or {})}
        tolerances = {
            name: tolerance for name, tolerance in overlaid.items() if tolerance is not None
        }
        if not own:
            return replace(self, tolerances=tolerances)
        siblings = {key: noise for key, noise in self.noise.items() if key[0] not in own}
        return replace(
            self, tolerances=tolerances, noise={**siblings, **self.config_noise.get(config, {})}
        )

    def with_noise_of(self, baselines: Sequence[Baseline]) -> Policy:
        """This policy with the noise of the target's recorded sessions, that of configs
        with tolerances of their own apart.

        Raises UsageError for a recorded 0 of a metric with a relative tolerance: it
        would be judged by nothing, and silence the noise.
        """
        _require_positive(baselines, self.known_tolerances)
        return replace(
            self,
            noise=pool_noise(baselines, self.known_tolerances, self.config_tolerances),
            config_noise=pool_own_noise(baselines, self.config_tolerances),
        )

    @property
    def known_tolerances(self) -> dict[str, Tolerance]:
        """A tolerance for every metric that is gated in any cell; they are of one kind
        in all (``config.tolerances``).
        """
        overlays = (*self.config_tolerances.values(), *self.workload_tolerances.values())
        overlaid = [item for own in overlays for item in own.items()]
        return {
            **{name: tolerance for name, tolerance in overlaid if tolerance is not None},
            **self.tolerances,
        }

    @property
    def alpha(self) -> float:
        """One metric's share of the false-alarm budget."""
        return self.false_alarm_budget / self.gated_metric_count

    @property
    def half_tolerance_alpha(self) -> float:
        """One metric's share of the budget for losses of half the tolerance."""
        return self.half_tolerance_budget / self.gated_metric_count

    def noise_of(self, metric: str, basis: str) -> MetricNoise:
        """The recorded noise of a metric; nothing known if there is none."""
        return self.noise.get((metric, basis), NO_NOISE)


def _require_positive(baselines: Sequence[Baseline], tolerances: Mapping[str, Tolerance]) -> None:
    relative = {
        name
        for name, tolerance in tolerances.items()
        if tolerance.loss_ratio and METRICS[name].comparison is Comparison.STATISTICAL
    }
    for baseline in baselines:
        for workload in baseline.workloads:
            for entry in workload.metrics:
                recorded = [
                    value
                    for session in entry.sessions
                    for value in (session.value, *session.round_values)
                ]
                if entry.basis == "absolute" and entry.metric in relative and min(recorded) <= 0:
                    raise UsageError(
                        f"the baseline of {baseline.target}/{baseline.config} holds a"
                        f" {entry.metric} of {min(recorded):g} for workload {workload.workload},"
                        " which no ratio can be taken of. Restore the file with git, or record the"
                        " cell again."
                    )


def target_policy(
    suite: Suite,
    target: TargetSpec,
    *,
    gated_metric_count: int,
    today: date,
    build: str = "",
    waivers: tuple[Waiver, ...] = (),
) -> Policy:
    """What the suite declares for one target's cells, no noise known yet. Raises
    ConfigFileError for a tolerance of no metric.
    """
    check_metric_names(suite)
    declared = suite.tolerances
    return Policy(
        tolerances=declared.for_target(target.name),
        workload_tolerances=declared.workloads,
        config_tolerances=declared.own(target.name),
        plan=target.measurement,
        gated_metric_count=gated_metric_count,
        today=today,
        build=build,
        false_alarm_budget=declared.false_alarm_budget,
        missed_loss_budget=declared.missed_loss_budget,
        cumulative_loss_cap_ratio=declared.cumulative_loss_cap_ratio,
        spread_over_noise_ratio=ValidityRules.for_target(target.validity).session_limits[
            SPREAD_LIMIT
        ],
        waivers=waivers,
    )
