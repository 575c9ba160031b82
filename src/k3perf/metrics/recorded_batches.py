"""The batches (host and day) of a baseline's sessions and of a run's. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from k3perf.records.baseline import WorkloadBaseline
from k3perf.records.measurement import Batch, SessionMetrics


def candidate_batch(sessions: Iterable[SessionMetrics]) -> Batch | None:
    """The one batch that all sessions are of. None: there are several, or a session's
    day is not known.
    """
    found = {session.batch for session in sessions}
    return found.pop() if len(found) == 1 else None


def batch_notes(workload: WorkloadBaseline | None) -> list[str]:
    """A note where all sessions recorded for a workload are of one batch: what changes
    from day to day is then in no figure.
    """
    known = {batch for entry in workload.metrics for batch in entry.batches} if workload else set()
    if len(known) != 1:
        return []
    host, day = known.pop()
    where = f"on {day} ({host})" if host else f"on {day}"
    return [
        f"all baseline sessions were recorded {where}: how much one day differs from another is"
        " not known; add sessions of another day"
    ]
