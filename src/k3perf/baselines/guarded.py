"""What guards each approved cell: its gated metrics, and the smallest loss that a run
of the whole target sees of each. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from k3perf.baselines.gain import Gain, gains
from k3perf.config.models import Tolerance
from k3perf.config.suite import Suite
from k3perf.gate.metric_verdict import analyses_of, limits_of
from k3perf.gate.policy import Policy
from k3perf.gate.reference import recorded_reference
from k3perf.metrics.loss_scale import scale_for
from k3perf.records.baseline import Baseline, MetricBaseline, WorkloadBaseline
from k3perf.records.metric_definitions import METRICS, Comparison
from k3perf.stats.bounds import minimum_detectable
from k3perf.stats.sequential import last_planned


class Guard(StrEnum):
    """The two classes of approved cells. The locked configuration is part of both."""

    TIMED = "timed"
    MEMORY_AND_LOCK = "memory and lock"


@dataclass(frozen=True, slots=True)
class GuardedMetric:
    """A gated metric with noise. ``detectable_ratio``: its minimum detectable effect
    (``stats.bounds.minimum_detectable``) as a share of the recorded value, after all
    planned sessions; None: no loss, since its noise is not known or too large.
    """

    metric: str
    tolerance: Tolerance
    detectable_ratio: float | None


@dataclass(frozen=True, slots=True)
class GuardedCell:
    """An approved cell. ``session_count``: recorded sessions, of so many batches (host
    and day) and hosts; 0 if older sessions do not say where they ran. ``gains``: over
    the parent config, in this workload.
    """

    config: str
    workload: str
    timed: tuple[GuardedMetric, ...]
    exact: tuple[str, ...]
    session_count: int
    batch_count: int
    host_count: int
    gains: tuple[Gain, ...]

    @property
    def guard(self) -> Guard:
        """The class that the cell is in."""
        return Guard.TIMED if self.timed else Guard.MEMORY_AND_LOCK


def guarded_cells(
    suite: Suite, baselines: Sequence[Baseline], policy: Policy
) -> tuple[GuardedCell, ...]:
    """Every collected cell of a target's ``baselines``, in the order of its configs.
    ``policy`` holds their noise, and the error rates of the run that is meant.
    """
    by_config = {baseline.config: baseline for baseline in baselines}
    found = []
    for name in (name for name in suite.config_order if name in by_config):
        baseline = by_config[name]
        if suite.not_collected(suite.target(baseline.target), suite.config(name)):
            continue
        parent = by_config.get(suite.config(name).extends or "")
        over = () if parent is None else tuple(gains(baseline, parent, policy))
        found += [
            _cell(baseline, part, policy, tuple(gain for gain in over if _is_of(gain, part)))
            for part in baseline.workloads
        ]
    return tuple(found)


def _is_of(gain: Gain, part: WorkloadBaseline) -> bool:
    return gain.workload == part.workload


def _cell(
    baseline: Baseline, part: WorkloadBaseline, policy: Policy, over: tuple[Gain, ...]
) -> GuardedCell:
    own = policy.for_cell(baseline.config, part.workload)
    entries = [
        entry
        for entry in (*baseline.exact, *part.metrics)
        if entry.metric in own.tolerances and entry.metric not in part.not_gated
    ]
    timed = [entry for entry in entries if METRICS[entry.metric].comparison is not Comparison.EXACT]
    longest = max(part.metrics, key=lambda entry: len(entry.sessions), default=None)
    batches = set(longest.batches) if longest is not None else set()
    return GuardedCell(
        config=baseline.config,
        workload=part.workload,
        timed=tuple(
            GuardedMetric(entry.metric, own.tolerances[entry.metric], _detectable(entry, own))
            for entry in timed
        ),
        exact=tuple(entry.metric for entry in entries if entry not in timed),
        session_count=len(longest.sessions) if longest is not None else 0,
        batch_count=len(batches),
        host_count=len({host for host, _ in batches}),
        gains=over,
    )


def _detectable(entry: MetricBaseline, policy: Policy) -> float | None:
    scale = scale_for(METRICS[entry.metric], policy.tolerances[entry.metric])
    scale = replace(scale, basis=entry.basis)
    reference = recorded_reference(scale, entry, policy)
    last = last_planned(analyses_of(scale, reference, policy.plan))
    least = minimum_detectable(reference, limits_of(scale, policy), last)
    if least is None:
        return None
    return scale.loss_ratio(least, scale.value(reference.at(last.rounds).mean))
