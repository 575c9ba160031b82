"""How many recorded sessions the declared tolerances need at the noise seen so far, and
what a baseline gates where no number would do. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from k3perf.baselines.accept import strictest_policy, with_proposed
from k3perf.baselines.propose import propose
from k3perf.baselines.testable import SESSIONS_CONSIDERED, Untestable, sessions_that_do
from k3perf.config.suite import Suite
from k3perf.errors import UsageError
from k3perf.records.baseline import Acceptance, Baseline, digest_of
from k3perf.records.measurement import CellMeasurement
from k3perf.records.metric_definitions import METRICS, Comparison

_UNKNOWN: Final = "not accepted"


@dataclass(frozen=True, slots=True)
class Need:
    """What the tolerances of one target need.

    ``sessions_count``: sessions of each cell. None: none up to 30 would do. ``most``:
    the metrics that need most, as ``metric of workload in config``.
    """

    target: str
    sessions_count: int | None
    most: tuple[str, ...]

    @property
    def hopeless(self) -> bool:
        """More sessions would not help a metric."""
        return self.sessions_count is None

    def text(self) -> str:
        """One clause without the time that it takes."""
        shown = ", ".join(self.most[:3])
        if len(self.most) > 3:
            shown += f" and {len(self.most) - 3} more"
        if self.sessions_count is None:
            return (
                f"{self.target}: at this noise no number of sessions up to {SESSIONS_CONSIDERED}"
                f" tests the tolerance of {shown}"
            )
        return (
            f"{self.target}: at this noise the tolerances need {self.sessions_count} sessions of"
            f" each cell, for {shown}"
        )


def need_of(suite: Suite, target: str, baselines: Sequence[Baseline], asked: Iterable[str]) -> Need:
    """The need of the configs ``asked`` for, with the noise of all ``baselines`` of the
    target. Where a metric needs more than 30 sessions, the others do not count.
    """
    policy = strictest_policy(suite, target, baselines)
    wanted = set(asked)
    found: dict[str, int | None] = {}
    for baseline in baselines:
        if baseline.config in wanted:
            for (workload, metric), count in sessions_that_do(baseline, policy).items():
                found[f"{metric} of {workload} in {baseline.config}"] = count
    counts = [count for count in found.values() if count is not None]
    most = None if len(counts) < len(found) else max(counts, default=2)
    return Need(target, most, tuple(name for name, count in found.items() if count == most))


def need_after(
    suite: Suite,
    target: str,
    cells: Mapping[str, Sequence[CellMeasurement]],
    committed: Iterable[Baseline],
) -> Need | None:
    """The need of the configs that are being recorded. ``cells``: by config, what was
    measured so far. None: a cell has fewer than two valid sessions, so nothing is known
    yet.
    """
    policy = strictest_policy(suite, target, ())
    short = replace(policy, plan=policy.plan.model_copy(update={"baseline_sessions": 2}))
    stub = Acceptance(
        accepted_by=_UNKNOWN,
        reason=_UNKNOWN,
        accepted_at_utc=_UNKNOWN,
        commit=_UNKNOWN,
        run_ids=(_UNKNOWN,),
    )
    try:
        made = [
            propose(measured, versions={}, policy=short, previous=None, acceptance=stub)
            for measured in cells.values()
        ]
    except UsageError:
        return None
    return need_of(suite, target, with_proposed(committed, made, target), cells)


def only_testable(baseline: Baseline, problems: Iterable[Untestable]) -> Baseline:
    """The proposal without the metrics that its noise cannot test: they are left out of
    the gate, each with the reason. They stay recorded, and part of the target's noise.
    """
    by_workload: dict[str, dict[str, str]] = {}
    for problem in problems:
        could = (
            "no loss can be seen at its noise"
            if problem.detectable_ratio is None
            else f"at its noise a loss of {problem.detectable_ratio:.1%} can be seen at best"
        )
        by_workload.setdefault(problem.workload, {})[problem.metric] = (
            f"left out of the gate when the baseline was recorded: {could}"
        )
    workloads = tuple(
        part.model_copy(
            update={"not_gated": {**part.not_gated, **by_workload.get(part.workload, {})}}
        )
        for part in baseline.workloads
    )
    made = baseline.model_copy(update={"workloads": workloads})
    return made.model_copy(update={"digest": digest_of(made)})


def left_out_text(baseline: Baseline) -> tuple[str, ...]:
    """A line for each metric that is left out, and one more where nothing timed is
    gated.
    """
    lines = [
        f"not gated: {name} of {part.workload}: {why}"
        for part in baseline.workloads
        for name, why in part.not_gated.items()
    ]
    timed = [
        entry.metric
        for part in baseline.workloads
        for entry in part.metrics
        if METRICS[entry.metric].comparison is Comparison.STATISTICAL
        and entry.metric not in part.not_gated
    ]
    if lines and not timed:
        lines.append("the gate of this config is lock and memory only: no timing can be tested")
    return tuple(lines)
