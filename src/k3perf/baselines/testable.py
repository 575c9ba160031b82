"""Can the recorded noise test a tolerance within the planned budget? If not, what would
do. Pure.

A tolerance counts as testable when the plan's last look calls a true loss of one and a
half tolerances REGRESSED with probability 97 %: 95 % are promised, and at most 3 % may
stay unproven. The extra sessions of a suspected loss are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from k3perf.baselines.target_policy import pool_own_noise
from k3perf.config.models import Tolerance
from k3perf.gate.metric_verdict import analyses_of, limits_of
from k3perf.gate.policy import Policy
from k3perf.gate.reference import recorded_reference
from k3perf.metrics.loss_scale import Scale, scale_for
from k3perf.records.baseline import Baseline, MetricBaseline
from k3perf.records.metric_definitions import METRICS, Comparison
from k3perf.stats.bounds import Limits, minimum_detectable
from k3perf.stats.reference import Reference
from k3perf.stats.sequential import InterimAnalysis, last_planned

CATCH_FACTOR: Final = 1.5
"""A true loss of this many tolerances must be caught."""

CATCH_MISS: Final = 0.03
"""With at most this probability of not being caught."""

SESSIONS_CONSIDERED: Final = 30

LARGEST_LOSS_RATIO: Final = 10.0
"""A detectable loss above this is only arithmetic: too few batches to conclude from."""

LARGEST_RATIO: Final = Tolerance(loss_ratio=0.99)
"""No larger one is worth naming: a loss of everything is no tolerance."""


@dataclass(frozen=True, slots=True)
class Untestable:
    """A tolerance that the noise cannot test, with the smallest remedies found (None:
    none within 30 sessions).

    ``detectable_ratio`` is the smallest loss that the plan sees (None: none at all),
    ``needed_ratio`` the one that it would have to see. ``own``: the config has its own
    tolerance and pools its noise apart. Where it does not, ``own_tolerance_that_does``
    is the one that it would need for that in all its workloads, judged by its own
    recorded sessions pooled as the gate would pool them.
    """

    workload: str
    metric: str
    tolerance_ratio: float | None
    detectable_ratio: float | None
    needed_ratio: float | None
    sessions_that_do: int | None
    baseline_sessions_that_do: int | None
    tolerance_that_does: float | None
    own: bool = False
    own_tolerance_that_does: float | None = None

    def text(self) -> str:
        """One sentence: what cannot be tested, and what would do."""
        remedies = []
        if self.sessions_that_do is not None:
            remedies.append(f"maximum_sessions: {self.sessions_that_do} in the target's plan")
        if self.baseline_sessions_that_do is not None:
            whose = "of the same tolerance" if self.own else "of the target"
            remedies.append(
                f"baseline_sessions: {self.baseline_sessions_that_do} recorded in every cell"
                f" {whose}"
            )
        if self.tolerance_that_does is not None:
            remedies.append(
                "a tolerance of"
                f" {self.tolerance_that_does:.3g}{'' if self.own else ' for the target'}"
            )
        if self.own_tolerance_that_does is not None:
            remedies.append(
                f"one of {self.own_tolerance_that_does:.3g} for this config only (configs in"
                " tolerances.yaml)"
            )
        could = (
            "no loss at all"
            if self.detectable_ratio is None
            else f"a loss of {self.detectable_ratio:.1%} at best"
        )
        tolerance = (
            "its tolerance"
            if self.tolerance_ratio is None
            else f"a tolerance of {self.tolerance_ratio:.1%}"
        )
        if self.needed_ratio is not None:
            tolerance += f", for which {self.needed_ratio:.1%} must be detectable"
        advice = " or ".join(remedies) or "quieter measuring (more rounds, pinning, reference mode)"
        return (
            f"{self.metric} of {self.workload}: the planned sessions can detect {could}, which does"
            f" not test {tolerance}. To make it testable: {advice}."
        )


def testable(baseline: Baseline, policy: Policy) -> tuple[Untestable, ...]:
    """The statistical metrics of a proposed baseline whose tolerance cannot be tested.
    ``policy.noise`` must include the proposal itself.
    """
    found = []
    for workload, entry, tolerance, own in _gated(baseline, policy):
        apart = entry.metric in policy.config_tolerances.get(baseline.config, {})
        problem = _judge(workload, entry, tolerance, own, None if apart else baseline)
        if problem is not None:
            found.append(problem)
    return tuple(found)


def _gated(
    baseline: Baseline, policy: Policy
) -> Iterator[tuple[str, MetricBaseline, Tolerance, Policy]]:
    """Workload, entry, tolerance and the cell's policy of each statistical metric that
    is gated.
    """
    for workload in baseline.workloads:
        own = policy.for_cell(baseline.config, workload.workload)
        for entry in workload.metrics:
            tolerance = own.tolerances.get(entry.metric)
            exact = METRICS[entry.metric].comparison is Comparison.EXACT
            if tolerance is not None and not exact and entry.metric not in workload.not_gated:
                yield workload.workload, entry, tolerance, own


def sessions_that_do(baseline: Baseline, policy: Policy) -> dict[tuple[str, str], int | None]:
    """By workload and metric, how many sessions recorded in every cell would make its
    tolerance testable at the noise of ``policy``, at least 2. None: none up to 30.
    """
    found: dict[tuple[str, str], int | None] = {}
    for workload, entry, tolerance, own in _gated(baseline, policy):
        scale = replace(scale_for(METRICS[entry.metric], tolerance), basis=entry.basis)
        reference = recorded_reference(scale, entry, own)
        last = last_planned(analyses_of(scale, reference, own.plan))
        limits = limits_of(scale, own)._replace(beta=CATCH_MISS)
        if reference.at(last.rounds).variance == 0:
            found[workload, entry.metric] = 2
            continue
        found[workload, entry.metric] = _recorded_that_do(reference, own, entry, limits, last)
    return found


testable.__test__ = False  # type: ignore[attr-defined]  # no test for pytest to collect, whatever its name


def _judge(
    workload: str,
    entry: MetricBaseline,
    tolerance: Tolerance,
    policy: Policy,
    unsplit: Baseline | None,
) -> Untestable | None:
    """``unsplit``: the whole baseline, where the config does not have its own tolerance
    for the metric yet.
    """
    scale = replace(scale_for(METRICS[entry.metric], tolerance), basis=entry.basis)
    reference = recorded_reference(scale, entry, policy)
    planned = last_planned(analyses_of(scale, reference, policy.plan))
    level = reference.at(planned.rounds)
    if level.variance == 0:
        return None
    limits = limits_of(scale, policy)._replace(beta=CATCH_MISS)
    detectable = minimum_detectable(reference, limits, planned)
    if detectable is not None and detectable <= CATCH_FACTOR * limits.tolerance:
        return None
    return Untestable(
        workload=workload,
        metric=entry.metric,
        tolerance_ratio=tolerance.loss_ratio,
        detectable_ratio=_reachable(
            None if detectable is None else scale.loss_ratio(detectable, scale.value(level.mean))
        ),
        needed_ratio=scale.loss_ratio(CATCH_FACTOR * limits.tolerance, scale.value(level.mean)),
        sessions_that_do=_first(
            lambda count: _with_sessions(scale, reference, limits, policy, count),
            policy.plan.maximum_sessions + 1,
        ),
        baseline_sessions_that_do=_recorded_that_do(
            reference, policy, entry, limits, planned, len(entry.sessions) + 1
        ),
        tolerance_that_does=smallest_tolerance(scale, reference, limits, planned),
        own=unsplit is None,
        own_tolerance_that_does=(
            None if unsplit is None else _own_tolerance(scale, unsplit, limits, policy)
        ),
    )


def _reachable(ratio: float | None) -> float | None:
    """None above ``LARGEST_LOSS_RATIO``."""
    return None if ratio is None or ratio > LARGEST_LOSS_RATIO else ratio


def _own_tolerance(
    scale: Scale, baseline: Baseline, limits: Limits, policy: Policy
) -> float | None:
    """What would do in every workload of the config if their noise were pooled
    alone. It holds for all of them, so the one that needs most decides.
    """
    name = scale.metric.name
    noise = pool_own_noise((baseline,), {baseline.config: {name: scale.tolerance}}).get(
        baseline.config, {}
    )
    alone = replace(policy, noise=noise)
    needed = [
        scale.tolerance.loss_ratio or scale.tolerance.loss_absolute or 0.0
    ]  # no smaller one is looked for
    for entry in (
        entry
        for workload in baseline.workloads
        for entry in workload.metrics
        if entry.metric == name
    ):
        own = replace(scale, basis=entry.basis)
        reference = recorded_reference(own, entry, alone)
        last = last_planned(analyses_of(own, reference, policy.plan))
        if reference.at(last.rounds).variance == 0:
            continue
        tolerance = smallest_tolerance(own, reference, limits, last)
        if tolerance is None:
            return None
        needed.append(tolerance)
    return max(needed)


def _first(does: Callable[[int], bool], start: int) -> int | None:
    return next((count for count in range(start, SESSIONS_CONSIDERED + 1) if does(count)), None)


def _sees(reference: Reference, limits: Limits, analysis: InterimAnalysis) -> bool:
    detectable = minimum_detectable(reference, limits, analysis)
    return detectable is not None and detectable <= CATCH_FACTOR * limits.tolerance


def _with_sessions(
    scale: Scale, reference: Reference, limits: Limits, policy: Policy, count: int
) -> bool:
    plan = policy.plan.model_copy(
        update={"maximum_sessions": count, "maximum_suspect_sessions": None}
    )
    return _sees(reference, limits, last_planned(analyses_of(scale, reference, plan)))


def _recorded_that_do(
    reference: Reference,
    policy: Policy,
    entry: MetricBaseline,
    limits: Limits,
    analysis: InterimAnalysis,
    start: int = 2,
) -> int | None:
    return _first(
        lambda count: _sees(_recorded_more(reference, policy, entry, count), limits, analysis),
        start,
    )


def _recorded_more(
    reference: Reference, policy: Policy, entry: MetricBaseline, count: int
) -> Reference:
    """With more recorded sessions in every cell: less noise of the baseline's mean and
    more degrees of freedom.
    """
    had = len(entry.sessions)
    pooled = (
        policy.noise_of(entry.metric, entry.basis)
        .prior(reference.location, reference.rounds)
        .pooled
    )
    return reference.with_level(
        count,
        lambda level: level._replace(
            df=round(level.df * (count - 1) / max(had - 1, 1)) if pooled else level.df + count - had
        ),
    )


def smallest_tolerance(
    scale: Scale, reference: Reference, limits: Limits, analysis: InterimAnalysis
) -> float | None:
    """The smallest tolerance that does, found by doubling and bisecting; as a ratio or
    amount like the one given. None: none does, or no ratio that could be declared.
    """
    if reference.at(analysis.rounds).df < 1:
        return None
    low, high = limits.tolerance, max(limits.tolerance, 1e-6)
    most = replace(scale, tolerance=LARGEST_RATIO).allowed if scale.logarithmic else math.inf
    while not _sees(reference, limits._replace(tolerance=high), analysis):
        low, high = high, min(2 * high, most)
        if low >= most:
            return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (low, middle)
            if _sees(reference, limits._replace(tolerance=middle), analysis)
            else (middle, high)
        )
    if not scale.logarithmic:
        return high
    return scale.loss_ratio(high, None)
