"""The mock server's behaviour: delays, chunk sizes, faults. Declared and frozen, drawn
from with a seeded generator.
"""

from __future__ import annotations

import math
import random
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from k3perf.units import NS_PER_MS

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Delay(_Declared):
    """A delay in milliseconds: ``fixed`` at its mean, ``uniform`` within mean +-
    spread, ``exponential``, or ``lognormal`` (sigma: spread).
    """

    kind: Literal["fixed", "uniform", "exponential", "lognormal"] = "fixed"
    mean_ms: NonNegative
    spread: NonNegative = 0.0

    def draw_ns(self, generator: random.Random) -> int:
        """One delay in whole nanoseconds, never negative."""
        mean_ns = self.mean_ms * NS_PER_MS
        if self.kind == "uniform":
            return max(round(mean_ns + generator.uniform(-1, 1) * self.spread * NS_PER_MS), 0)
        if self.kind == "exponential":
            return round(generator.expovariate(1.0) * mean_ns)
        if self.kind == "lognormal":
            # mean of a log-normal is exp(mu + sigma^2 / 2)
            return round(mean_ns * math.exp(generator.gauss(0.0, self.spread) - self.spread**2 / 2))
        return round(mean_ns)


class FaultKind(StrEnum):
    """The ways in which one reply can fail. ``after_tokens`` says when, if that
    applies.
    """

    HTTP_429 = "http_429"
    HTTP_500 = "http_500"
    CLOSED = "closed"  # the connection is closed without a byte
    RESET = "reset"  # RST in the middle of the stream
    CUT = "cut"  # FIN in the middle of the stream
    NO_DONE = "no_done"  # the body ends properly, without [DONE]
    STALL = "stall"  # nothing more is ever sent
    INVALID_JSON = "invalid_json"
    ERROR_EVENT = "error_event"  # an error object as a stream event
    NOT_HTTP = "not_http"
    WRONG_CONTENT_TYPE = "wrong_content_type"
    # a character's bytes in two writes: legal, so a client must accept it
    SPLIT_UTF8 = "split_utf8"
    NO_COUNTS = "no_counts"  # neither ids nor usage
    ONLY_FINAL_USAGE = "only_final_usage"  # no ids, usage at the end only: legal
    FEWER_TOKENS = "fewer_tokens"
    MORE_TOKENS = "more_tokens"


class Fault(_Declared):
    """One kind of fault, at every ``every``-th request beginning with number ``first``
    (both count from 0).
    """

    kind: FaultKind
    every: int = Field(ge=1, default=1)
    first: int = Field(ge=0, default=0)
    after_tokens: int = Field(ge=0, default=3)

    def strikes(self, ordinal: int) -> bool:
        """Whether this request is hit."""
        return ordinal >= self.first and (ordinal - self.first) % self.every == 0


class Behaviour(_Declared):
    """Everything that the mock server does. The first of ``faults`` that strikes a
    request wins.

    ``chunk_tokens``: tokens in each chunk. The gap before a chunk is that many
    inter-token latencies. ``empty_chunks``: chunks without a token before the first
    one, at half the TTFT. ``reasoning_tokens``: chat replies begin with that many in
    the reasoning channel. ``step_ms``: chunks leave at whole multiples of this, all
    streams together, like an engine's steps (0: at once). ``block_tokens``: keep an
    unbounded prefix cache of such blocks, and report its hits as vLLM does.
    """

    ttft: Delay = Delay(mean_ms=20)
    itl: Delay = Delay(mean_ms=5)
    step_ms: NonNegative = 0.0
    chunk_tokens: int = Field(ge=1, default=1)
    empty_chunks: int = Field(ge=0, default=0)
    reasoning_tokens: int = Field(ge=0, default=0)
    block_tokens: int | None = Field(ge=1, default=None)
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    model_name: str = "mock"

    def fault_for(self, ordinal: int) -> Fault | None:
        """The fault that strikes this request, or None."""
        return next((fault for fault in self.faults if fault.strikes(ordinal)), None)
