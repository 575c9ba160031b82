"""The judge: (baseline, measurement, policy) to a cell's verdict. Pure and public;
needs no pytest, no vLLM and no GPU.

``baseline`` compares absolute session values with committed ones of the same hardware
class, ``reference`` the candidate's ratios to the reference arm with committed ratios,
``ab`` the candidate's ratios to the base arm with 1. Exact metrics are compared with
committed numbers, in ``ab`` with the base arm's.

Read on in ``gate.losses`` (what is judged), ``gate.metric_verdict`` (one metric),
``gate.reference`` (what it is compared with) and ``gate.decision`` (the rules).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from k3perf.gate.losses import Readings, read_cell, read_metric, served_as_planned
from k3perf.gate.metric_verdict import (
    NOTHING_NEEDED,
    MetricFinding,
    Needs,
    judge_exact,
    judge_other_ranks,
    judge_statistical,
    plain_verdict,
)
from k3perf.gate.policy import Policy
from k3perf.gate.reference import References
from k3perf.metrics.drift import config_differences, mismatch, other_class
from k3perf.metrics.loss_scale import Scale, scale_for
from k3perf.metrics.recorded_batches import batch_notes, candidate_batch
from k3perf.metrics.recorded_environments import environment_notes
from k3perf.metrics.session_values import KV_METRICS, SERVING_METRICS, rank_counts, rank_notes
from k3perf.records.baseline import Baseline, MetricBaseline, WorkloadBaseline
from k3perf.records.measurement import CellMeasurement, RoundMetrics, SessionMetrics
from k3perf.records.metric_definitions import METRICS, Comparison
from k3perf.records.outcome import Outcome
from k3perf.records.samples import InvalidReason
from k3perf.records.verdict import Buy, CellVerdict, ConfigDifference, MetricVerdict


def compare(
    baseline: Baseline | None,
    measurement: CellMeasurement,
    policy: Policy,
    references: References | None = None,
) -> CellVerdict:
    """Judge one cell. Never raises for what was measured.

    Call it after ``minimum_rounds`` rounds of ``minimum_sessions`` sessions, then again
    after what ``buy`` asked for. Calling it more often does no harm, since only planned
    interim analyses count. ``baseline`` may be None: NO_BASELINE, except in ``ab``
    mode, which needs none. ``references``: one for all calls of a run saves time.
    """
    readings = read_cell(measurement)
    verdict = CellVerdict(
        measurement.target, measurement.config, measurement.workload, measurement.mode, metrics=()
    )
    spoiled = measurement.invalid_reasons or _nothing_valid(measurement, readings)
    if spoiled and (measurement.invalid_reasons or not readings.standing):
        return replace(verdict, invalid_reasons=spoiled)
    missing = "" if measurement.mode == "ab" else mismatch(baseline, measurement)
    if missing:
        step = "run k3perf baseline propose on this run's measurements.json and accept the proposal"
        return replace(verdict, missing=f"{missing}; {step}")
    differences, unread = _differences(baseline, measurement, readings)
    if unread:
        return replace(verdict, invalid_reasons=unread)
    cell = _Cell(
        baseline,
        None
        if baseline is None or measurement.mode == "ab"
        else baseline.workload(measurement.workload),
        measurement,
        readings,
        policy.for_cell(measurement.config, measurement.workload),
        References() if references is None else references,
    )
    findings, unjudged = cell.findings()
    if not findings:
        why = "; ".join(unjudged) or "no metric has a tolerance"
        nothing = InvalidReason("nothing_judged", f"no gated metric could be judged ({why})")
        return replace(verdict, differences=differences, invalid_reasons=spoiled or (nothing,))
    verdict = replace(verdict, differences=differences)
    stopped = verdict.drifted and not any(
        difference.key.startswith("version.") for difference in differences
    )
    needed = (needs for _, needs, _ in findings)
    buy, sessions, rounds = _purchase(needed, len(readings.units), stopped=stopped)
    judged = (metric for metric, _, _ in findings)
    return replace(
        verdict,
        metrics=tuple(map(_no_gain, judged) if verdict.drifted else judged),
        invalid_reasons=spoiled,
        times_only=bool(spoiled),
        notes=cell.notes(findings, unjudged),
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
    if readings.unpaired_count:
        text = "no candidate session has a valid reference session of the same pair_id beside it"
        return (InvalidReason("unpaired_session", text),)
    return (InvalidReason("no_session", "nothing was measured: there is no candidate session"),)


def _differences(
    baseline: Baseline | None, measurement: CellMeasurement, readings: Readings
) -> tuple[tuple[ConfigDifference, ...], tuple[InvalidReason, ...]]:
    """Of valid candidate sessions to the approved configuration, or ab's base."""
    arms = [unit.reference for unit in readings.standing if unit.reference is not None]
    approved = arms[0].resolved_config if arms else {}
    if baseline is not None:
        approved = baseline.resolved_config
    found: dict[str, ConfigDifference] = {}
    for session in (unit.session for unit in readings.standing):
        if approved and not session.resolved_config:
            text = (
                f"the resolved configuration of session {session.session_id} of"
                f" {measurement.config} could not be read"
            )
            return (), (InvalidReason("resolved_config", text),)
        for difference in config_differences(approved, session.resolved_config):
            found.setdefault(difference.key, difference)
    return tuple(found.values()), ()


