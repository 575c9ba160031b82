"""What one metric of a cell is compared with: its recorded sessions, or in ``ab`` the
expectation of no difference. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k3perf.gate.losses import Series
from k3perf.gate.policy import Policy
from k3perf.metrics.loss_scale import Scale, recorded_losses
from k3perf.records.baseline import MetricBaseline
from k3perf.records.measurement import Batch
from k3perf.records.metric_definitions import Scope
from k3perf.stats.estimators import locate, mean, sample_variance
from k3perf.stats.noise import MetricNoise
from k3perf.stats.reference import Level, Reference, cell_reference


class References:
    """References already made. One such object serves one run, which asks about a cell
    at every interim analysis.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], tuple[MetricBaseline, MetricNoise, Reference]] = {}

    def recorded(
        self, scale: Scale, entry: MetricBaseline, policy: Policy, **candidate: Any
    ) -> Reference:
        """As ``recorded_reference``."""
        noise = policy.noise_of(entry.metric, scale.basis)
        plan = (policy.plan.minimum_rounds, policy.plan.maximum_rounds)
        key = (id(entry), id(noise), scale.logarithmic, plan, policy.spread_over_noise_ratio)
        key = (*key, *candidate.values())
        if key not in self._made:  # entry and noise are kept, so that their ids stay theirs
            made = recorded_reference(scale, entry, policy, **candidate)
            self._made[key] = (entry, noise, made)
        return self._made[key][2]


def recorded_reference(
    scale: Scale,
    entry: MetricBaseline,
    policy: Policy,
    *,
    alternating: bool = True,
    batch: Batch | None = None,
) -> Reference:
    """Mean and noise of a cell's recorded sessions. NaN where one has no loss.
    ``batch``: the candidate's. None: it is not that of any recorded session.
    """
    reference = cell_reference(
        recorded_losses(entry, scale),
        policy.noise_of(entry.metric, scale.basis),
        entry.round_count,
        (policy.plan.minimum_rounds, policy.plan.maximum_rounds),
        one_armed=scale.basis != "absolute" and not alternating,
        batches=entry.batches,
        candidate_batch=batch,
        spread_over_noise_ratio=policy.spread_over_noise_ratio,
    )
    committed = mean([scale.loss(session.value) for session in entry.sessions])
    reference.moved_since_anchor = committed - scale.loss(entry.anchor_value)
    return reference


def base_arm_reference(scale: Scale, series: Series, policy: Policy) -> Reference:
    """ab: the expected difference is none, and known. The noise is that of pairs:
    recorded for pairs, or twice that of single sessions, since pairing can only make it
    smaller.

    The candidate's own pairs have a part in it where the recorded cells differ, except
    those whose rounds spread too far, which are excluded.
    """
    noise = policy.noise_of(scale.metric.name, scale.basis)
    if not noise.known:
        noise = policy.noise_of(scale.metric.name, "absolute").doubled()
    location, worth = noise.choice(policy.plan.minimum_rounds, policy.plan.maximum_rounds)

    def level_at(count: int) -> Level:
        steady = [losses for losses in series.sessions if not stays_out_of_line(losses, count)]
        own = [locate(location, losses[:count]) for losses in steady]
        prior = noise.prior(location, count)
        variance, df = prior.moderate(sample_variance(own), max(len(own) - 1, 0))
        return Level(0.0, variance, df, noise.skewness(location, count))

    def stays_out_of_line(losses: Sequence[float], count: int) -> bool:
        return all(
            reference.drowned(sorted(losses[:rounds]), scale.allowed)
            for rounds in (count, policy.plan.maximum_rounds)
        )

    reference = Reference(
        0,
        level_at,
        location,
        worth,
        noise=noise,
        round_variance=noise.round_variance,
        round_count=(noise.round_count or 1) if scale.metric.scope is Scope.ROUND else 0,
        spread_over_noise_ratio=policy.spread_over_noise_ratio,
    )
    return reference
