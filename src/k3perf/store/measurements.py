"""Measured cells to JSON and back: ``measurements.json`` of a run, the input of
``k3perf baseline propose`` and of the gate's self-test.

Both directions are exact for finite numbers. A value that is not finite has no JSON
form: it is written as null and counted under ``excluded`` as ``not_finite``. This
module holds no statistics and judges nothing.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from k3perf.documents import read_json
from k3perf.errors import ConfigFileError
from k3perf.metrics.environment import environment_of, without_environment
from k3perf.records.measurement import CellMeasurement, MetricValue, RoundMetrics, SessionMetrics
from k3perf.records.samples import Arm, InvalidReason, TelemetryReading
from k3perf.store.atomic import replace_file

MEASUREMENTS_SCHEMA_VERSION: Final = 1

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReasonDocument(_Document):
    """``samples.InvalidReason`` as a document."""

    rule: str
    text: str
    reading: FiniteFloat | None = None
    limit: FiniteFloat | None = None


class ValueDocument(_Document):
    """``records.measurement.MetricValue`` as a document."""

    value: FiniteFloat | None
    n: int = Field(ge=0)
    excluded: dict[str, int] = Field(default_factory=dict)


class ReadingDocument(_Document):
    """``samples.TelemetryReading`` as a document."""

    name: str
    value: FiniteFloat | None
    source: str


class RoundDocument(_Document):
    """``records.measurement.RoundMetrics`` as a document. Older files have neither
    duration nor readings.
    """

    round_index: int
    pair_index: int | None = None
    values: dict[str, ValueDocument]
    invalid_reasons: tuple[ReasonDocument, ...] = ()
    duration_s: FiniteFloat | None = None
    readings: tuple[ReadingDocument, ...] = ()


class SessionDocument(_Document):
    """``records.measurement.SessionMetrics`` as a document.

    Older files do not say when a session started, and have what they know of its
    environment in ``resolved_config``.
    """

    session_id: str = Field(min_length=1)
    arm: Arm
    pair_id: str | None = None
    rounds: tuple[RoundDocument, ...]
    values: dict[str, ValueDocument]
    resolved_config: dict[str, Any]
    invalid_reasons: tuple[ReasonDocument, ...] = ()
    started_at_utc: str = ""
    environment: dict[str, str] = Field(default_factory=dict)


class CellDocument(_Document):
    """``records.measurement.CellMeasurement`` as a document."""

    schema_version: Literal[1]
    target: str = Field(min_length=1)
    config: str = Field(min_length=1)
    workload: str = Field(min_length=1)
    mode: Literal["baseline", "reference", "ab"]
    hardware_class: str
    plan_digest: str
    sessions: tuple[SessionDocument, ...]
    invalid_reasons: tuple[ReasonDocument, ...] = ()


class MeasurementFile(_Document):
    """``measurements.json``: everything that one run measured, with the commit and the
    versions it ran under.

    ``injected``: the faults that were put into the candidate on purpose; such numbers
    are neither a baseline nor noise.
    """

    schema_version: Literal[1]
    run_id: str = Field(min_length=1)
    commit: str
    created_at_utc: str
    identity: dict[str, str]
    injected: str = ""
    cells: tuple[CellDocument, ...]

    def measurements(self) -> tuple[CellMeasurement, ...]:
        """The cells as the gate takes them."""
        return tuple(_cell(document) for document in self.cells)


def dump_measurement(measurement: CellMeasurement) -> dict[str, Any]:
    """One cell as plain JSON data."""
    return {
        "schema_version": MEASUREMENTS_SCHEMA_VERSION,
        "target": measurement.target,
        "config": measurement.config,
        "workload": measurement.workload,
        "mode": measurement.mode,
        "hardware_class": measurement.hardware_class,
        "plan_digest": measurement.plan_digest,
        "sessions": [_dump_session(session) for session in measurement.sessions],
        "invalid_reasons": [_dump_reason(reason) for reason in measurement.invalid_reasons],
    }


def load_measurement(data: dict[str, Any]) -> CellMeasurement:
    """The inverse of ``dump_measurement``. Raises pydantic's ``ValidationError`` on
    anything that the form does not know.
    """
    return _cell(CellDocument.model_validate(data))


def read_measurement_file(path: Path) -> MeasurementFile:
    """Read one ``measurements.json``. Missing, unreadable, truncated or malformed:
    ``ConfigFileError`` with the next step.
    """
    next_step = "Give the measurements.json that a finished run wrote."
    try:
        return MeasurementFile.model_validate(read_json(path, next_step))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        value = first["input"] if isinstance(first["input"], str | int | float | bool) else None
        raise ConfigFileError(
            path, key, value if key else None, f"not a measurement file: {first['msg']}", next_step
        ) from None


def write_measurement_file(
    path: Path,
    *,
    run_id: str,
    commit: str,
    created_at_utc: str,
    identity: dict[str, str],
    cells: tuple[CellMeasurement, ...],
    injected: str = "",
) -> None:
    """Write a run's measurements; the file appears whole or not at all."""
    data = {
        "schema_version": MEASUREMENTS_SCHEMA_VERSION,
        "run_id": run_id,
        "commit": commit,
        "created_at_utc": created_at_utc,
        "identity": identity,
        "injected": injected,
        "cells": [dump_measurement(cell) for cell in cells],
    }
    replace_file(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def _dump_session(session: SessionMetrics) -> dict[str, Any]:
    return {
        "session_id": session.session_id,
        "arm": session.arm.value,
        "pair_id": session.pair_id,
        "rounds": [
            {
                "round_index": measured.round_index,
                "pair_index": measured.pair_index,
                "values": _dump_values(measured.values),
                "invalid_reasons": [_dump_reason(reason) for reason in measured.invalid_reasons],
                "duration_s": _finite(measured.duration_s),
                "readings": [
                    {"name": r.name, "value": _finite(r.value), "source": r.source}
                    for r in measured.readings
                ],
            }
            for measured in session.rounds
        ],
        "values": _dump_values(session.values),
        "resolved_config": session.resolved_config,
        "invalid_reasons": [_dump_reason(reason) for reason in session.invalid_reasons],
        "started_at_utc": session.started_at_utc,
        "environment": session.environment,
    }


def _dump_values(values: dict[str, MetricValue]) -> dict[str, Any]:
    return {name: _dump_value(value) for name, value in values.items()}


def _dump_value(value: MetricValue) -> dict[str, Any]:
    if value.value is None or math.isfinite(value.value):
        return {"value": value.value, "n": value.n, "excluded": dict(value.excluded)}
    return {"value": None, "n": value.n, "excluded": {**value.excluded, "not_finite": 1}}


def _dump_reason(reason: InvalidReason) -> dict[str, Any]:
    return {
        "rule": reason.rule,
        "text": reason.text,
        "reading": _finite(reason.reading),
        "limit": _finite(reason.limit),
    }


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _cell(document: CellDocument) -> CellMeasurement:
    return CellMeasurement(
        target=document.target,
        config=document.config,
        workload=document.workload,
        mode=document.mode,
        hardware_class=document.hardware_class,
        plan_digest=document.plan_digest,
        sessions=tuple(_session(session) for session in document.sessions),
        invalid_reasons=_reasons(document.invalid_reasons),
    )


def _session(document: SessionDocument) -> SessionMetrics:
    return SessionMetrics(
        session_id=document.session_id,
        arm=document.arm,
        pair_id=document.pair_id,
        rounds=tuple(
            RoundMetrics(
                round_index=measured.round_index,
                pair_index=measured.pair_index,
                values=_values(measured.values),
                invalid_reasons=_reasons(measured.invalid_reasons),
                duration_s=measured.duration_s,
                readings=tuple(
                    TelemetryReading(name=r.name, value=r.value, source=r.source)
                    for r in measured.readings
                ),
            )
            for measured in document.rounds
        ),
        values=_values(document.values),
        resolved_config=without_environment(document.resolved_config),
        invalid_reasons=_reasons(document.invalid_reasons),
        started_at_utc=document.started_at_utc,
        environment=environment_of(document.environment, document.resolved_config),
    )


def _values(documents: dict[str, ValueDocument]) -> dict[str, MetricValue]:
    return {
        name: MetricValue(value=item.value, n=item.n, excluded=dict(item.excluded))
        for name, item in documents.items()
    }


def _reasons(documents: tuple[ReasonDocument, ...]) -> tuple[InvalidReason, ...]:
    return tuple(
        InvalidReason(rule=item.rule, text=item.text, reading=item.reading, limit=item.limit)
        for item in documents
    )
