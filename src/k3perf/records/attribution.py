"""Which part of a cell moved, with the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from k3perf.records.plan_file import LongText, ShortText


class Cause(StrEnum):
    """What a loss comes from. Each has one section in docs/reports.md."""

    SLOW_PREFILL = "slow_prefill"
    SLOW_DECODE = "slow_decode"
    SMALLER_CACHE = "smaller_cache"
    PREFIX_CACHE = "prefix_cache"
    BATCH_LIMIT = "batch_limit"
    QUEUE = "queue"
    FRONT_END = "front_end"
    MEMORY = "memory"
    START_UP = "start_up"


@dataclass(frozen=True, slots=True)
class CauseFinding:
    """One cause. ``share_ratio``: its share of what a request got slower, None for a
    cause that is not a time. ``evidence``: the readings that point to it, a sentence
    each.
    """

    cause: Cause
    text: LongText
    share_ratio: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    evidence: Annotated[tuple[LongText, ...], Field(max_length=40)] = ()


@dataclass(frozen=True, slots=True)
class Attribution:
    """The causes of a cell's loss, the likeliest first, which may be none.

    ``compared_with``: what the readings are compared with. ``unexplained_ratio``: the
    share of the slowdown that no cause explains. ``changed``: what else differs, such
    as settings, versions, driver and host.
    """

    compared_with: ShortText
    causes: Annotated[tuple[CauseFinding, ...], Field(max_length=20)] = ()
    unexplained_ratio: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    changed: Annotated[tuple[LongText, ...], Field(max_length=60)] = ()
