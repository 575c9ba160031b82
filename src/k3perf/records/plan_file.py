"""``plan.json``: what ``k3perf plan`` decided, as a strict document. Read back from
artefacts, so every size is bounded.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAXIMUM_CELLS = 5_000

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Minutes = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ShortText = Annotated[str, Field(max_length=200)]
LongText = Annotated[str, Field(max_length=2_000)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedCell(_Part):
    """A cell to measure, with the reasons that selected it. ``cost``: what its minutes
    rest on (``planning.CostBasis``).
    """

    cell: ShortText
    target: ShortText
    config: ShortText
    workload: ShortText
    priority: Literal["direct", "descendant", "wide"]
    reasons: tuple[LongText, ...] = Field(max_length=1_000)
    cost: Literal["measured", "related", "assumed"] = "assumed"


class CellLeftOut(_Part):
    """A touched cell that the budget has no room for."""

    cell: ShortText
    reason: LongText


class PlannedShard(_Part):
    """One runner's part. ``pool`` asks for a runner outside the pool that failed
    before; empty: any. ``record_sessions``: the shard records so many sessions and
    judges nothing (0: it judges).
    """

    shard: ShortText
    kind: Literal["cpu", "nvidia", "amd"]
    hardware_class: ShortText
    targets: tuple[ShortText, ...] = Field(max_length=500)
    cells: tuple[ShortText, ...] = Field(max_length=MAXIMUM_CELLS)
    minutes: Minutes
    pool: Annotated[str, Field(pattern=r"^[a-z0-9]*$", max_length=20)] = ""
    record_sessions: int = Field(default=0, ge=0, le=1_000)


class PlanDocument(_Part):
    """The whole plan. ``over_budget``: the directly touched cells alone exceed the
    budget and are measured all the same.

    Every shard divides ``false_alarm_budget`` by ``gated_metric_count``, the whole
    plan's, not its own. ``pace``: what the minutes were multiplied by, by hardware
    class.
    """

    schema_version: Literal[1] = 1
    false_alarm_budget: Share
    gated_metric_count: int = Field(ge=0, le=10**6)
    cells: tuple[PlannedCell, ...] = Field(max_length=MAXIMUM_CELLS)
    left_out: tuple[CellLeftOut, ...] = Field(max_length=MAXIMUM_CELLS)
    over_budget: bool
    notes: tuple[LongText, ...] = Field(max_length=1_000)
    device_minutes: Minutes
    shards: tuple[PlannedShard, ...] = Field(max_length=256)
    pace: dict[ShortText, Minutes] = Field(default_factory=dict)

    @property
    def estimated_count(self) -> int:
        """Cells whose minutes no session of theirs stands for."""
        return sum(entry.cost != "measured" for entry in self.cells)

    @property
    def recorded_cells(self) -> frozenset[str]:
        """Ids of the cells that are recorded without a judgement."""
        return frozenset(
            cell for shard in self.shards if shard.record_sessions for cell in shard.cells
        )
