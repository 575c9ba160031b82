"""A proposed baseline's review: its table, what stands against it, and what accepting
makes of it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from k3perf.baselines.propose import typical_value, worst_value
from k3perf.baselines.target_policy import target_policy, with_noise_of
from k3perf.baselines.testable import testable
from k3perf.config.candidates import approved_cells
from k3perf.config.gated import statistical_metric_count
from k3perf.config.models import Tolerance
from k3perf.config.suite import Suite
from k3perf.gate.policy import Policy
from k3perf.metrics.loss_scale import scale_for
from k3perf.metrics.session_values import RANK_METRICS, ranks_text
from k3perf.records.baseline import Baseline, MetricBaseline
from k3perf.records.metric_definitions import METRICS, Comparison, MetricDef


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the proposal's table: a metric's value before (None: new) and now, of
    which sessions, and the loss (positive is worse).

    ``of_sessions``: how ``new_value`` comes of its sessions. Worst values of two
    metrics may be of different sessions, so it names theirs.
    """

    workload: str
    metric: str
    unit: str
    old_value: float | None
    new_value: float
    of_sessions: str
    loss_ratio: float | None
    cumulative_loss_ratio: float | None


def strictest_policy(suite: Suite, target: str, baselines: Iterable[Baseline]) -> Policy:
    """The policy of a run of all approved cells of the target: the strictest error rate
    that a run may ask for. Cells with one of ``baselines`` are approved by it.
    """
    recorded = tuple(baselines)
    known = {(one.config, part.workload) for one in recorded for part in one.workloads}
    cells = approved_cells(
        suite.cells((target,)), lambda cell: (cell.config.name, cell.workload.name) in known
    )
    count = max(statistical_metric_count(suite, cells), 1)
    policy = target_policy(suite, suite.target(target), gated_metric_count=count)
    return with_noise_of(policy, recorded)


def with_proposed(
    committed: Iterable[Baseline], proposed: Iterable[Baseline], target: str
) -> tuple[Baseline, ...]:
    """The target's baselines as they will be: committed ones, replaced by proposals of
    the same config.
    """
    of_target = (baseline for baseline in proposed if baseline.target == target)
    return tuple({one.config: one for one in (*committed, *of_target)}.values())


def objections(
    baseline: Baseline, previous: Baseline | None, policy: Policy, *, new_anchor: bool, step: str
) -> tuple[str, ...]:
    """Why the proposal must not be accepted as it is. ``policy`` holds the noise of the
    target's baselines as they will be. ``step``: what a new anchor needs.
    """
    rows = changes(baseline, previous, policy.known_tolerances)
    against = beyond_cap(rows, policy.cumulative_loss_cap_ratio)
    if not new_anchor:
        against += other_class(baseline, previous)
    return (
        *(problem.text() for problem in testable(baseline, policy)),
        *(f"{text}; {step}" for text in against),
    )


def accepted(baseline: Baseline, *, by: str, reason: str, at: datetime) -> Baseline:
    """The proposal with who accepted it, why and when (UTC). A new anchor is accepted
    with it. The digest is set where the file is written.
    """
    stamp = {
        "accepted_by": by,
        "reason": reason,
        "accepted_at_utc": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    acceptance = baseline.acceptance.model_copy(update=stamp)
    fresh = baseline.anchor_acceptance == baseline.acceptance
    anchor = acceptance if fresh else baseline.anchor_acceptance
    return baseline.model_copy(update={"acceptance": acceptance, "anchor_acceptance": anchor})


def changes(
    baseline: Baseline, previous: Baseline | None, tolerances: Mapping[str, Tolerance]
) -> tuple[Change, ...]:
    """The reviewer's table, every metric of the proposal."""
    rows = [
        _change("", entry, previous.exact if previous else (), tolerances)
        for entry in baseline.exact
    ]
    for workload in baseline.workloads:
        before = previous.workload(workload.workload) if previous else None
        rows += [
            _change(workload.workload, entry, before.metrics if before else (), tolerances)
            for entry in workload.metrics
        ]
    return tuple(rows)


def beyond_cap(rows: Iterable[Change], cap_ratio: float) -> tuple[str, ...]:
    """Rows whose loss against the anchor exceeds the cumulative cap: only a reasoned
    new anchor can accept them.
    """
    over = [
        row
        for row in rows
        if row.cumulative_loss_ratio is not None and row.cumulative_loss_ratio > cap_ratio
    ]
    return tuple(
        f"{row.metric}{f' of {row.workload}' if row.workload else ''} has lost"
        f" {row.cumulative_loss_ratio:.1%} since its anchor, the cap is {cap_ratio:.1%}"
        for row in over
    )


def other_class(baseline: Baseline, previous: Baseline | None) -> tuple[str, ...]:
    """What stands against putting a baseline of one hardware class in the place of
    another's, as a night on another CPU would.
    """
    if previous is None or previous.hardware_class == baseline.hardware_class:
        return ()
    return (
        (
            f"the committed baseline is of hardware class {previous.hardware_class}, this one of"
            f" {baseline.hardware_class}"
        ),
    )


def _change(
    workload: str,
    entry: MetricBaseline,
    before: Iterable[MetricBaseline],
    tolerances: Mapping[str, Tolerance],
) -> Change:
    metric = METRICS[entry.metric]
    tolerance = tolerances.get(entry.metric) or Tolerance(loss_ratio=0.0)
    old = next(
        (item for item in before if item.metric == entry.metric and item.basis == entry.basis), None
    )
    now = recorded_value(tolerance, entry)
    was = None if old is None else recorded_value(tolerance, old)
    return Change(
        workload=workload,
        metric=entry.metric,
        unit=entry.unit,
        old_value=was,
        new_value=now,
        of_sessions=_of_sessions(metric, entry, now),
        loss_ratio=None if was is None else metric.loss_ratio(was, now),
        cumulative_loss_ratio=metric.loss_ratio(entry.anchor_value, now),
    )


def _of_sessions(metric: MetricDef, entry: MetricBaseline, value: float) -> str:
    count = len(entry.sessions)
    if metric.comparison is not Comparison.EXACT:
        return f"mean of {count}"
    told = f"of {ranks_text(entry.rank_counts)}" if entry.rank_counts else "ranks not recorded"
    ranks = f"; {told}" if metric.name in RANK_METRICS else ""
    if entry.constant:
        return f"equal in {count}{ranks}"
    worst = next(session.session_id for session in entry.sessions if session.value == value)
    return f"worst of {count}, {worst}{ranks}"


def recorded_value(tolerance: Tolerance, entry: MetricBaseline) -> float:
    """What a candidate is compared with: the worst value of an exact metric, else the
    mean on the loss scale.
    """
    metric = METRICS[entry.metric]
    if metric.comparison is Comparison.EXACT:
        return worst_value(metric, [session.value for session in entry.sessions])
    return typical_value(scale_for(metric, tolerance), entry.sessions)
