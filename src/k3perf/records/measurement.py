"""Metric sets: the numbers derived from samples and probes, still without any
judgement.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from k3perf.records.samples import Arm, InvalidReason, TelemetryReading


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One number: ``value`` None when it could not be computed (never 0 instead); ``n``
    observations it rests on.

    ``excluded`` counts left-out observations by reason, so that nothing is dropped in
    silence.
    """

    value: float | None
    n: int
    excluded: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """ROUND metrics of one measured round. Invalid rounds are kept, with their reasons
    and values, and never judged.

    ``duration_s``: from the round's start to its end. ``readings``: what was read of
    host, devices and server over that time, for whoever asks what made a round slow;
    nothing is judged by them. None and empty where an older file has neither.
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
    or measured beside it. ``started_at_utc``: ISO 8601, empty where an older file does
    not tell. ``environment``: what the machine brought (``metrics.environment``).
    """

    session_id: str
    arm: Arm
    pair_id: str | None
    rounds: tuple[RoundMetrics, ...]
    values: dict[str, MetricValue]
    resolved_config: dict[str, object]
    invalid_reasons: tuple[InvalidReason, ...] = ()
    started_at_utc: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellMeasurement:
    """Everything measured of one cell in one run: what the gate judges.

    ``mode`` is ``baseline``, ``reference`` or ``ab``; ``hardware_class`` and
    ``plan_digest`` must match the baseline's.
    """

    target: str
    config: str
    workload: str
    mode: str
    hardware_class: str
    plan_digest: str
    sessions: tuple[SessionMetrics, ...]
    invalid_reasons: tuple[InvalidReason, ...] = ()

    @property
    def vllm_release(self) -> str:
        """What the candidate served with, as its first session that tells has it; empty
        when none does.
        """
        told = (session.resolved_config.get("version.vllm") for session in self.arm(Arm.CANDIDATE))
        return next((str(release) for release in told if release is not None), "")

    def arm(self, arm: Arm) -> tuple[SessionMetrics, ...]:
        """The sessions of one arm, in order of time."""
        return tuple(session for session in self.sessions if session.arm is arm)
