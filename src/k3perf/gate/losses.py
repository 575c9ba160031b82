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
from typing import Final

from k3perf.metrics.loss_scale import Scale
from k3perf.metrics.validity import VALID_ROUNDS_LIMIT, Spoils, spoiled_by
from k3perf.records.measurement import CellMeasurement, RoundMetrics, SessionMetrics
from k3perf.records.metric_definitions import Scope
from k3perf.records.samples import Arm, InvalidReason
from k3perf.stats.estimators import median

LEAST_COUNTED: Final = 1e-13
"""What a counted metric's 0 stands for, where losses are logarithms."""


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
    rounds = [measured for session in valid for measured in session.rounds]
    others = [one for one in measurement.arm(Arm.REFERENCE) if one.pair_id in lost_pairs]
    of = f"of {len(candidates)} sessions excluded"
    invalid_count = sum(bool(measured.invalid_reasons) for measured in rounds)
    notes = (
        _excluded(invalid_count, "rounds excluded as invalid", rounds),
        _excluded(len(candidates) - len(valid), f"{of} as invalid", candidates),
        _excluded(len(alone), f"{of} without a valid reference session beside them", others),
    )
    kept = tuple(note for note in notes if units and note)
    return Readings(units, _standing(measurement), len(alone), kept)


def _excluded(count: int, of: str, broken: Iterable[RoundMetrics | SessionMetrics]) -> str:
    """Each broken rule with how often it was, and its first reading."""
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
    """Nothing is wrong with it but rounds, and none of them spoils everything."""
    if not session.invalid_reasons:
        return True
    few_rounds = all(reason.rule == VALID_ROUNDS_LIMIT for reason in session.invalid_reasons)
    return few_rounds and all(_worst(one.invalid_reasons) < Spoils.ALL for one in session.rounds)


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
    of_rounds = scale.metric.scope is Scope.ROUND
    found = []
    for unit in readings.units:
        losses = _round_losses(unit, scale) if of_rounds else _session_loss(unit, scale)
        if math.isnan(sum(loss for loss, _ in losses)):
            finite = "not a positive finite number" if scale.logarithmic else "not a finite number"
            text = f"session {unit.session.session_id} holds a value that is {finite}"
            return Series(defect=text)
        if losses:
            found.append((unit.session.session_id, losses))
    return Series(
        tuple(tuple(loss for loss, _ in losses) for _, losses in found),
        tuple(tuple(index for _, index in losses if of_rounds) for _, losses in found),
        tuple(session_id for session_id, _ in found),
    )


def _loss(measured: RoundMetrics | SessionMetrics, scale: Scale) -> float | None:
    """NaN: a value without a loss. None: no value."""
    found = measured.values.get(scale.metric.name)
    if found is None or found.value is None:
        return None
    none = scale.metric.counted and scale.logarithmic and found.value == 0
    return scale.loss(LEAST_COUNTED if none else found.value)


def _session_loss(unit: Unit, scale: Scale) -> list[tuple[float, int]]:
    own = _loss(unit.session, scale)
    other = 0.0 if unit.reference is None else _loss(unit.reference, scale)
    return [(own - other, 0)] if own is not None and other is not None else []


def _round_losses(unit: Unit, scale: Scale) -> list[tuple[float, int]]:
    """Each round's loss with the round's index."""
    own = [
        (loss, measured.round_index)
        for measured in unit.rounds
        if (loss := _loss(measured, scale)) is not None
    ]
    if unit.reference is None:
        return own
    others = [_loss(measured, scale) for measured in unit.beside]
    if unit.alternating:
        both = zip(unit.rounds, others, strict=False)
        return [
            (loss - other, measured.round_index)
            for measured, other in both
            if other is not None and (loss := _loss(measured, scale)) is not None
        ]
    known = [loss for loss in others if loss is not None]
    if not known:
        return []
    centre = math.nan if any(map(math.isnan, known)) else median(known)
    return [(loss - centre, index) for loss, index in own]
