"""How many recorded sessions the declared tolerances need at the noise seen so far, and
what a baseline gates where no number would do. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
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

ENOUGH_TO_GIVE_UP: Final = 4
"""Sessions of each cell after which a metric may count as hopeless: with two, one odd
session alone can make it look so.
"""


@dataclass(frozen=True, slots=True)
class Need:
    """What the tolerances of one target need.

    ``recorded_count``: the fewest sessions recorded of a cell. ``sessions_count``: how
    many every cell needs, for the metrics ``most``. ``hopeless``: metrics for which no
    number up to 30 would do; they are not in the count. Metrics are named as ``metric
    of workload in config``.
    """

    target: str
    recorded_count: int
    sessions_count: int
    most: tuple[str, ...]
    hopeless: tuple[str, ...]

    @property
    def missing_count(self) -> int:
        """Sessions of each cell that are still missing. Fewer than four say too little
        to give a metric up.
        """
        wanted = max(self.sessions_count, ENOUGH_TO_GIVE_UP if self.hopeless else 0)
        return max(wanted - self.recorded_count, 0)

    def text(self) -> str:
        """One clause without the time that it takes."""
        parts = []
        if self.most:
            parts.append(
                f"the tolerances need {self.sessions_count} sessions of each cell, for"
                f" {_shown(self.most)}"
            )
        if self.hopeless:
            parts.append(
                f"no number of sessions up to {SESSIONS_CONSIDERED} tests the tolerance of"
                f" {_shown(self.hopeless)}"
            )
        return f"{self.target}: at this noise {', and '.join(parts)}"


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def need_of(
    suite: Suite, target: str, baselines: Sequence[Baseline], asked: Collection[str]
) -> Need | None:
    """The need of the configs ``asked`` for, with the noise of all ``baselines`` of the
    target. None: none of them has a baseline with a gated statistical metric.
    """
    policy = strictest_policy(suite, target, baselines)
    found: dict[str, int | None] = {}
    recorded = []
    for baseline in (one for one in baselines if one.config in asked):
        for (workload, metric), count in sessions_that_do(baseline, policy).items():
            found[f"{metric} of {workload} in {baseline.config}"] = count
        recorded += [len(entry.sessions) for part in baseline.workloads for entry in part.metrics]
    if not found:
        return None
    most = max((count for count in found.values() if count is not None), default=0)
    return Need(
        target,
        min(recorded),
        most,
        tuple(name for name, count in found.items() if count == most),
        tuple(name for name, count in found.items() if count is None),
    )


def need_after(
    suite: Suite,
    target: str,
    cells: Mapping[str, Sequence[CellMeasurement]],
    committed: Iterable[Baseline],
) -> Need | None:
    """The need of the configs that are being recorded. ``cells``: by config, what was
    measured so far. A config with a cell of fewer than two valid sessions is omitted.
    None: every one is.
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
    made = []
    for measured in cells.values():
        with suppress(UsageError):
            made.append(
                propose(measured, versions={}, policy=short, previous=None, acceptance=stub)
            )
    asked = {baseline.config for baseline in made}
    return need_of(suite, target, with_proposed(committed, made, target), asked)


def only_testable(baseline: Baseline, problems: Iterable[Untestable]) -> Baseline:
    """The proposal without the metrics that its noise cannot test. They are omitted
    from the gate with the reason. They stay recorded, and part of the target's noise.
    """
    by_workload: dict[str, dict[str, str]] = {}
    for problem in problems:
        could = (
            "no loss can be seen at its noise"
            if problem.detectable_ratio is None
            else f"at its noise a loss of {problem.detectable_ratio:.1%} can be seen at best"
        )
        by_workload.setdefault(problem.workload, {})[problem.metric] = (
            f"omitted from the gate when the baseline was recorded: {could}"
        )
    workloads = tuple(
        part.model_copy(
            update={"not_gated": {**part.not_gated, **by_workload.get(part.workload, {})}}
        )
        for part in baseline.workloads
    )
    made = baseline.model_copy(update={"workloads": workloads})
    return made.model_copy(update={"digest": digest_of(made)})


def omitted_text(baseline: Baseline) -> tuple[str, ...]:
    """A line for each omitted metric, and one more where nothing timed is
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
