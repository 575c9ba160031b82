"""The judge: (baseline, measurement, policy) to a cell's verdict. Pure and public;
needs no pytest, no vLLM and no GPU.

``baseline`` compares absolute session values with committed ones of the same hardware
class, ``reference`` the candidate's ratios to the reference arm with committed ratios,
``ab`` the candidate's ratios to the base arm with 1. One code path: each mode only
differs in how a series of losses is read and in what stands on the other side. Exact
metrics are compared with committed numbers, in ``ab`` with the base arm's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from k3perf.config.models import Tolerance
from k3perf.gate.decision import next_purchase
from k3perf.gate.drift import config_differences
from k3perf.gate.environments import environment_notes
from k3perf.gate.exact import judge_exact, judge_other_ranks, plain_verdict, rank_counts
from k3perf.gate.policy import Policy
from k3perf.gate.readings import Readings, read_cell, read_metric, served_as_planned
from k3perf.gate.reference import Subject
from k3perf.gate.scale import scale_for
from k3perf.gate.statistical import Judged, judge_statistical
from k3perf.gate.waivers import apply_waivers
from k3perf.metrics.session_values import KV_METRICS, SERVING_METRICS
from k3perf.records.baseline import Baseline, MetricBaseline, WorkloadBaseline
from k3perf.records.measurement import CellMeasurement, SessionMetrics
from k3perf.records.metric_definitions import METRICS, Comparison, MetricDef
from k3perf.records.outcome import Outcome
from k3perf.records.samples import InvalidReason
from k3perf.records.verdict import Buy, CellVerdict, ConfigDifference

Recorded = Mapping[tuple[str, str], MetricBaseline]
"""A workload's entries by metric and basis."""


def compare(baseline: Baseline | None, measurement: CellMeasurement, policy: Policy) -> CellVerdict:
    """Judge one cell. Never raises for what was measured: whatever the numbers are, an
    outcome comes out.

    Call it after ``minimum_rounds`` rounds of ``minimum_sessions`` sessions, then again
    after what ``buy`` asked for; calling it more often does no harm, since only planned
    looks count. ``baseline`` may be None: NO_BASELINE, except in ``ab`` mode, which
    needs none.
    """
    policy = policy.for_cell(measurement.config, measurement.workload)
    verdict = partial(
        CellVerdict, measurement.target, measurement.config, measurement.workload, measurement.mode
    )
    readings = read_cell(measurement)
    spoiled = measurement.invalid_reasons or _nothing_valid(measurement, readings)
    if spoiled and (measurement.invalid_reasons or not readings.standing):
        return verdict(metrics=(), invalid_reasons=spoiled)
    missing, notes = _usable(baseline, measurement)
    if missing:
        return verdict(metrics=(), missing=missing)
    differences, unread = _differences(baseline, measurement, readings)
    if unread:
        return verdict(metrics=(), invalid_reasons=unread)
    judged, unjudged = _judge_metrics(baseline, measurement, readings, policy)
    if not judged:
        text = (
            "no gated metric could be judged"
            f" ({'; '.join(unjudged) or 'no metric has a tolerance'})"
        )
        return verdict(
            metrics=(),
            differences=differences,
            invalid_reasons=spoiled or (InvalidReason("nothing_judged", text),),
        )
    cell = (measurement.target, measurement.config, measurement.workload)
    metrics = []
    for item in judged:
        metric = item.verdict
        if policy.waivers:
            metric, waiver_notes = apply_waivers(
                metric, cell, policy.waivers, today=policy.today, build=policy.build
            )
            notes += waiver_notes
        metrics.append(metric)
        notes += (*item.outliers, *item.set_aside)
    buy, sessions, rounds = _purchase(judged, len(readings.units), drifted=bool(differences))
    return verdict(
        metrics=tuple(metrics),
        differences=differences,
        invalid_reasons=spoiled,
        times_only=bool(spoiled),
        notes=(
            *notes,
            *_environment(baseline, measurement, readings),
            *unjudged,
            *_unrecorded_ranks(baseline, measurement, readings, policy),
            *_left_out(readings),
        ),
        buy=buy,
        buy_until_sessions=sessions,
        buy_until_rounds=rounds,
    )


