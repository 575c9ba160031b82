"""One night on ``main`` as it is kept: each cell's judgement, its values, and the
sessions that a baseline can grow by. One compressed file a night.

The file comes back from a branch that a workflow writes, so every size is bounded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from k3perf.records.baseline import MetricBaseline, RecordedEnvironment
from k3perf.records.outcome import Outcome
from k3perf.records.plan_file import MAXIMUM_CELLS

Text = Annotated[str, Field(max_length=300)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=10**6)]

TAKEN: tuple[Outcome, ...] = (Outcome.PASS, Outcome.IMPROVED)
"""Outcomes of cells whose sessions may enter a baseline."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NightValue(_Part):
    """The night's value of one metric, and how many valid sessions it is the median of.
    None: measured, but no valid session.
    """

    value: Finite | None
    sessions: Count


class NightFinding(_Part):
    """A metric of a cell that a reader must see: it is not PASS, or it passed with a
    loss that is certain.

    ``loss_ratio``: positive is worse. ``certain``: the lower bound of the loss is above
    0, or a waiver lets it pass.
    """

    metric: Text
    unit: Text
    outcome: Outcome
    before: Finite | None
    now: Finite | None
    loss_ratio: Finite | None
    certain: bool


class NightCell(_Part):
    """One cell of one night.

    ``outcome`` None: recorded without a judgement, since it has no baseline yet.
    ``lock``: key of its resolved configuration in ``NightFile.locks``, empty where it
    is not known. ``recorded``: its valid sessions, as a baseline keeps them.
    """

    target: Text
    config: Text
    workload: Text
    hardware_class: Text
    plan_digest: Text
    outcome: Outcome | None
    lock: Text = ""
    session_count: Count = 0
    values: dict[Text, NightValue] = Field(default_factory=dict)
    findings: tuple[NightFinding, ...] = Field(default=(), max_length=200)
    recorded: tuple[MetricBaseline, ...] = Field(default=(), max_length=200)
    environments: tuple[RecordedEnvironment, ...] = ()
    reason: Annotated[str, Field(max_length=2_000)] = ""

    @property
    def cell_id(self) -> str:
        """``target-config-workload``, as ``config.suite.Cell.cell_id``."""
        return f"{self.target}-{self.config}-{self.workload}"

    @property
    def certain_losses(self) -> tuple[NightFinding, ...]:
        """Losses that passed within the tolerance and are certain all the same."""
        return tuple(
            finding
            for finding in self.findings
            if finding.certain and (finding.loss_ratio is None or finding.loss_ratio > 0)
        )


class NightFile(_Part):
    """A night. ``pace``: by hardware class, the time of its shards over the planned
    time. ``engine_start_s`` and ``session_s``: as ``ci.planning.RecordedCosts``.
    """

    schema_version: Literal[1] = 1
    run_id: Text
    commit: Text
    created_at_utc: Text
    versions: dict[Text, Text] = Field(default_factory=dict)
    locks: dict[Text, dict[str, Any]] = Field(default_factory=dict)
    engine_start_s: dict[Text, Seconds] = Field(default_factory=dict)
    session_s: dict[Text, Seconds] = Field(default_factory=dict)
    pace: dict[Text, Seconds] = Field(default_factory=dict)
    cells: tuple[NightCell, ...] = Field(default=(), max_length=MAXIMUM_CELLS)

    @property
    def day(self) -> str:
        """``YYYY-MM-DD`` (UTC)."""
        return self.created_at_utc[:10]


def lock_key(resolved: Mapping[str, object]) -> str:
    """A short name of a resolved configuration."""
    text = json.dumps(resolved, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
