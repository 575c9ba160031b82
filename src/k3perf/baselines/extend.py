"""A committed baseline, grown by the sessions of judged nights. Pure.

A bot runs this every night, so it can only add: sessions of cells that PASS or IMPROVE,
on the same hardware class, workload plan and resolved configuration. The set rolls: the
oldest batches (host and day) leave whole, and only while ``Window`` stays full. A value
never becomes worse than the anchor by more than its tolerance. A loss needs a person.

Sessions before an improvement are another level. The baseline waits until the nights
since then give a whole baseline, and starts again with those sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from k3perf.baselines.accept import recorded_value
from k3perf.baselines.propose import settled_at_start
from k3perf.gate.policy import Policy
from k3perf.metrics.drift import config_differences
from k3perf.metrics.loss_scale import scale_for
from k3perf.metrics.recorded_environments import joined, recorded_environments
from k3perf.records.baseline import (
    Acceptance,
    Baseline,
    MetricBaseline,
    RecordedEnvironment,
    SessionValue,
    WorkloadBaseline,
    digest_of,
)
from k3perf.records.measurement import Batch
from k3perf.records.metric_definitions import METRICS
from k3perf.records.night import TAKEN, NightCell, NightFile
from k3perf.records.outcome import Outcome

FEWEST_BATCHES: Final = 2
"""Batches that a set of sessions after an improvement needs: one night may be a fluke.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """How many sessions of a workload a rolling baseline keeps at least, and of how
    many batches. Older batches leave only while both are met without them.
    """

    session_count: int = 24
    batch_count: int = 4


@dataclass(frozen=True, slots=True)
class Extension:
    """What the nights make of one (target, config). ``baseline`` None: it stays as it
    is. ``notes`` say why, workload by workload.
    """

    target: str
    config: str
    baseline: Baseline | None
    added_count: int
    dropped_count: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Night:
    file: NightFile
    cell: NightCell


@dataclass(frozen=True, slots=True)
class _Grown:
    """New sessions of a workload, ids that leave, whether an improvement starts it
    again, and why it stays as it is.
    """

    nights: tuple[_Night, ...] = ()
    dropped: frozenset[str] = frozenset()
    fresh: bool = False
    note: str = ""


def extended(
    previous: Baseline,
    nights: Sequence[NightFile],
    policy: Policy,
    *,
    window: Window,
    acceptance: Acceptance,
) -> Extension:
    """The baseline with what the nights add. ``nights`` in order of time, the newest
    last. ``acceptance``: who adds them.
    """
    target, config = previous.target, previous.config
    seen = _of(nights, target, config)
    grown = {
        part.workload: _grow(previous, part, [n for n in seen if n.cell.workload == part.workload],
                             policy, window)
        for part in previous.workloads
    }  # fmt: skip
    notes = tuple(f"{name}: {part.note}" for name, part in grown.items() if part.note)
    added = sum(one.cell.session_count for part in grown.values() for one in part.nights)
    if not added:
        return Extension(target, config, None, 0, 0, notes)
    baseline = _merged(previous, grown, acceptance)
    worse = _worse_than_anchor(previous, baseline, policy)
    if worse:
        return Extension(target, config, None, 0, 0, (*notes, *worse))
    dropped_count = sum(len(part.dropped) for part in grown.values())
    return Extension(target, config, baseline, added, dropped_count, notes)


def _of(nights: Iterable[NightFile], target: str, config: str) -> list[_Night]:
    return [
        _Night(night, cell)
        for night in nights
        for cell in night.cells
        if (cell.target, cell.config) == (target, config)
    ]


def _grow(
    previous: Baseline,
    part: WorkloadBaseline,
    nights: list[_Night],
    policy: Policy,
    window: Window,
) -> _Grown:
    known = _sessions(part.metrics)
    judged = [one for one in nights if one.cell.outcome is not None]
    fitting = [one for one in judged if _fits(previous, part, one)]
    fresh = [one for one in fitting if not known.keys() & _sessions(one.cell.recorded).keys()]
    if not judged:
        return _Grown()
    newest = judged[-1].cell
    if newest.outcome not in TAKEN:
        return _Grown(note=f"{newest.outcome} on {judged[-1].file.day}; nothing is added")
    if newest.certain_losses:
        told = ", ".join(
            f"{one.metric} {_percent(one.loss_ratio)}" for one in newest.certain_losses
        )
        return _Grown(note=f"passed with a certain loss ({told}); a person must accept it")
    if not fitting:
        return _Grown(note="the nights have another plan, hardware class or configuration")
    taken = [one for one in fresh if one.cell.outcome in TAKEN and not one.cell.certain_losses]
    improved = _since_improvement(fitting)
    if improved:
        return _restarted(known, [one for one in improved if one in taken], policy)
    taken = [one for one in taken if one.cell.outcome is Outcome.PASS]
    everything = known | {k: v for one in taken for k, v in _sessions(one.cell.recorded).items()}
    return _Grown(tuple(taken), _leaving(everything, window))