@dataclass(frozen=True, slots=True)
class _Cell:
    """What one cell's metrics are judged with. ``workload`` None: ab mode."""

    baseline: Baseline | None
    workload: WorkloadBaseline | None
    measurement: CellMeasurement
    readings: Readings
    policy: Policy
    references: References

    def findings(self) -> tuple[list[MetricFinding], list[str]]:
        """Judged metrics, and a note for each gated one that this cell has neither
        recorded nor measured.
        """
        findings: list[MetricFinding] = []
        foreign = self.baseline is not None and other_class(self.baseline, self.measurement)
        here = "neither recorded nor measured in this cell"
        left_out = {} if self.workload is None else self.workload.not_gated
        notes = [f"{name}: not judged, {why}" for name, why in left_out.items()]
        for name, tolerance in self.policy.tolerances.items():
            if name in left_out:
                continue
            scale = scale_for(METRICS[name], tolerance, self.measurement.mode)
            found: MetricFinding | MetricVerdict | None
            if METRICS[name].comparison is Comparison.EXACT:
                found = self._exact(scale)
            elif self.readings.units:
                found = self._statistical(scale)
            else:
                found = self._without_rounds(scale)
            if found is None:
                why = "recorded on other hardware" if foreign else here
                notes.append(f"{name}: not judged, {why}")
            else:
                findings.append(found if isinstance(found, tuple) else (found, NOTHING_NEEDED, ()))
        return findings, notes

    def _exact(self, scale: Scale) -> MetricVerdict | None:
        name = scale.metric.name
        if self.workload is not None and not self._holds_here(name):
            return None
        units = [
            unit
            for unit in self.readings.standing
            if name not in SERVING_METRICS or served_as_planned(unit.session)
        ]
        sessions = [unit.session for unit in units]
        base_arm = [unit.reference for unit in units if unit.reference is not None]
        measured, recorded = _values(sessions, name), _values(base_arm, name)
        recorded_ranks = rank_counts(name, base_arm)
        if self.workload is not None:
            entry = self._exact_entry(name)
            recorded = [] if entry is None else [session.value for session in entry.sessions]
            recorded_ranks = frozenset() if entry is None else entry.rank_counts
        if not measured or not recorded:
            return _one_sided(scale, measured=bool(measured), recorded=bool(recorded))
        ranks = rank_counts(name, sessions)
        other = judge_other_ranks(scale, recorded_ranks, ranks, committed=self.workload is not None)
        return other or judge_exact(scale, recorded, measured)

    def _holds_here(self, name: str) -> bool:
        """Device memory depends on the hardware. A CPU engine's cache has the size that
        its arguments give it, whatever the CPU.
        """
        if self.baseline is None or not other_class(self.baseline, self.measurement):
            return True
        classes = (self.measurement.hardware_class, self.baseline.hardware_class)
        return name in KV_METRICS and all(one.startswith("cpu-") for one in classes)

    def _exact_entry(self, name: str) -> MetricBaseline | None:
        serving = () if self.workload is None else self.workload.metrics
        settled = () if self.baseline is None else self.baseline.exact
        return _entry((*serving, *settled), name, "absolute")

    def _statistical(self, scale: Scale) -> MetricFinding | MetricVerdict | None:
        series = read_metric(self.readings, scale)
        recorded = () if self.workload is None else self.workload.metrics
        entry = _entry(recorded, scale.metric.name, scale.basis)
        if series.empty or (entry is None and self.measurement.mode != "ab"):
            return _one_sided(scale, measured=not series.empty, recorded=entry is not None)
        reference = None
        if entry is not None:
            batch = candidate_batch(unit.session for unit in self.readings.units)
            how = {"alternating": self.readings.alternating, "batch": batch}
            reference = self.references.recorded(scale, entry, self.policy, **how)
        return judge_statistical(scale, entry, reference, series, self.policy)

    def _without_rounds(self, scale: Scale) -> MetricVerdict | None:
        """INVALID where no round is valid. None where this cell has no such metric."""
        sessions = self.measurement.sessions
        rounds = [measured for session in sessions for measured in session.rounds]
        if not _values((*sessions, *rounds), scale.metric.name):
            return None
        return plain_verdict(scale, Outcome.INVALID, "no valid round to judge it by")

    def notes(self, findings: Sequence[MetricFinding], unjudged: Sequence[str]) -> tuple[str, ...]:
        """Everything that a reader of the cell must know beside its metrics."""
        units = self.readings.units
        arms = [unit.reference for unit in units if unit.reference is not None]
        own = [unit.session for unit in units]
        hardware = self._hardware_notes()
        alike = self.workload is not None and not hardware
        gated = map(self._exact_entry, self.policy.tolerances if alike else ())
        return (
            *hardware,
            *(note for _, _, notes in findings for note in notes),
            *batch_notes(self.workload),
            *environment_notes(self.baseline, self.measurement.workload, own, arms),
            *unjudged,
            *rank_notes(filter(None, gated), [unit.session for unit in self.readings.standing]),
            *self.readings.notes,
        )

    def _hardware_notes(self) -> list[str]:
        """That the baseline is of another hardware class, in reference mode."""
        if self.workload is None or self.baseline is None:
            return []
        classes = other_class(self.baseline, self.measurement)
        compared = "ratios are compared, memory that depends on the hardware is not"
        return [f"{classes}: {compared}"] if classes else []


