"""The committed baseline of one (target, config): session values, noise and provenance. A reviewed artefact, written by ``accept`` alone.

This is the data only; reading and writing files is ``k3perf.store``'s work.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

BASELINE_SCHEMA_VERSION = 1

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SessionValue(_Document):
    """One recorded session's value of a metric; for ROUND metrics the rounds it was estimated from stay beside it."""

    session_id: str
    value: FiniteFloat
    round_values: tuple[FiniteFloat, ...] = ()


class MetricBaseline(_Document):
    """One metric of one cell. ``basis`` ratio: each value is candidate over reference of one session pair (dimensionless)."""

    metric: str
    unit: str
    basis: Literal["absolute", "ratio"]
    sessions: tuple[SessionValue, ...] = Field(min_length=1)
    anchor_value: FiniteFloat


class WorkloadBaseline(_Document):
    """The cell's numbers for one workload; the plan digest is part of the key."""

    workload: str
    plan_digest: str
    metrics: tuple[MetricBaseline, ...]


class Acceptance(_Document):
    """Who accepted the numbers, why, and from which run."""

    accepted_by: str = Field(min_length=1)
    reason: str = Field(min_length=8)
    accepted_at_utc: str
    commit: str
    run_ids: tuple[str, ...] = Field(min_length=1)


class Baseline(_Document):
    """``baselines/<target>/<config>.json``. ``digest`` covers every other field, so that a hand edit is detected."""

    schema_version: Literal[1]
    target: str
    config: str
    hardware_class: str
    versions: dict[str, str]
    resolved_config: dict[str, Any]
    exact: tuple[MetricBaseline, ...]
    workloads: tuple[WorkloadBaseline, ...]
    acceptance: Acceptance
    anchor_acceptance: Acceptance
    digest: str

    def workload(self, name: str) -> WorkloadBaseline | None:
        """The numbers for one workload, or None."""
        return next((entry for entry in self.workloads if entry.workload == name), None)


class Waiver(_Document):
    """A known loss that may pass for a while: owner, the build it was seen on, and the day it stops working."""

    target: str
    config: str
    workload: str
    metric: str
    owner: str = Field(min_length=1)
    build: str = Field(min_length=1)
    reason: str = Field(min_length=8)
    expires_on: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
