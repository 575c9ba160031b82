"""The committed baseline of one (target, config): session values, noise and provenance.
A reviewed artefact, written by ``accept`` alone.

This is the data only; reading and writing files is ``k3perf.store``'s work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import date
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from k3perf.records.measurement import Batch
from k3perf.records.metric_definitions import METRICS
from k3perf.records.samples import Arm

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SessionValue(_Document):
    """One recorded session's value of a metric, and for ROUND metrics the rounds it was
    estimated from.

    ``rank_count``: how many ranks the value is the worst of. ``reference_value``: of a
    ratio, the reference arm's own value in the metric's unit. Both are None in older
    files and where they do not apply. ``host`` and ``day`` (UTC, ``YYYY-MM-DD``): where
    and when the session ran, empty where it is not known. None and empty texts are not
    written, so that an older file keeps its digest.
    """

    session_id: str
    value: FiniteFloat
    round_values: tuple[FiniteFloat, ...] = ()
    rank_count: Annotated[int, Field(ge=1)] | None = None
    reference_value: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    host: str = ""
    day: str = Field(default="", pattern=r"^(\d{4}-\d{2}-\d{2})?$")

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        for name in ("rank_count", "reference_value"):
            if data[name] is None:
                del data[name]
        for name in ("host", "day"):
            if not data[name]:
                del data[name]
        return data


class MetricBaseline(_Document):
    """One metric of one cell.

    ``basis`` absolute: the metric's own values. ratio: each value is candidate over
    reference of one session pair (dimensionless). difference: candidate minus reference
    in the metric's unit, for metrics with an absolute tolerance, whose reference may
    well be 0. ``anchor_value`` is what the cumulative cap is measured from. A metric
    that does not exist, a session that appears twice and a value that the metric cannot
    have are refused.
    """

    metric: str
    unit: str
    basis: Literal["absolute", "ratio", "difference"]
    sessions: tuple[SessionValue, ...] = Field(min_length=1)
    anchor_value: FiniteFloat

    @field_validator("metric")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in METRICS:
            near = get_close_matches(name, METRICS, n=1)
            raise ValueError(
                f"no metric has this name{f'; did you mean {near[0]!r}?' if near else ''}"
            )
        return name

    @model_validator(mode="after")
    def _possible(self) -> Self:
        twice = _twice(session.session_id for session in self.sessions)
        if twice:
            raise ValueError(
                f"session {twice!r} of {self.metric} appears twice; it would count twice"
            )
        if self.basis == "difference":
            return self
        recorded = [
            value for session in self.sessions for value in (session.value, *session.round_values)
        ]
        worst = min(self.anchor_value, *recorded)
        if worst < 0 or (worst == 0 and self.basis == "ratio"):
            least = "above 0" if self.basis == "ratio" else "0 or more"
            raise ValueError(f"{self.metric} holds the value {worst:g}; its values are {least}")
        return self

    @cached_property
    def round_count(self) -> int:
        """The fewest rounds of a recorded session; 0: the metric has no rounds."""
        return min(len(session.round_values) for session in self.sessions)

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """Host and day of each session. Empty if a session's day is not known."""
        known = tuple((session.host, session.day) for session in self.sessions)
        return known if all(day for _, day in known) else ()

    @property
    def rank_counts(self) -> frozenset[int]:
        """Number of ranks behind each recorded value; empty if unknown, or for a metric
        without ranks.
        """
        return frozenset(
            session.rank_count for session in self.sessions if session.rank_count is not None
        )

    @cached_property
    def constant(self) -> bool:
        """Every session and round was recorded with the same value."""
        values = {
            value for session in self.sessions for value in (session.value, *session.round_values)
        }
        return len(values) == 1


