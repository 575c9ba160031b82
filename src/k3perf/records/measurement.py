"""Metric sets: the numbers derived from samples and probes, still without any
judgement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from k3perf.records.samples import Arm, InvalidReason, StageTiming, TelemetryReading

Batch = tuple[str, str]
"""Host and day of a session. One batch shares what changes from day to day."""


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One number: ``value`` None when it could not be computed (never 0 instead); ``n``
    observations it rests on.

    ``excluded`` counts left-out observations by reason, so that nothing is dropped in
    silence.
    """

    value: float | None
    n: Annotated[int, Field(ge=0)]
    excluded: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """ROUND metrics of one measured round. Invalid rounds are kept, with their reasons
    and values, and never judged.

    ``duration_s``: from the round's start to its end. ``readings``: what was read of
    host, devices and server over that time, to explain a slow round; nothing is judged
    by them. None and empty in older files.
    """

    round_index: int
    pair_index: int | None
    values: dict[str, MetricValue]
    invalid_reasons: tuple[InvalidReason, ...] = ()
    duration_s: float | None = None
    readings: tuple[TelemetryReading, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionMetrics:
    """One session: its rounds' metrics in order of time, its SESSION metrics, and what
    it resolved its configuration to.

    ``pair_id`` joins a candidate session with the reference session that was resident
    or measured with it. ``started_at_utc``: ISO 8601, empty in older files.
    ``environment``: what the machine brought (``metrics.environment``). ``host``: the
    machine's name, empty in older files. ``stages``: of its engine's start, empty in
    older files.
    """

    session_id: Annotated[str, Field(min_length=1)]
    arm: Arm
    pair_id: str | None
    rounds: tuple[RoundMetrics, ...]
    values: dict[str, MetricValue]
    resolved_config: dict[str, object]
    invalid_reasons: tuple[InvalidReason, ...] = ()
    started_at_utc: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    host: str = ""
    stages: tuple[StageTiming, ...] = ()

    @property
    def batch(self) -> Batch | None:
        """Host and day (UTC) of the session. None: the day is not known."""
        day = self.started_at_utc[:10]
        return (self.host, day) if day else None


@dataclass(frozen=True, slots=True)
class CellMeasurement:
    """Everything measured of one cell in one run: what the gate judges.

    ``mode`` is ``baseline``, ``reference`` or ``ab``; ``hardware_class`` and
    ``plan_digest`` must match the baseline's.
    """

    schema_version: Literal[1] = field(default=1, kw_only=True)
    target: Annotated[str, Field(min_length=1)]
    config: Annotated[str, Field(min_length=1)]
    workload: Annotated[str, Field(min_length=1)]
    mode: Annotated[str, Field(pattern=r"^(baseline|reference|ab)$")]
    hardware_class: str
    plan_digest: str
    sessions: tuple[SessionMetrics, ...]
    invalid_reasons: tuple[InvalidReason, ...] = ()

    @property
    def vllm_release(self) -> str:
        """The vLLM release of the candidate's first session that recorded it, or an
        empty text.
        """
        known = (session.resolved_config.get("version.vllm") for session in self.arm(Arm.CANDIDATE))
        return next((str(release) for release in known if release is not None), "")

    def arm(self, arm: Arm) -> tuple[SessionMetrics, ...]:
        """The sessions of one arm, in order of time."""
        return tuple(session for session in self.sessions if session.arm is arm)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementFile:
    """``measurements.json``: everything that one run measured, with the commit and the
    versions it ran under.

    ``injected``: the faults that were put into the candidate on purpose. Such numbers
    are neither a baseline nor noise.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_version: Literal[1] = 1
    run_id: Annotated[str, Field(min_length=1)]
    commit: str
    created_at_utc: str
    identity: dict[str, str]
    injected: str = ""
    cells: tuple[CellMeasurement, ...]