def _fits(previous: Baseline, part: WorkloadBaseline, one: _Night) -> bool:
    lock = one.file.locks.get(one.cell.lock)
    return (
        one.cell.hardware_class == previous.hardware_class
        and one.cell.plan_digest == part.plan_digest
        and lock is not None
        and not config_differences(previous.resolved_config, lock)
    )


def _since_improvement(nights: list[_Night]) -> list[_Night]:
    """The newest nights in a row that are IMPROVED."""
    found: list[_Night] = []
    for one in reversed(nights):
        if one.cell.outcome is not Outcome.IMPROVED:
            break
        found.insert(0, one)
    return found


def _restarted(known: dict[str, Batch], taken: list[_Night], policy: Policy) -> _Grown:
    sessions = {k: v for one in taken for k, v in _sessions(one.cell.recorded).items()}
    needed, batches = policy.plan.baseline_sessions, len(set(sessions.values()))
    if len(sessions) >= needed and batches >= FEWEST_BATCHES:
        return _Grown(tuple(taken), frozenset(known), fresh=True)
    since = taken[0].file.day if taken else "this night"
    return _Grown(
        note=(
            f"improved since {since}: {len(sessions)} of {needed} sessions on {batches} of"
            f" {FEWEST_BATCHES} days or hosts; the baseline waits for the others"
        )
    )


def _sessions(entries: Iterable[MetricBaseline]) -> dict[str, Batch]:
    return {one.session_id: (one.host, one.day) for entry in entries for one in entry.sessions}


def _leaving(sessions: dict[str, Batch], window: Window) -> frozenset[str]:
    """Ids of the oldest batches, while the window stays full without them. A session
    without a day is the oldest.
    """
    left = dict(sessions)
    for batch in sorted(set(sessions.values()), key=lambda one: (one[1], one[0])):
        rest = {name: other for name, other in left.items() if other != batch}
        if len(rest) < window.session_count or len(set(rest.values())) < window.batch_count:
            break
        left = rest
    return frozenset(sessions.keys() - left.keys())


def _merged(previous: Baseline, grown: dict[str, _Grown], acceptance: Acceptance) -> Baseline:
    dropped = frozenset(name for part in grown.values() for name in part.dropped)
    added = [one for part in grown.values() for one in part.nights]
    workloads = tuple(
        part.model_copy(update={"metrics": _entries(part.metrics, grown[part.workload].nights,
                                                    grown[part.workload])})
        for part in previous.workloads
    )  # fmt: skip
    exact = _entries(previous.exact, added, _Grown(dropped=dropped))
    kept = frozenset(_sessions((*exact, *(e for part in workloads for e in part.metrics))))
    baseline = previous.model_copy(
        update={
            "versions": {**previous.versions, **added[-1].file.versions},
            "exact": exact,
            "workloads": workloads,
            "acceptance": acceptance,
            "environments": _environments(previous, added, kept),
        }
    )
    return baseline.model_copy(update={"digest": digest_of(baseline)})


def _environments(
    previous: Baseline, added: Iterable[_Night], kept: frozenset[str]
) -> tuple[RecordedEnvironment, ...]:
    everything = joined(recorded_environments(previous), *(one.cell.environments for one in added))
    parts = ((e.values, tuple(n for n in e.session_ids if n in kept)) for e in everything)
    return tuple(
        RecordedEnvironment(values=values, session_ids=ids) for values, ids in parts if ids
    )


def _entries(
    before: Iterable[MetricBaseline], nights: Sequence[_Night], part: _Grown
) -> tuple[MetricBaseline, ...]:
    """The entries with the nights' sessions. A metric that the nights lack stays."""
    found = []
    for entry in before:
        new: dict[str, SessionValue] = {}
        for one in nights:
            for other in one.cell.recorded:
                if (other.metric, other.basis, other.unit) == (
                    entry.metric,
                    entry.basis,
                    entry.unit,
                ):
                    new |= {session.session_id: session for session in other.sessions}
        old = [one for one in entry.sessions if one.session_id not in (part.dropped | new.keys())]
        sessions = (*old, *(one for one in new.values() if one.session_id not in part.dropped))
        found.append(entry.model_copy(update={"sessions": sessions}) if sessions and new else entry)
    return tuple(_moved_anchor(entry) for entry in found) if part.fresh else tuple(found)


def _moved_anchor(entry: MetricBaseline) -> MetricBaseline:
    """After an improvement the cumulative cap counts from the better value."""
    metric, values = METRICS[entry.metric], [one.value for one in entry.sessions]
    lower = metric.direction.value == "lower_is_better"
    value = sum(values) / len(values)
    better = min(entry.anchor_value, value) if lower else max(entry.anchor_value, value)
    return entry.model_copy(update={"anchor_value": better})


