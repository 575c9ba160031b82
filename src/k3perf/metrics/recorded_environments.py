"""The environments of a baseline's sessions, and the note of a run that has another
one. Pure. Nothing is judged by an environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from k3perf.metrics.environment import Environment, environment_changes, environment_of
from k3perf.records.baseline import Baseline, MetricBaseline, RecordedEnvironment
from k3perf.records.measurement import SessionMetrics


def recorded_environments(baseline: Baseline) -> tuple[RecordedEnvironment, ...]:
    """Those of the baseline. An older file has one for all sessions, in its resolved
    configuration.
    """
    if baseline.environments:
        return baseline.environments
    values = environment_of({}, baseline.resolved_config)
    ids = _session_ids(
        (*baseline.exact, *(entry for workload in baseline.workloads for entry in workload.metrics))
    )
    return (RecordedEnvironment(values=values, session_ids=ids),) if values and ids else ()


def joined(*parts: Iterable[RecordedEnvironment]) -> tuple[RecordedEnvironment, ...]:
    """Equal environments as one, with the sessions of all, in the order given."""
    found: list[tuple[dict[str, str], list[str]]] = []
    for part in (entry for entries in parts for entry in entries):
        known = next((ids for values, ids in found if values == part.values), None)
        if known is None:
            found.append((part.values, list(part.session_ids)))
        else:
            known += [name for name in part.session_ids if name not in known]
    return tuple(
        RecordedEnvironment(values=values, session_ids=tuple(ids)) for values, ids in found
    )


def measured_environments(sessions: Iterable[SessionMetrics]) -> tuple[RecordedEnvironment, ...]:
    """One for each environment of the sessions, without those that recorded none."""
    return joined(
        RecordedEnvironment(values=session.environment, session_ids=(session.session_id,))
        for session in sessions
        if session.environment
    )


def kept_environments(
    baseline: Baseline, entries: Iterable[MetricBaseline]
) -> tuple[RecordedEnvironment, ...]:
    """Environments of the sessions behind ``entries``."""
    wanted = set(_session_ids(entries))
    parts = (
        (part.values, tuple(name for name in part.session_ids if name in wanted))
        for part in recorded_environments(baseline)
    )
    return tuple(
        RecordedEnvironment(values=values, session_ids=ids) for values, ids in parts if ids
    )


def environment_notes(
    baseline: Baseline | None,
    workload: str,
    sessions: Sequence[SessionMetrics],
    others: Sequence[SessionMetrics],
) -> list[str]:
    """A note where the sessions' environment differs from those recorded for the
    workload.

    Without a baseline (ab) it is compared with that of ``others``, the base arm.
    """
    if baseline is None:
        before: list[Environment] = [session.environment for session in others]
    else:
        known = baseline.workload(workload)
        before = [
            part.values
            for part in kept_environments(baseline, known.metrics if known else ())
            or recorded_environments(baseline)
        ]
    changes = environment_changes(before, [session.environment for session in sessions])
    return [f"environment differs: {'; '.join(changes)}"] if changes else []


def _session_ids(entries: Iterable[MetricBaseline]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(session.session_id for entry in entries for session in entry.sessions)
    )
