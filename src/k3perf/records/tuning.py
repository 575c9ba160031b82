"""What a tuning run asks for, reads and concludes: trials, readings, findings.

A journal holds readings in order (``store.tuning_journal``). ``tuning.json`` holds one
``TuningResult``. Gains are ratios to the parent's value, positive is better.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from k3perf.records.measurement import SessionMetrics

Change = dict[str, Any]
"""Engine arguments that differ from the base config, by name."""

BASE_LABEL = "base"
"""The label of the config that the run starts from."""


def label_of(change: Change) -> str:
    """``max_num_seqs=8, block_size=32`` sorted by name. ``base`` without a change."""
    parts = (f"{name}={value_text(change[name])}" for name in sorted(change))
    return ", ".join(parts) or BASE_LABEL


def value_text(value: Any) -> str:
    """A value as a user writes it: text plain, everything else as JSON."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


class Fate(StrEnum):
    """How a trial ended. Only MEASURED has values."""

    MEASURED = "measured"
    INVALID = "invalid"  # the machine spoiled it, so it may be repeated
    CRASHED = "crashed"
    NO_MEMORY = "no_memory"
    SAME_ENGINE = "same_engine"  # the engine resolved to one that is known, nothing was measured


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """One session of one point. ``stage``: the part of the run, such as ``screen
    max_num_seqs``. Blocks hold one session of each point that is compared.
    """

    stage: str
    block: int
    change: Change
    workload: str = ""
    attempt: int = 0

    @property
    def label(self) -> str:
        """The point's label."""
        return label_of(self.change)

    @property
    def key(self) -> str:
        """What makes two trials the same work."""
        return f"{self.stage}|{self.block}|{self.workload}|{self.attempt}|{self.label}"


@dataclass(frozen=True, slots=True)
class TuningReading:
    """What one trial gave.

    ``values``: the session's mean of each metric over its valid rounds.
    ``request_count``: the fewest requests behind a round's latencies. ``effective``:
    locked values of the engine that differ from the parent's, with both. ``same_as``:
    the label of the known point with this engine.
    """

    trial: TuningTrial
    fate: Fate
    duration_s: Annotated[float, Field(ge=0)]
    round_count: Annotated[int, Field(ge=0)] = 0
    request_count: int = 0
    values: dict[str, float] = field(default_factory=dict)
    text: str = ""
    effective: dict[str, str] = field(default_factory=dict)
    same_as: str = ""
    session: SessionMetrics | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """One metric of a point against its parent: ``ratio`` with its interval, positive
    is better. None: it could not be estimated.
    """

    ratio: float | None
    low_ratio: float | None
    high_ratio: float | None


@dataclass(frozen=True, slots=True)
class ValueFinding:
    """What a sweep says of one value. ``outcome``: ``parent``, ``better``, ``worse``,
    ``undecided``, or why it was not measured.
    """

    value: Any
    change: Change
    outcome: str
    session_count: int = 0
    effects: dict[str, Effect] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Knee:
    """Where more of an ordered parameter brings less than the noise. ``value`` None: no
    knee inside the range, and ``text`` says why.
    """

    value: float | None
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A nominee on sessions that took no part in choosing it. ``level``: one-sided
    error rate of this test, after division by all tests of the run.
    """

    label: str
    block_count: int
    gain: Effect
    level: float
    confirmed: bool
    text: str


@dataclass(frozen=True, slots=True)
class ParameterFinding:
    """One parameter's sweep. ``nothing_beyond_ratio``: no value has a larger effect on
    the objective, None where that is not shown.
    """

    step: str
    parameter: str
    parent: Change
    values: tuple[ValueFinding, ...]
    decision: str
    knee: Knee | None = None
    nothing_beyond_ratio: float | None = None
    confirmation: Confirmation | None = None
    winner: Change | None = None


@dataclass(frozen=True, slots=True)
class Interaction:
    """The combination against the sum of its single gains, on fresh sessions."""

    parts: tuple[Change, ...]
    single_gains: tuple[Effect, ...]
    combined: Effect
    excess: Effect
    known_pair: str
    proposed: Change
    text: str


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A point on the front: no other one is proven better without being worse
    elsewhere. ``trade``: its differences from the base, in words.
    """

    change: Change
    means: dict[str, float]
    effects: dict[str, Effect]
    trade: str


@dataclass(frozen=True, slots=True)
class Validation:
    """The proposal against the base on the validation workload."""

    workload: str
    effects: dict[str, Effect]
    means: dict[str, float]
    base_means: dict[str, float]
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class BoundSpec:
    """A limit that a point must keep. Upper where less is better, else lower."""

    metric: str
    limit: float

    @property
    def text(self) -> str:
        """``ttft_p99_ms=500``."""
        return f"{self.metric}={self.limit:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """``tuning.json``: what a tuning run found, and why it chose."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_version: Literal[1] = 1
    run_id: str
    fingerprint: dict[str, str]
    target: str
    config: str
    workload: str
    objective: str
    bounds: tuple[BoundSpec, ...]
    error_rate: float
    test_count: int
    parameters: tuple[ParameterFinding, ...]
    interaction: Interaction | None
    front: tuple[FrontPoint, ...]
    base_on_front: bool
    proposal: Change
    gain: Effect | None
    validation: Validation | None
    session_count: int
    round_count: int
    spent_s: float
    budget_s: float | None
    undecided: tuple[str, ...]
    reasons: tuple[str, ...]