class WorkloadBaseline(_Document):
    """The cell's numbers for one workload; the plan digest is part of the key.

    ``not_gated``: metrics that were recorded but are not judged, each with the reason
    (``propose --only-testable``). ``parts``: where the requests' time went
    (``metrics.server_times``), by arm, to say which part of a later loss moved. Empty,
    they are not written.
    """

    workload: str
    plan_digest: str
    metrics: tuple[MetricBaseline, ...]
    not_gated: dict[str, str] = Field(default_factory=dict)
    parts: dict[Arm, dict[str, FiniteFloat]] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        for name in ("not_gated", "parts"):
            if not data[name]:
                del data[name]
        return data

    @model_validator(mode="after")
    def _once(self) -> Self:
        twice = _twice(entry.metric for entry in self.metrics)
        if twice:
            raise ValueError(f"metric {twice} of workload {self.workload} appears twice")
        return self


class RecordedEnvironment(_Document):
    """An environment (``metrics.environment``), and the sessions recorded in it."""

    values: dict[str, str]
    session_ids: tuple[str, ...] = Field(min_length=1)


class Acceptance(_Document):
    """Who accepted the numbers, why, and from which run."""

    accepted_by: str = Field(min_length=1)
    reason: str = Field(min_length=8)
    accepted_at_utc: str
    commit: str
    run_ids: tuple[str, ...] = Field(min_length=1)


class Baseline(_Document):
    """``baselines/<target>/<config>.json``. ``digest`` covers every other field, so
    that a hand edit is detected.

    ``resolved_config`` is the lock. ``environments``, where its sessions were recorded,
    judge nothing. Older files have none, and an empty tuple is not written, so that
    they keep their digest.
    """

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
    environments: tuple[RecordedEnvironment, ...] = ()

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        if not self.environments:
            del data["environments"]
        return data

    @model_validator(mode="after")
    def _once(self) -> Self:
        twice = _twice(entry.metric for entry in self.exact)
        if twice:
            raise ValueError(f"exact metric {twice} appears twice")
        twice = _twice(entry.workload for entry in self.workloads)
        if twice:
            raise ValueError(f"workload {twice} appears twice")
        return self

    def workload(self, name: str) -> WorkloadBaseline | None:
        """The numbers for one workload, or None."""
        return next((entry for entry in self.workloads if entry.workload == name), None)


def _twice(names: Iterable[str]) -> str:
    """The first name that appears twice, or an empty text."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


def how_to_record(target: str, config: str, servers: Iterable[str] = ()) -> str:
    """The commands that make a baseline, as the end of a message.

    ``servers``: addresses of running servers that are measured.
    """
    addresses = "".join(f" --k3-server {address}" for address in servers)
    return (
        f"record it with `pytest perf_tests -k {config} --k3-target {target}{addresses}"
        " --k3-record`, then `k3perf baseline propose` and `k3perf baseline accept`"
    )


def digest_of(baseline: Baseline) -> str:
    """SHA-256 over the canonical JSON of every field but ``digest``."""
    data = baseline.model_dump(mode="json", exclude={"digest"})
    text = json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class Waiver(_Document):
    """A known loss that may pass for a while."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    target: str
    """The target's name."""
    config: str
    """The config's name."""
    workload: str
    """The workload's name."""
    metric: str
    """The metric's name (docs/metrics.md)."""
    owner: str = Field(min_length=1)
    """Who follows up on the loss."""
    build: str = Field(min_length=1, json_schema_extra={"type": ["string", "number"]})
    """vLLM version that it was seen on, or its beginning at a dot or plus sign:
    `0.32` covers `0.32.1`, no other build.
    """
    reason: str = Field(min_length=8)
    """Why the loss is accepted."""
    expires_on: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    """Day from which the waiver no longer holds (`YYYY-MM-DD`), at most 90 days
    ahead.
    """
    largest_loss_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """A loss that certainly grew beyond this ratio is REGRESSED again."""

    @field_validator("expires_on")
    @classmethod
    def _exists(cls, day: str) -> str:
        try:
            date.fromisoformat(day)
        except ValueError:
            raise ValueError("there is no such day") from None
        return day
