"""A cell's measurement to losses: values turned so that larger is worse, of valid
sessions and rounds only, paired where a reference arm was measured.

In ``reference`` and ``ab`` a candidate session is paired with the reference session of
the same ``pair_id``, and its rounds with the rounds of the same ``pair_index``. Where
rounds did not alternate, they are paired with the median of the reference session's
rounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from k3perf.config.models import Tolerance
from k3perf.metrics.validity import VALID_ROUNDS_LIMIT, Spoils, spoiled_by
from k3perf.records.measurement import CellMeasurement, RoundMetrics, SessionMetrics
from k3perf.records.metric_definitions import Direction, MetricDef, Scope
from k3perf.records.samples import Arm, InvalidReason
from k3perf.stats.estimators import median

Basis = Literal["absolute", "ratio", "difference"]

_LARGEST: Final = 1e100


@dataclass(frozen=True, slots=True)
class Scale:
    """One metric's loss scale under one tolerance: logarithms for a relative tolerance,
    the metric's own unit for an absolute one. A difference of logarithms is a relative
    loss whatever the metric's size.

    ``basis``: what is compared, the metric's values or their ratios or differences to
    the reference arm. ``sign``: +1 where lower is better, -1 where higher is.
    """

    metric: MetricDef
    tolerance: Tolerance
    basis: Basis
    sign: int
    logarithmic: bool

    @property
    def unit(self) -> str:
        """Of the compared values."""
        return "ratio" if self.basis == "ratio" else self.metric.unit

    @property
    def allowed(self) -> float:
        """The tolerance on the loss scale, not negative."""
        if self.tolerance.loss_absolute is not None:
            return self.tolerance.loss_absolute
        ratio = self.tolerance.loss_ratio or 0.0
        return math.log1p(ratio) if self.sign > 0 else -math.log1p(-ratio)

    def loss(self, value: float) -> float:
        """NaN where there is none: a logarithm of a number that is not positive and
        finite, or a number so large that its square is not finite.
        """
        if self.logarithmic:
            return self.sign * math.log(value) if 0 < value < math.inf else math.nan
        return self.sign * value if abs(value) < _LARGEST else math.nan

    def value(self, loss: float) -> float:
        """The inverse of ``loss``."""
        return math.exp(self.sign * loss) if self.logarithmic else self.sign * loss

    def loss_ratio(self, loss_difference: float, baseline_value: float | None) -> float | None:
        """A difference of two losses as a share of the baseline's value. None: the
        baseline is 0 or unknown.
        """
        if self.logarithmic:
            small = abs(loss_difference) < 700
            return self.sign * math.expm1(self.sign * loss_difference) if small else None
        return loss_difference / abs(baseline_value) if baseline_value else None


def scale_for(metric: MetricDef, tolerance: Tolerance, mode: str = "baseline") -> Scale:
    """The scale of a metric in a mode of measuring."""
    logarithmic = tolerance.loss_absolute is None
    basis: Basis = "absolute"
    if mode != "baseline":
        basis = "ratio" if logarithmic else "difference"
    sign = 1 if metric.direction is Direction.LOWER_IS_BETTER else -1
    return Scale(metric, tolerance, basis, sign, logarithmic)


@dataclass(frozen=True, slots=True)
class Unit:
    """One candidate session with its valid rounds, and what they are compared with.

    ``beside``: the reference round next to each round where they alternated, else all
    valid rounds of the reference session.
    """

    session: SessionMetrics
    rounds: tuple[RoundMetrics, ...] = ()
    reference: SessionMetrics | None = None
    beside: tuple[RoundMetrics, ...] = ()
    alternating: bool = True


@dataclass(frozen=True, slots=True)
class Readings:
    """The valid sessions of a cell, and notes on what was excluded.

    ``standing``: sessions of which memory, capacity and configuration can be judged:
    the valid ones, and those that only lack valid rounds, because what an engine holds
    needs no quiet machine.
    """

    units: tuple[Unit, ...]
    standing: tuple[Unit, ...]
    unpaired_count: int
    notes: tuple[str, ...]

    @property
    def alternating(self) -> bool:
        """Rounds have their reference round beside them, so that a difference holds the
        noise of both arms.
        """
        return all(unit.alternating for unit in self.units)


@dataclass(frozen=True, slots=True)
class Series:
    """One metric's losses: per session those of its rounds, or its one value.
    ``round_indices`` name the rounds. ``defect`` says why nothing can be judged.
    """

    sessions: tuple[tuple[float, ...], ...] = ()
    round_indices: tuple[tuple[int, ...], ...] = ()
    session_ids: tuple[str, ...] = ()
    defect: str = ""

    @property
    def empty(self) -> bool:
        """No value at all, neither good nor bad."""
        return not self.defect and not any(self.sessions)


def read_cell(measurement: CellMeasurement) -> Readings:
    """What can be judged of a measurement."""
    paired = measurement.mode != "baseline"
    candidates = measurement.arm(Arm.CANDIDATE)
    valid = [session for session in candidates if not session.invalid_reasons]
    references: dict[str | None, SessionMetrics] = {
        session.pair_id: session
        for session in measurement.arm(Arm.REFERENCE)
        if session.pair_id is not None and not session.invalid_reasons
    }
    alone = [session for session in valid if paired and session.pair_id not in references]
    units = tuple(
        _paired(session, references[session.pair_id])
        if paired
        else Unit(session, tuple(_valid_rounds(session)))
        for session in valid
        if not paired or session.pair_id in references
    )
    lost_pairs = {session.pair_id for session in alone}
    broken = (
        ("rounds excluded as invalid", [part for session in valid for part in session.rounds]),
        (f"of {len(candidates)} sessions excluded as invalid", candidates),
    )
    notes = [
        _excluded(sum(bool(p.invalid_reasons) for p in parts), of, parts) for of, parts in broken
    ]
    without = (
        f"of {len(candidates)} sessions excluded without a valid reference session beside them"
    )
    others = [one for one in measurement.arm(Arm.REFERENCE) if one.pair_id in lost_pairs]
    notes.append(_excluded(len(alone), without, others))
    return Readings(
        units, _standing(measurement), len(alone), tuple(note for note in notes if units and note)
    )


def _excluded(count: int, of: str, broken: Iterable[RoundMetrics | SessionMetrics]) -> str:
    """What was measured and not judged: each broken rule with how often and the reading
    of the first.
    """
    reasons = [reason for part in broken for reason in part.invalid_reasons]
    first = {reason.rule: reason.text for reason in reversed(reasons)}
    rules = "; ".join(
        f"{times} by {rule}, first {first[rule]}"
        for rule, times in Counter(reason.rule for reason in reasons).most_common()
    )
    return f"{count} {of}{f': {rules}' if rules else ''}" if count else ""


def _valid_rounds(session: SessionMetrics) -> list[RoundMetrics]:
    return [measured for measured in session.rounds if not measured.invalid_reasons]


def _paired(session: SessionMetrics, reference: SessionMetrics) -> Unit:
    rounds, others = _valid_rounds(session), _valid_rounds(reference)
    if all(measured.pair_index is None for measured in rounds):
        return Unit(session, tuple(rounds), reference, tuple(others), alternating=not others)
    by_index: dict[int | None, RoundMetrics] = {
        other.pair_index: other for other in others if other.pair_index is not None
    }
    both = [measured for measured in rounds if measured.pair_index in by_index]
    return Unit(session, tuple(both), reference, tuple(by_index[one.pair_index] for one in both))


def served_as_planned(session: SessionMetrics) -> bool:
    """The session is valid, or at least one of its rounds did the planned work,
    whatever else ran on the machine.
    """
    return not session.invalid_reasons or any(
        _worst(measured.invalid_reasons) <= Spoils.TIMES for measured in session.rounds
    )


def _worst(reasons: Sequence[InvalidReason]) -> int:
    return max(map(spoiled_by, reasons), default=0)


def _stands(session: SessionMetrics) -> bool:
    few_rounds = all(reason.rule == VALID_ROUNDS_LIMIT for reason in session.invalid_reasons)
    return not session.invalid_reasons or (
        few_rounds and all(_worst(one.invalid_reasons) < Spoils.ALL for one in session.rounds)
    )


def _standing(measurement: CellMeasurement) -> tuple[Unit, ...]:
    """Units without rounds. In ``ab`` the base arm is what is compared with, so a
    candidate without one does not stand.
    """
    references = {
        session.pair_id: session for session in measurement.arm(Arm.REFERENCE) if _stands(session)
    }
    return tuple(
        Unit(session, reference=references.get(session.pair_id))
        for session in measurement.arm(Arm.CANDIDATE)
        if _stands(session) and (measurement.mode != "ab" or session.pair_id in references)
    )


def read_metric(readings: Readings, scale: Scale) -> Series:
    """The losses of one metric over the cell's valid sessions, as differences to the
    reference where there is one.
    """
    sessions, indices, ids = [], [], []
    for unit in readings.units:
        losses, used = (
            _round_losses(unit, scale)
            if scale.metric.scope is Scope.ROUND
            else _session_loss(unit, scale)
        )
        if math.isnan(sum(losses)):
            finite = "not a positive finite number" if scale.logarithmic else "not a finite number"
            return Series(
                defect=f"session {unit.session.session_id} holds a value that is {finite}"
            )
        if losses:
            sessions.append(losses)
            indices.append(used)
            ids.append(unit.session.session_id)
    return Series(tuple(sessions), tuple(indices), tuple(ids))


def _loss(measured: RoundMetrics | SessionMetrics, scale: Scale) -> float | None:
    """NaN: a value without a loss. None: no value."""
    found = measured.values.get(scale.metric.name)
    return None if found is None or found.value is None else scale.loss(found.value)


def _session_loss(unit: Unit, scale: Scale) -> tuple[tuple[float, ...], tuple[int, ...]]:
    own = _loss(unit.session, scale)
    other = 0.0 if unit.reference is None else _loss(unit.reference, scale)
    return ((own - other,) if own is not None and other is not None else ()), ()


def _round_losses(unit: Unit, scale: Scale) -> tuple[tuple[float, ...], tuple[int, ...]]:
    own = [_loss(measured, scale) for measured in unit.rounds]
    others: Sequence[float | None] = [0.0] * len(own)
    if unit.reference is not None:
        others = [_loss(measured, scale) for measured in unit.beside]
        if not unit.alternating:
            known = [loss for loss in others if loss is not None]
            centre = math.nan if any(map(math.isnan, known)) else median(known or [0.0])
            others = [centre if known else None] * len(own)
    pairs = [
        (loss - other, measured.round_index)
        for loss, other, measured in zip(own, others, unit.rounds, strict=False)
        if loss is not None and other is not None
    ]
    return tuple(loss for loss, _ in pairs), tuple(index for _, index in pairs)
