"""A committed baseline brought to another engine, from an ``ab`` run of both. Pure.

The lock, the versions and the memory become the candidate's. Timings keep their
approved numbers: the run has compared them with the old engine's, side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from k3perf.baselines.propose import exact_entries
from k3perf.config.suite import Suite
from k3perf.errors import UsageError
from k3perf.gate.losses import read_cell
from k3perf.gate.policy import Policy
from k3perf.metrics.environment import without_environment
from k3perf.metrics.recorded_environments import joined, measured_environments
from k3perf.records.baseline import Acceptance, Baseline, MetricBaseline, digest_of
from k3perf.records.measurement import CellMeasurement
from k3perf.records.metric_definitions import METRICS, Comparison
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict, SuiteVerdict

_HOLDS = frozenset({Outcome.PASS, Outcome.IMPROVED, Outcome.INCONCLUSIVE})


def upgraded(
    baseline: Baseline,
    cells: Sequence[CellMeasurement],
    *,
    policy: Policy,
    versions: Mapping[str, str],
    acceptance: Acceptance,
) -> Baseline:
    """``baseline`` with the candidate's lock and memory.

    ``cells``: all of its target and config in one ``ab`` run. Raises UsageError if no
    session of them can be used, or if another hardware class was measured.
    """
    name = f"{baseline.target}/{baseline.config}"
    if cells[0].hardware_class != baseline.hardware_class:
        raise UsageError(
            f"{name}: the baseline is of {baseline.hardware_class}, the run of"
            f" {cells[0].hardware_class}. Run the upgrade on the baseline's hardware."
        )
    units = [unit for cell in cells for unit in read_cell(cell).standing]
    if not units:
        raise UsageError(f"{name}: the run has no valid session of the new engine. Run it again.")
    entries = {entry.metric: entry for entry in exact_entries(cells, policy)}
    resolved = units[-1].session.resolved_config
    made = baseline.model_copy(
        update={
            "versions": {**baseline.versions, **versions},
            "resolved_config": without_environment(resolved),
            "exact": _replaced(baseline.exact, entries),
            "workloads": tuple(
                workload.model_copy(update={"metrics": _replaced(workload.metrics, entries)})
                for workload in baseline.workloads
            ),
            "acceptance": acceptance,
            "environments": joined(
                baseline.environments, measured_environments([unit.session for unit in units])
            ),
        }
    )
    return made.model_copy(update={"digest": digest_of(made)})


def _replaced(
    entries: Sequence[MetricBaseline], new: Mapping[str, MetricBaseline]
) -> tuple[MetricBaseline, ...]:
    """Entries with the new sessions. The anchor stays, so that small losses add up."""
    return tuple(
        new[entry.metric].model_copy(update={"anchor_value": entry.anchor_value})
        if entry.metric in new and entry.basis == "absolute"
        else entry
        for entry in entries
    )


def objections_to_upgrade(
    verdict: SuiteVerdict, suite: Suite, *, with_losses: bool
) -> tuple[str, ...]:
    """Why the run's candidate cannot be accepted. Empty: it can."""
    against = []
    for cell in verdict.cells:
        if cell.outcome in _HOLDS:
            continue
        if cell.invalid_reasons and not cell.times_only:
            against.append(f"{cell.cell_id} is {cell.outcome}: measure it again")
            continue
        lost = [metric.metric for metric in cell.metrics if metric.outcome not in _HOLDS]
        timings = _absolute_timings(cell, lost, suite)
        if timings:
            against.append(
                f"{cell.cell_id}: {', '.join(timings)} changed, and its baseline holds absolute"
                " timings. Record it with the new engine (`pytest --k3-record`)"
            )
        elif not with_losses:
            against.append(
                f"{cell.cell_id} is {cell.outcome} ({', '.join(lost) or 'no metric judged'}). Add"
                " --with-losses if the loss is acceptable"
            )
    return tuple(against)


def _absolute_timings(cell: CellVerdict, lost: Sequence[str], suite: Suite) -> list[str]:
    if suite.target(cell.target).measurement.mode != "baseline":
        return []
    return [name for name in lost if METRICS[name].comparison is Comparison.STATISTICAL]