def _nothing_valid(measurement: CellMeasurement, readings: Readings) -> tuple[InvalidReason, ...]:
    if readings.units:
        return ()
    broken = tuple(
        replace(reason, text=f"{session.arm} session: {reason.text}")
        for session in measurement.sessions
        for reason in session.invalid_reasons
    )
    if broken:
        return broken
    if readings.unpaired_session_count:
        text = "no candidate session has a valid reference session of the same pair_id beside it"
        return (InvalidReason("unpaired_session", text),)
    return (InvalidReason("no_session", "nothing was measured: there is no candidate session"),)


def _usable(baseline: Baseline | None, measurement: CellMeasurement) -> tuple[str, list[str]]:
    """Why the baseline cannot be compared with (empty: it can), and what to note about
    it.
    """
    if measurement.mode == "ab":
        return "", []
    problem = _mismatch(baseline, measurement)
    if problem:
        return (
            (
                f"{problem}; run k3perf baseline propose on this run's measurements.json and accept"
                " the proposal"
            ),
            [],
        )
    if baseline is None or baseline.hardware_class == measurement.hardware_class:
        return "", []
    classes = (
        f"recorded on hardware class {baseline.hardware_class!r}, measured on"
        f" {measurement.hardware_class!r}"
    )
    return "", [f"{classes}: ratios are compared, memory that depends on the hardware is not"]


def _mismatch(baseline: Baseline | None, measurement: CellMeasurement) -> str:
    cell = f"{measurement.target}/{measurement.config}"
    if baseline is None:
        return f"no baseline is committed for {cell}"
    if (baseline.target, baseline.config) != (measurement.target, measurement.config):
        return f"the baseline is of {baseline.target}/{baseline.config}, the measurement of {cell}"
    workload = baseline.workload(measurement.workload)
    if workload is None:
        return f"the baseline of {cell} knows no workload {measurement.workload!r}"
    if workload.plan_digest != measurement.plan_digest:
        return (
            f"the plan of {measurement.workload!r} changed: {workload.plan_digest} was recorded,"
            f" {measurement.plan_digest} was measured"
        )
    if measurement.mode == "baseline" and baseline.hardware_class != measurement.hardware_class:
        classes = (
            f"recorded on hardware class {baseline.hardware_class!r}, measured on"
            f" {measurement.hardware_class!r}"
        )
        return f"the baseline of {cell} was {classes}; absolute numbers do not carry over"
    return ""


def _differences(
    baseline: Baseline | None, measurement: CellMeasurement, readings: Readings
) -> tuple[tuple[ConfigDifference, ...], tuple[InvalidReason, ...]]:
    """Every valid candidate session against the approved configuration; without a
    baseline (ab) against the base arm's.
    """
    sessions = [unit.session for unit in readings.standing]
    if baseline is not None:
        approved = baseline.resolved_config
    else:
        approved = next(
            (
                unit.reference.resolved_config
                for unit in readings.standing
                if unit.reference is not None
            ),
            {},
        )
    found: dict[str, ConfigDifference] = {}
    for session in sessions:
        if approved and not session.resolved_config:
            text = (
                f"the resolved configuration of session {session.session_id} of"
                f" {measurement.config} could not be read"
            )
            return (), (InvalidReason("resolved_config", text),)
        for difference in config_differences(approved, session.resolved_config):
            if baseline is None and difference.key.startswith("version."):
                continue  # two engine environments are what ab compares
            found.setdefault(difference.key, difference)
    return tuple(found.values()), ()


def _environment(
    baseline: Baseline | None, measurement: CellMeasurement, readings: Readings
) -> list[str]:
    sessions = [unit.session for unit in readings.units]
    others = [unit.reference for unit in readings.units if unit.reference is not None]
    return environment_notes(baseline, measurement.workload, sessions, others)


