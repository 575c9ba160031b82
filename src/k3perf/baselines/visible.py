"""The part of a baseline that a running server shows, and words for the rest. Pure.

A key or a metric that is not visible is neither equal nor lost: it is not
compared, and is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from k3perf.records.baseline import Baseline, WorkloadBaseline
from k3perf.records.measurement import CellMeasurement, RoundMetrics, SessionMetrics
from k3perf.records.metric_definitions import METRICS, Comparison
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict

_SHOWN: Final = 4
_ONE_SERVER: Final = (
    "beyond the tolerance on one server; restart it or give a second --k3-server to prove the loss"
)
NO_RATIO: Final = (
    "the baseline holds ratios to the reference config, but a running server has no reference arm"
)


def visible_baseline(baseline: Baseline, measurement: CellMeasurement) -> Baseline:
    """``baseline`` with the locked keys that every session shows, and with metrics that
    no session shows listed as not gated.
    """
    keys = visible_keys(measurement.sessions)
    return baseline.model_copy(
        update={
            "resolved_config": {
                key: value for key, value in baseline.resolved_config.items() if key in keys
            },
            "workloads": tuple(
                _visible_workload(baseline, workload, measurement)
                for workload in baseline.workloads
            ),
        }
    )


def unproven_on_one_server(verdict: CellVerdict, servers_count: int) -> CellVerdict:
    """A timing's loss on a single server is SUSPECT, not REGRESSED: one process does
    not show what differs from start to start.
    """
    if servers_count > 1:
        return verdict
    return replace(
        verdict,
        metrics=tuple(
            replace(metric, outcome=Outcome.SUSPECT, reason=_ONE_SERVER)
            if metric.outcome is Outcome.REGRESSED
            and METRICS[metric.metric].comparison is Comparison.STATISTICAL
            else metric
            for metric in verdict.metrics
        ),
    )


def visible_keys(sessions: Iterable[SessionMetrics]) -> frozenset[str]:
    """Keys of the resolved configuration that every session shows."""
    shown = [frozenset(session.resolved_config) for session in sessions]
    return frozenset.intersection(*shown) if shown else frozenset()


def hidden_keys(approved: Mapping[str, object], shown: Iterable[str]) -> tuple[str, ...]:
    """Approved keys that are not among the shown ones, sorted."""
    return tuple(sorted(set(approved) - set(shown)))


def hidden_text(approved: Mapping[str, object], shown: Iterable[str], why: str) -> str:
    """``4 of 312 keys of the lock are not visible (...)``. Empty: all are."""
    hidden = hidden_keys(approved, shown)
    if not hidden:
        return ""
    more = f" and {len(hidden) - _SHOWN} more" if len(hidden) > _SHOWN else ""
    reason = f": {why}" if why else ""
    return (
        f"{len(hidden)} of {len(approved)} keys of the lock are not visible and not compared"
        f" ({', '.join(hidden[:_SHOWN])}{more}){reason}"
    )


def _visible_workload(
    baseline: Baseline, workload: WorkloadBaseline, measurement: CellMeasurement
) -> WorkloadBaseline:
    if workload.workload != measurement.workload:
        return workload
    left_out = dict(workload.not_gated)
    for entry in (*baseline.exact, *workload.metrics):
        if entry.basis != "absolute":
            left_out.setdefault(entry.metric, NO_RATIO)
        elif not _measured(entry.metric, measurement):
            left_out.setdefault(entry.metric, "the server does not show it")
    return workload.model_copy(update={"not_gated": left_out})


def _measured(name: str, measurement: CellMeasurement) -> bool:
    parts: list[SessionMetrics | RoundMetrics] = [*measurement.sessions]
    parts += [measured for session in measurement.sessions for measured in session.rounds]
    return any(name in part.values and part.values[name].value is not None for part in parts)