def _worse_than_anchor(before: Baseline, after: Baseline, policy: Policy) -> tuple[str, ...]:
    """Metrics beyond their tolerance from the anchor that became worse again."""
    old = {(workload, e.metric, e.basis): e for workload, e in _all(before)}
    found = []
    for workload, entry in _all(after):
        was = old[workload, entry.metric, entry.basis]
        tolerance = policy.for_cell(after.config, workload).tolerances.get(entry.metric)
        if was is entry or tolerance is None:
            continue
        scale = scale_for(METRICS[entry.metric], tolerance)
        anchor, then, now = (
            scale.loss(value)
            for value in (
                entry.anchor_value,
                recorded_value(tolerance, was),
                recorded_value(tolerance, entry),
            )
        )
        if now - anchor > scale.allowed and now > then:
            where = f"{workload} {entry.metric}".strip()
            found.append(f"{where}: would lose more than its tolerance since the anchor")
    return tuple(found)


def _all(baseline: Baseline) -> list[tuple[str, MetricBaseline]]:
    return [
        *(("", entry) for entry in baseline.exact),
        *((part.workload, entry) for part in baseline.workloads for entry in part.metrics),
    ]


def _percent(ratio: float | None) -> str:
    return "from 0" if ratio is None else f"{ratio:+.1%}"


def first_baseline(
    nights: Sequence[NightFile],
    target: str,
    config: str,
    policy: Policy,
    *,
    acceptance: Acceptance,
) -> Extension:
    """A baseline of a config that has none, once its nights recorded enough sessions of
    a workload. Only sessions of the newest resolved configuration count.
    """
    seen = [one for one in _of(nights, target, config) if one.cell.recorded and one.cell.lock]
    if not seen:
        return Extension(target, config, None, 0, 0, ("no session was recorded yet",))
    newest = seen[-1]
    alike = [
        one
        for one in seen
        if (one.cell.lock, one.cell.hardware_class)
        == (newest.cell.lock, newest.cell.hardware_class)
    ]
    parts, notes, used = [], [], []
    for name in dict.fromkeys(one.cell.workload for one in alike):
        mine = [one for one in alike if one.cell.workload == name]
        mine = [one for one in mine if one.cell.plan_digest == mine[-1].cell.plan_digest]
        entries = _joined_entries(mine)
        count = len(_sessions(entries))
        if count < policy.plan.baseline_sessions:
            notes.append(f"{name}: {count} of {policy.plan.baseline_sessions} sessions recorded")
            continue
        used += mine
        parts.append((name, mine[-1].cell.plan_digest, entries))
    if not parts:
        return Extension(target, config, None, 0, 0, tuple(notes))
    baseline = Baseline(
        schema_version=1,
        target=target,
        config=config,
        hardware_class=newest.cell.hardware_class,
        versions=dict(newest.file.versions),
        resolved_config=newest.file.locks[newest.cell.lock],
        exact=_anchored_at_value(_joined_entries(used, at_start=True), policy, config, ""),
        workloads=tuple(
            WorkloadBaseline(
                workload=name,
                plan_digest=digest,
                metrics=_anchored_at_value(entries, policy, config, name),
            )
            for name, digest, entries in sorted(parts)
        ),
        acceptance=acceptance,
        anchor_acceptance=acceptance,
        digest="",
        environments=joined(*(one.cell.environments for one in used)),
    )
    baseline = baseline.model_copy(update={"digest": digest_of(baseline)})
    count = sum(len(_sessions(entries)) for _, _, entries in parts)
    return Extension(target, config, baseline, count, 0, tuple(notes))


def _joined_entries(
    nights: Sequence[_Night], *, at_start: bool = False
) -> tuple[MetricBaseline, ...]:
    """One entry for each metric, with the sessions of all nights. ``at_start``: those
    of the engine, else those of the workload.
    """
    found: dict[str, MetricBaseline] = {}
    for entry in (entry for one in nights for entry in one.cell.recorded):
        if settled_at_start(entry) is not at_start:
            continue
        before = found.get(entry.metric)
        known = {} if before is None else {one.session_id: one for one in before.sessions}
        sessions = {**known, **{one.session_id: one for one in entry.sessions}}
        found[entry.metric] = entry.model_copy(update={"sessions": tuple(sessions.values())})
    return tuple(found.values())


def _anchored_at_value(
    entries: Iterable[MetricBaseline], policy: Policy, config: str, workload: str
) -> tuple[MetricBaseline, ...]:
    tolerances = policy.for_cell(config, workload).tolerances
    return tuple(
        entry.model_copy(update={"anchor_value": recorded_value(tolerances[entry.metric], entry)})
        for entry in entries
        if entry.metric in tolerances
    )
