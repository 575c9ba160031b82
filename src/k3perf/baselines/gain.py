"""What a config gains over the one that it changes, and whether the gate would notice
the loss of that gain. Pure.

Estimator: the difference of the means of recorded sessions on the loss scale. Its
standard error has the target's pooled variance between sessions. Where the two were
recorded in different batches (host and day), the variance between these counts too. The
interval is two-sided, 95 %, Student's t. It is of one metric and not corrected for the
number of metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from k3perf.baselines.propose import worst_value
from k3perf.config.suite import Suite
from k3perf.gate.metric_verdict import analyses_of, limits_of
from k3perf.gate.policy import Policy
from k3perf.gate.reference import recorded_reference
from k3perf.metrics.loss_scale import Scale, scale_for
from k3perf.records.baseline import Baseline, MetricBaseline
from k3perf.records.metric_definitions import METRICS, Comparison, Direction, Family
from k3perf.stats.batches import joint_df
from k3perf.stats.bounds import minimum_detectable
from k3perf.stats.quantiles import upper_quantile

LEVEL: Final = 0.025
"""On each side of the interval."""
_NO_GAIN: Final = frozenset({Family.QUALITY})
"""Families without a gain line. A distance from the reference's answers is a price,
which no config gains.
"""


@dataclass(frozen=True, slots=True)
class Gain:
    """One metric's gain over the parent's, as a share of the parent's value (positive
    is better), with its interval. ``detectable_ratio``: the loss that the gate sees
    with the promised probability, as a share of the config's own value, None where it
    sees none. ``noticed``: it would see the loss of the whole gain.
    """

    workload: str
    metric: str
    gain_ratio: float
    lower_ratio: float
    upper_ratio: float
    detectable_ratio: float | None
    noticed: bool

    @property
    def certain(self) -> bool:
        """The interval excludes no gain."""
        return self.lower_ratio > 0

    @property
    def differs(self) -> bool:
        """The interval excludes no difference."""
        return self.lower_ratio > 0 or self.upper_ratio < 0

    def text(self) -> str:
        """One line."""
        what = (
            f"{self.metric} of {self.workload}: {self.gain_ratio:+.1%}"
            f" ({self.lower_ratio:+.1%} to {self.upper_ratio:+.1%})"
        )
        if not self.certain:
            return f"{what}, {'worse' if self.differs else 'not proven'}"
        least = "no loss" if self.detectable_ratio is None else f"{self.detectable_ratio:.1%}"
        if self.noticed:
            return f"{what}; the gate would notice the loss of it (it sees {least})"
        return f"{what}; the gate would NOT notice the loss of it (it sees {least} at best)"


def gain_lines(
    suite: Suite, baseline: Baseline, baselines: Iterable[Baseline], policy: Policy
) -> tuple[str, ...]:
    """What to say of one config, workload by workload. ``baselines``: the target's as
    they will be, ``policy`` with their noise. Empty for the root config, which changes
    nothing.
    """
    parent = suite.config(baseline.config).extends
    if parent is None:
        return ()
    known = next((one for one in baselines if one.config == parent), None)
    over = f"gain over {parent}"
    if known is None:
        return (f"{over}: not known, {parent} has no baseline on {baseline.target}",)
    if known.hardware_class != baseline.hardware_class:
        return (f"{over}: not known, {parent} was recorded on {known.hardware_class}",)
    lines = [f"{over}: {text}" for text in _exact_gains(baseline, known, policy)]
    by_workload: dict[str, list[Gain]] = {}
    for gain in gains(baseline, known, policy):
        if METRICS[gain.metric].family in _NO_GAIN:
            continue
        by_workload.setdefault(gain.workload, []).append(gain)
    for workload, found in by_workload.items():
        lines += [f"{over}: {gain.text()}" for gain in found]
        if not any(gain.differs for gain in found):
            lines.append(
                f"{over}: {workload} cannot tell {baseline.config} from {parent}; a workload that"
                " uses the change would"
            )
    return tuple(lines) or (f"{over}: not known, no gated metric was recorded in both",)


def _exact_gains(baseline: Baseline, parent: Baseline, policy: Policy) -> Iterator[str]:
    """A line for each gated metric without noise that is better than the parent's. Its
    worst recorded values are compared, as in the gate.
    """
    tolerances = policy.for_cell(baseline.config, "").tolerances
    before = {entry.metric: entry for entry in parent.exact}
    for entry in baseline.exact:
        metric, tolerance = METRICS[entry.metric], tolerances.get(entry.metric)
        if tolerance is None or entry.metric not in before or metric.family in _NO_GAIN:
            continue
        now = worst_value(metric, [one.value for one in entry.sessions])
        was = worst_value(metric, [one.value for one in before[entry.metric].sessions])
        sign = 1 if metric.direction is Direction.LOWER_IS_BETTER else -1
        gain = sign * (was - now)
        if gain <= 0 or not was:
            continue
        allowed = tolerance.loss_absolute
        if allowed is None:
            allowed = (tolerance.loss_ratio or 0.0) * abs(now)
        would = "would" if gain > allowed else "would NOT"
        yield (
            f"{entry.metric}: {gain / abs(was):+.1%}, exactly; the gate {would} notice the loss of"
            " it"
        )


def gains(baseline: Baseline, parent: Baseline, policy: Policy) -> Iterator[Gain]:
    """Of every gated statistical metric that both recorded under the same plan."""
    for part in baseline.workloads:
        other = parent.workload(part.workload)
        if other is None or other.plan_digest != part.plan_digest:
            continue
        own = policy.for_cell(baseline.config, part.workload)
        for entry in part.metrics:
            tolerance = own.tolerances.get(entry.metric)
            before = next(
                (
                    one
                    for one in other.metrics
                    if (one.metric, one.basis) == (entry.metric, entry.basis)
                ),
                None,
            )
            if tolerance is None or before is None:
                continue
            if METRICS[entry.metric].comparison is Comparison.EXACT:
                continue
            scale = replace(scale_for(METRICS[entry.metric], tolerance), basis=entry.basis)
            parents = policy.for_cell(parent.config, part.workload)
            found = _gain(part.workload, scale, (entry, own), (before, parents))
            if found is not None and entry.metric not in part.not_gated:
                yield found
            elif found is not None:
                yield replace(found, detectable_ratio=None, noticed=False)


def _gain(
    workload: str,
    scale: Scale,
    own: tuple[MetricBaseline, Policy],
    parent: tuple[MetricBaseline, Policy],
) -> Gain | None:
    """None: no noise is known, or the parent's value has no share."""
    entry, policy = own
    before, parents = parent
    reference = recorded_reference(scale, entry, policy)
    other = recorded_reference(scale, before, parents)
    analyses = analyses_of(scale, reference, policy.plan)
    rounds = analyses[-1].rounds
    now, was = reference.at(rounds), other.at(rounds)
    parts = (now.variance / reference.session_count, was.variance / other.session_count)
    spread = reference.noise.batch_spread(reference.location, rounds)
    between = _batch_part(entry, before) * spread.variance
    error = math.sqrt(sum(parts) + between)
    df = joint_df(sum(parts), min(now.df, was.df), between, spread.df)
    gain = was.mean - now.mean
    width = upper_quantile(LEVEL, df) * error if error else 0.0
    value = scale.value(was.mean)
    ratios = [scale.loss_ratio(-loss, value) for loss in (gain, gain - width, gain + width)]
    if any(ratio is None or not math.isfinite(ratio) for ratio in ratios):
        return None
    detectable = minimum_detectable(reference, limits_of(scale, policy), analyses[-1])
    shown, lower, upper = (-(ratio or 0.0) for ratio in ratios)
    least = None if detectable is None else scale.loss_ratio(detectable, scale.value(now.mean))
    noticed = detectable is not None and detectable <= gain
    return Gain(workload, entry.metric, shown, lower, upper, least, noticed)


def _batch_part(entry: MetricBaseline, before: MetricBaseline) -> float:
    """How often the variance between batches counts in the difference of the two
    means.
    """
    if not entry.batches or not before.batches:
        return 0.0
    return sum(
        (
            entry.batches.count(batch) / len(entry.batches)
            - before.batches.count(batch) / len(before.batches)
        )
        ** 2
        for batch in {*entry.batches, *before.batches}
    )