def _judge_metrics(
    baseline: Baseline | None, measurement: CellMeasurement, readings: Readings, policy: Policy
) -> tuple[list[Judged], list[str]]:
    """Judged metrics, and a note for each gated metric that this cell has neither
    recorded nor measured.
    """
    judged, notes = [], []
    workload = (
        baseline.workload(measurement.workload)
        if baseline is not None and measurement.mode != "ab"
        else None
    )
    foreign = baseline is not None and baseline.hardware_class != measurement.hardware_class
    recorded: Recorded | None = (
        {(entry.metric, entry.basis): entry for entry in workload.metrics} if workload else None
    )
    for name, tolerance in policy.tolerances.items():
        metric = METRICS[name]
        if metric.comparison is Comparison.EXACT:
            elsewhere = foreign and workload and not _equal_on_both(metric, baseline, measurement)
            item = (
                None if elsewhere else _judge_exact(metric, tolerance, baseline, workload, readings)
            )
        elif not readings.units:
            item = _without_rounds(metric, tolerance, measurement)
        else:
            item = _judge_statistical(
                metric, tolerance, recorded, measurement.mode, readings, policy
            )
        if item is None:
            notes.append(
                f"{name}: not judged,"
                f" {'recorded on other hardware' if foreign else 'neither recorded nor measured in this cell'}"  # noqa: E501
            )
        else:
            judged.append(item)
    return judged, notes


def _equal_on_both(
    metric: MetricDef, baseline: Baseline | None, measurement: CellMeasurement
) -> bool:
    """A CPU engine's cache has the size that its arguments give it, whatever the
    processor. Device memory decides it elsewhere.
    """
    classes = (measurement.hardware_class, baseline.hardware_class if baseline else "")
    return metric.name in KV_METRICS and all(name.startswith("cpu-") for name in classes)


def _entry(entries: tuple[MetricBaseline, ...], name: str) -> MetricBaseline | None:
    return next(
        (entry for entry in entries if entry.metric == name and entry.basis == "absolute"), None
    )


def _judge_exact(
    metric: MetricDef,
    tolerance: Tolerance,
    baseline: Baseline | None,
    workload: WorkloadBaseline | None,
    readings: Readings,
) -> Judged | None:
    units = [
        unit
        for unit in readings.standing
        if metric.name not in SERVING_METRICS or served_as_planned(unit.session)
    ]
    sessions = [unit.session for unit in units]
    others = [unit.reference for unit in units if unit.reference is not None]
    committed = workload is not None and baseline is not None
    measured = _session_values(sessions, metric.name)
    if workload is not None and baseline is not None:
        entry = _entry((*workload.metrics, *baseline.exact), metric.name)
        recorded = [] if entry is None else [session.value for session in entry.sessions]
        recorded_ranks = frozenset() if entry is None else entry.rank_counts
    else:
        recorded, recorded_ranks = _session_values(others, metric.name), rank_counts(metric, others)
    if not measured or not recorded:
        return _one_sided(metric, tolerance, measured=bool(measured), recorded=bool(recorded))
    other_ranks = judge_other_ranks(
        metric, tolerance, recorded_ranks, rank_counts(metric, sessions), committed=committed
    )
    return Judged(other_ranks or judge_exact(metric, tolerance, recorded, measured))


def _unrecorded_ranks(
    baseline: Baseline | None, measurement: CellMeasurement, readings: Readings, policy: Policy
) -> list[str]:
    """A note where several ranks were read and an older baseline does not say of how
    many its values are the worst.
    """
    workload = (
        baseline.workload(measurement.workload)
        if baseline is not None and measurement.mode != "ab"
        else None
    )
    if (
        baseline is None
        or workload is None
        or baseline.hardware_class != measurement.hardware_class
    ):
        return []
    sessions = [unit.session for unit in readings.standing]
    names = []
    for name in policy.tolerances:
        entry = _entry((*workload.metrics, *baseline.exact), name)
        if (
            entry is not None
            and not entry.rank_counts
            and max(rank_counts(METRICS[name], sessions), default=0) > 1
        ):
            names.append(name)
    step = "k3perf baseline propose records it"
    return (
        [
            f"number of ranks not recorded in the baseline of {', '.join(names)}, so not compared;"
            f" {step}"
        ]
        if names
        else []
    )


