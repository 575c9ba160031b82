"""A cell's measurement to series of losses, one per gated metric: valid sessions and
rounds only, paired where a reference arm was measured.

In ``reference`` and ``ab`` a candidate session is paired with the reference session of
the same ``pair_id``; its rounds with the rounds of the same ``pair_index``, or, where
rounds did not alternate, with the median of the reference session's rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from k3perf.gate.scale import Scale
from k3perf.metrics.validity import VALID_ROUNDS_LIMIT, Spoils, spoiled_by
from k3perf.records.measurement import CellMeasurement, MetricValue, RoundMetrics, SessionMetrics
from k3perf.records.metric_definitions import MetricDef, Scope
from k3perf.records.samples import Arm, InvalidReason
from k3perf.stats.location import median

Values = Mapping[str, MetricValue]


@dataclass(frozen=True, slots=True)
class Unit:
    """One candidate session, ready to be read: its rounds' values, and what each is
    compared with.

    ``beside`` holds per round the reference round next to it; empty with
    ``reference_rounds`` set: rounds did not alternate.
    """

    session: SessionMetrics
    rounds: tuple[Values, ...]
    round_indices: tuple[int, ...]
    reference: SessionMetrics | None = None
    beside: tuple[Values, ...] = ()
    reference_rounds: tuple[Values, ...] = ()


@dataclass(frozen=True, slots=True)
class Readings:
    """The valid sessions of a cell, and how many of its ``session_count`` candidate
    sessions, and rounds of valid ones, were left out and why.

    ``standing``: sessions of which memory, capacity and configuration can be judged:
    the valid ones, and those that only lack valid rounds, since what an engine holds
    needs no quiet machine. ``unpaired_reasons`` are those of reference sessions that
    candidates lack for being invalid; a reference that is not there has none.
    """

    units: tuple[Unit, ...]
    session_count: int
    invalid_round_count: int
    invalid_round_reasons: tuple[InvalidReason, ...]
    invalid_session_count: int
    invalid_session_reasons: tuple[InvalidReason, ...]
    standing: tuple[Unit, ...] = ()
    unpaired_session_count: int = 0
    unpaired_reasons: tuple[InvalidReason, ...] = ()

    @property
    def alternating(self) -> bool:
        """Rounds have their reference round beside them, so that a difference holds the
        noise of both arms.
        """
        return all(not unit.reference_rounds for unit in self.units)


@dataclass(frozen=True, slots=True)
class Series:
    """Losses of one metric: per session its rounds' (or its one value). ``defect`` says
    why the series cannot be judged at all.

    ``missing_count``: values that could not be computed. ``round_indices`` name the
    rounds that the losses belong to.
    """

    sessions: tuple[tuple[float, ...], ...]
    round_indices: tuple[tuple[int, ...], ...]
    session_ids: tuple[str, ...]
    missing_count: int = 0
    defect: str = ""

    @property
    def empty(self) -> bool:
        """No value at all, neither good nor bad."""
        return not self.defect and not any(self.sessions)


def read_cell(measurement: CellMeasurement) -> Readings:
    """Sort out what can be judged."""
    candidates = measurement.arm(Arm.CANDIDATE)
    valid = [session for session in candidates if not session.invalid_reasons]
    invalid_rounds = [
        measured for session in valid for measured in session.rounds if measured.invalid_reasons
    ]
    found = Readings(
        units=tuple(_alone(session) for session in valid) if measurement.mode == "baseline" else (),
        session_count=len(candidates),
        invalid_round_count=len(invalid_rounds),
        invalid_round_reasons=_reasons(invalid_rounds),
        invalid_session_count=len(candidates) - len(valid),
        invalid_session_reasons=_reasons(candidates),
        standing=_standing_units(measurement),
    )
    if measurement.mode == "baseline":
        return found
    references = {
        session.pair_id: session
        for session in measurement.arm(Arm.REFERENCE)
        if session.pair_id is not None and not session.invalid_reasons
    }
    paired = [
        (session, references[session.pair_id]) for session in valid if session.pair_id in references
    ]
    alone = {session.pair_id for session in valid} - references.keys()
    return replace(
        found,
        units=tuple(_paired(session, reference) for session, reference in paired),
        unpaired_session_count=len(valid) - len(paired),
        unpaired_reasons=_reasons(
            session for session in measurement.arm(Arm.REFERENCE) if session.pair_id in alone
        ),
    )


def served_as_planned(session: SessionMetrics) -> bool:
    """The session is valid, or at least one of its rounds did the planned work,
    whatever else ran on the machine.
    """
    return not session.invalid_reasons or any(
        _worst(measured) <= Spoils.TIMES for measured in session.rounds
    )


def _worst(measured: RoundMetrics) -> int:
    return max((spoiled_by(reason) for reason in measured.invalid_reasons), default=0)


def _stands(session: SessionMetrics) -> bool:
    if not session.invalid_reasons:
        return True
    few_rounds = all(reason.rule == VALID_ROUNDS_LIMIT for reason in session.invalid_reasons)
    return few_rounds and all(_worst(measured) < Spoils.ALL for measured in session.rounds)


def _standing_units(measurement: CellMeasurement) -> tuple[Unit, ...]:
    """Units without rounds. In ``ab`` the base arm is what is compared with, so a
    candidate without one does not stand.
    """
    references = {
        session.pair_id: session for session in measurement.arm(Arm.REFERENCE) if _stands(session)
    }
    units = (
        Unit(session, (), (), references.get(session.pair_id))
        for session in measurement.arm(Arm.CANDIDATE)
        if _stands(session)
    )
    return tuple(unit for unit in units if unit.reference is not None or measurement.mode != "ab")


def _reasons(judged: Iterable[RoundMetrics | SessionMetrics]) -> tuple[InvalidReason, ...]:
    return tuple(reason for one in judged for reason in one.invalid_reasons)


def _valid_rounds(session: SessionMetrics) -> list[RoundMetrics]:
    return [measured for measured in session.rounds if not measured.invalid_reasons]


def _alone(session: SessionMetrics) -> Unit:
    rounds = _valid_rounds(session)
    return Unit(
        session,
        tuple(measured.values for measured in rounds),
        tuple(measured.round_index for measured in rounds),
    )


def _paired(session: SessionMetrics, reference: SessionMetrics) -> Unit:
    rounds, others = _valid_rounds(session), _valid_rounds(reference)
    if any(measured.pair_index is not None for measured in rounds):
        by_index: dict[int | None, Values] = {
            measured.pair_index: measured.values
            for measured in others
            if measured.pair_index is not None
        }
        both = [measured for measured in rounds if measured.pair_index in by_index]
        return Unit(
            session,
            tuple(measured.values for measured in both),
            tuple(measured.round_index for measured in both),
            reference,
            beside=tuple(by_index[measured.pair_index] for measured in both),
        )
    return Unit(
        session,
        tuple(measured.values for measured in rounds),
        tuple(measured.round_index for measured in rounds),
        reference,
        reference_rounds=tuple(measured.values for measured in others),
    )


def read_metric(readings: Readings, metric: MetricDef, scale: Scale) -> Series:
    """The losses of one metric over the cell's valid sessions; differences to the
    reference where there is one.
    """
    sessions, indices, ids = [], [], []
    missing = 0
    for unit in readings.units:
        losses, used, absent = (
            _round_losses(unit, metric.name, scale)
            if metric.scope is Scope.ROUND
            else _session_loss(unit, metric.name, scale)
        )
        missing += absent
        if math.isnan(sum(losses)):
            return Series(
                (),
                (),
                (),
                missing,
                f"session {unit.session.session_id} holds a value that is {_needed(scale)}",
            )
        if losses:
            sessions.append(losses)
            indices.append(used)
            ids.append(unit.session.session_id)
    return Series(tuple(sessions), tuple(indices), tuple(ids), missing)


def _needed(scale: Scale) -> str:
    return "not a positive finite number" if scale.logarithmic else "not a finite number"


def _loss(values: Values, name: str, scale: Scale) -> float | None:
    """NaN: a value without a loss. None: no value."""
    found = values.get(name)
    return None if found is None or found.value is None else scale.loss(found.value)


def _session_loss(
    unit: Unit, name: str, scale: Scale
) -> tuple[tuple[float, ...], tuple[int, ...], int]:
    own = _loss(unit.session.values, name, scale)
    other = 0.0 if unit.reference is None else _loss(unit.reference.values, name, scale)
    return ((own - other,), (), 0) if own is not None and other is not None else ((), (), 0)


def _round_losses(
    unit: Unit, name: str, scale: Scale
) -> tuple[tuple[float, ...], tuple[int, ...], int]:
    if unit.reference is None:
        present = [
            value
            for values in unit.rounds
            if name in values and (value := values[name].value) is not None
        ]
        if len(present) == len(unit.rounds):
            return scale.losses(present), unit.round_indices, 0
    own = [_loss(values, name, scale) for values in unit.rounds]
    others: Sequence[float | None]
    if unit.reference is None:
        others = [0.0] * len(own)
    elif unit.beside or not unit.reference_rounds:
        others = [_loss(values, name, scale) for values in unit.beside]
    else:
        others = [_median_loss(unit.reference_rounds, name, scale)] * len(own)
    losses, used = [], []
    for loss, other, index in zip(own, others, unit.round_indices, strict=False):
        if loss is not None and other is not None:
            losses.append(loss - other)
            used.append(index)
    return tuple(losses), tuple(used), len(own) - len(losses)


def _median_loss(rounds: Sequence[Values], name: str, scale: Scale) -> float | None:
    known = [loss for values in rounds if (loss := _loss(values, name, scale)) is not None]
    if any(map(math.isnan, known)):
        return math.nan
    return median(known) if known else None