def _entry(entries: Iterable[MetricBaseline], name: str, basis: str) -> MetricBaseline | None:
    return next((one for one in entries if (one.metric, one.basis) == (name, basis)), None)


def _values(parts: Sequence[RoundMetrics | SessionMetrics], name: str) -> list[float]:
    found = [part.values[name].value for part in parts if name in part.values]
    return [value for value in found if value is not None]


def _one_sided(scale: Scale, *, measured: bool, recorded: bool) -> MetricVerdict | None:
    if recorded:
        text = "recorded in the baseline, but this run could not compute it"
        return plain_verdict(scale, Outcome.INVALID, text)
    text = "measured, but not in the baseline; run k3perf baseline propose to add it"
    return plain_verdict(scale, Outcome.NO_BASELINE, text) if measured else None


def next_purchase(needs: Iterable[tuple[int | None, int | None]]) -> tuple[int, int]:
    """The nearest analysis that any undecided metric of a cell needs, as (sessions,
    rounds). (0, 0): nothing.
    """
    wanted = [(one, rounds) for one, rounds in needs if one is not None and rounds is not None]
    if not wanted:
        return 0, 0
    nearest = min(sessions for sessions, _ in wanted)
    return nearest, max(rounds for sessions, rounds in wanted if sessions == nearest)


def _no_gain(metric: MetricVerdict) -> MetricVerdict:
    """A drifted cell offers no gain: its numbers are of another configuration."""
    if metric.outcome is not Outcome.IMPROVED:
        return metric
    text = "better, but with another configuration than the approved one"
    return replace(metric, outcome=Outcome.PASS, reason=text)


def _purchase(needs: Iterable[Needs], had: int, *, stopped: bool) -> tuple[Buy, int, int]:
    """What to buy, until how many sessions and rounds. A cell whose settings changed
    buys nothing (``stopped``), but an upgrade does, with the settings that it brings:
    how it performs is the question. One with a REGRESSED metric goes on while others
    are undecided: which metrics lost is what the reader needs to know.
    """
    sessions, rounds = next_purchase(needs)
    if not sessions or stopped:
        return Buy.NOTHING, 0, 0
    return (Buy.ROUNDS if sessions <= had else Buy.SESSIONS), sessions, rounds
