"""The state of a bisection: every judgement so far. Written after each, so that an
interrupted bisection goes on where it was.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(max_length=2_000)]


class Finding(StrEnum):
    """What the judge says of a point, compared with another one."""

    GOOD = "good"
    BETTER = "better"
    BAD = "bad"
    UNDECIDED = "undecided"
    INVALID = "invalid"
    BROKEN = "broken"


class PointJudgement(BaseModel):
    """One comparison of ``point`` with ``base``. ``results``: its directory. ``why``:
    the metric that decided, or why nothing could be judged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: Text
    point: Text
    finding: Finding
    why: Text = ""
    results: Text = ""
    session_count: int = Field(default=0, ge=0)


class BisectionState(BaseModel):
    """``bisect.json``. ``points``: from the good one to the bad one, in order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    cell: Text
    points: tuple[Text, ...] = Field(min_length=2, max_length=100_000)
    judgements: tuple[PointJudgement, ...] = ()