def _without_rounds(
    metric: MetricDef, tolerance: Tolerance, measurement: CellMeasurement
) -> Judged | None:
    """The verdict of a metric that needs valid rounds where none is; None where this
    cell has no such metric.
    """
    values = [
        value
        for session in measurement.sessions
        for value in (session.values, *(measured.values for measured in session.rounds))
    ]
    if all(value.get(metric.name) is None or value[metric.name].value is None for value in values):
        return None
    return Judged(
        plain_verdict(metric, tolerance, Outcome.INVALID, "no valid round to judge it by")
    )


def _one_sided(
    metric: MetricDef, tolerance: Tolerance, *, measured: bool, recorded: bool
) -> Judged | None:
    if recorded:
        return Judged(
            plain_verdict(
                metric,
                tolerance,
                Outcome.INVALID,
                "recorded in the baseline, but this run could not compute it",
            )
        )
    if measured:
        text = "measured, but not in the baseline; run k3perf baseline propose to add it"
        return Judged(plain_verdict(metric, tolerance, Outcome.NO_BASELINE, text))
    return None


def _session_values(sessions: list[SessionMetrics], name: str) -> list[float]:
    found = [session.values[name].value for session in sessions if name in session.values]
    return [value for value in found if value is not None]


def _judge_statistical(
    metric: MetricDef,
    tolerance: Tolerance,
    recorded: Recorded | None,
    mode: str,
    readings: Readings,
    policy: Policy,
) -> Judged | None:
    scale = scale_for(metric, tolerance)
    basis = scale.basis(mode)
    series = read_metric(readings, metric, scale)
    entry = None if recorded is None else recorded.get((metric.name, basis))
    if series.empty or (entry is None and mode != "ab"):
        return _one_sided(metric, tolerance, measured=not series.empty, recorded=entry is not None)
    return judge_statistical(
        Subject(metric, tolerance, scale, basis),
        entry,
        series,
        policy,
        alternating=readings.alternating,
    )


def _left_out(readings: Readings) -> list[str]:
    """What was measured and not judged, with the reason: a session that was bought for
    another's sake must not pass in silence.
    """
    if not readings.units:
        return []  # the cell's invalid_reasons say it
    of = f"of {readings.session_count} sessions left out"
    alone = f"{of} for want of a valid reference session beside them"
    counts = (
        (
            readings.invalid_round_count,
            "rounds left out as invalid",
            readings.invalid_round_reasons,
        ),
        (readings.invalid_session_count, f"{of} as invalid", readings.invalid_session_reasons),
        (readings.unpaired_session_count, alone, readings.unpaired_reasons),
    )
    return [
        f"{count} {text}{f': {_by_rule(reasons)}' if reasons else ''}"
        for count, text, reasons in counts
        if count
    ]


def _by_rule(reasons: Sequence[InvalidReason]) -> str:
    """Each rule with how many rounds or sessions broke it and the reading of the
    first.
    """
    counts = Counter(reason.rule for reason in reasons)
    first = {reason.rule: reason.text for reason in reversed(reasons)}
    return "; ".join(
        f"{count} by {rule}, first {first[rule]}" for rule, count in counts.most_common()
    )


def _purchase(judged: list[Judged], had: int, *, drifted: bool) -> tuple[Buy, int, int]:
    """What to buy, until how many sessions and rounds. A cell whose metrics are all
    decided buys nothing, nor does one that serves another configuration than the
    approved one.

    A cell with a REGRESSED metric goes on while others are undecided: which metrics
    lost is what the reader needs to know.
    """
    sessions, rounds = next_purchase((item.need_sessions, item.need_rounds) for item in judged)
    if not sessions or drifted:
        return Buy.NOTHING, 0, 0
    return (Buy.ROUNDS if sessions <= had else Buy.SESSIONS), sessions, rounds
