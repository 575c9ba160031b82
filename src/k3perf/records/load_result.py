"""Records of a load run against an endpoint: one level of load, and the whole run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from k3perf.records.measurement import MetricValue


@dataclass(frozen=True, slots=True)
class Objective:
    """A bound on one value of a level, such as ``ttft_p99_ms <= 500``."""

    value_name: str
    bound: Literal["<=", ">="]
    limit: float


@dataclass(frozen=True, slots=True)
class ObjectiveVerdict:
    """An objective and the value that was measured. A value that could not be computed
    (None) does not meet it.
    """

    objective: Objective
    value: float | None
    met: bool


@dataclass(frozen=True, slots=True)
class TurnValues:
    """Values of one turn of the conversations. ``turn`` counts from 1."""

    turn: Annotated[int, Field(ge=1)]
    values: dict[str, MetricValue]


@dataclass(frozen=True, slots=True)
class EndpointShare:
    """What one of several endpoints got."""

    base_url: str
    request_count: int
    output_token_count: int


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """One level of load: the requests in flight or the arrival rate, and its values.

    ``values`` are named as in docs/load-run.md. ``statuses`` count the requests by how
    they ended. ``first_detail`` is the first failed request's message.
    ``invalid_reasons``: why the level says nothing about the server.
    """

    level: float
    kind: Literal["concurrency", "rate_per_s", "workload"]
    request_count: int
    statuses: dict[str, int]
    values: dict[str, MetricValue]
    turns: tuple[TurnValues, ...] = ()
    objectives: tuple[ObjectiveVerdict, ...] = ()
    endpoints: tuple[EndpointShare, ...] = ()
    first_detail: str = ""
    client_process_count: int = 1
    client_lag_p99_ms: float | None = None
    client_cpu_s: float | None = None
    notes: tuple[str, ...] = ()
    invalid_reasons: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether the level says something about the server."""
        return not self.invalid_reasons

    @property
    def met(self) -> bool:
        """Whether the level is valid and meets every objective."""
        return self.valid and all(verdict.met for verdict in self.objectives)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A load run: what was sent to which server, and its levels in order."""

    schema_version: Literal[1]
    started_at_utc: str
    k3perf_version: str
    base_urls: tuple[str, ...]
    model_name: str
    route: str
    dialect: str
    prompts: str
    levels: tuple[LoadLevel, ...]
    options: dict[str, str] = field(default_factory=dict)
