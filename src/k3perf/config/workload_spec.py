"""Frozen models of a workload: arrival process, lengths, prefix sharing, sampling, SLO.
Declared here, expanded in ``k3perf.workload``.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from k3perf.config.models import Declared, Name, PositiveFloat

TokenCount = Annotated[int, Field(ge=1)]


class AllAtOnce(Declared):
    """Every request is sent at time zero."""

    kind: Literal["all_at_once"]


class ClosedLoop(Declared):
    """``concurrency`` requests in flight; each end starts the next."""

    kind: Literal["closed_loop"]
    concurrency: int = Field(ge=1)


class OpenLoop(Declared):
    """Arrivals that do not wait for replies: an absolute rate, or a share of the rate
    that ``k3perf load find-rate`` found.
    """

    rate_per_s: PositiveFloat | None = None
    found_rate_share_ratio: PositiveFloat | None = None

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if (self.rate_per_s is None) == (self.found_rate_share_ratio is None):
            raise ValueError("give exactly one of rate_per_s and found_rate_share_ratio")
        return self


class Constant(OpenLoop):
    """Equal gaps of ``1 / rate``."""

    kind: Literal["constant"]


class Poisson(OpenLoop):
    """Exponential gaps."""

    kind: Literal["poisson"]


class Gamma(OpenLoop):
    """Gamma gaps with mean ``1 / rate``; ``shape`` 1 is Poisson, below 1 burstier, CV
    of a gap is ``shape ** -0.5``.
    """

    kind: Literal["gamma"]
    shape: PositiveFloat


class Ramp(Declared):
    """A Poisson process whose rate goes linearly from one rate to another within
    ``duration_s`` and stays there afterwards.
    """

    kind: Literal["ramp"]
    start_rate_per_s: PositiveFloat
    end_rate_per_s: PositiveFloat
    duration_s: PositiveFloat


class TraceReplay(Declared):
    """Arrivals, lengths and prefix sharing come from a trace file (docs/load.md,
    Traces).

    ``window_start_s``/``window_duration_s`` cut the trace, ``time_scale`` divides gaps
    (2.0 is twice as fast), ``length_scale`` multiplies lengths (0.125 makes 512-token
    blocks 64 tokens long). Requests whose scaled prompt and output together exceed
    ``longest_request_tokens`` are left out and counted. ``concurrency_limit`` holds
    back arrivals beyond that many in flight.
    """

    kind: Literal["trace"]
    file: str = Field(min_length=1)
    window_start_s: float = Field(ge=0, default=0, allow_inf_nan=False)
    window_duration_s: PositiveFloat | None = None
    time_scale: PositiveFloat = 1.0
    length_scale: PositiveFloat = 1.0
    longest_request_tokens: int | None = Field(ge=2, default=None)
    concurrency_limit: int | None = Field(ge=1, default=None)


Arrival = Annotated[
    AllAtOnce | ClosedLoop | Constant | Poisson | Gamma | Ramp | TraceReplay,
    Field(discriminator="kind"),
]


class FixedLength(Declared):
    """Always ``tokens``."""

    kind: Literal["fixed"]
    tokens: TokenCount


class UniformLength(Declared):
    """Whole numbers from ``low`` to ``high``, both included."""

    kind: Literal["uniform"]
    low: TokenCount
    high: TokenCount

    @model_validator(mode="after")
    def _ordered(self) -> UniformLength:
        if self.low > self.high:
            raise ValueError("low is larger than high")
        return self


class LogNormalLength(Declared):
    """Log-normal with the given median and sigma of the logarithm, clipped to ``low``
    .. ``high``.
    """

    kind: Literal["lognormal"]
    median: TokenCount
    sigma: PositiveFloat
    low: TokenCount = 1
    high: TokenCount


class EmpiricalLength(Declared):
    """Drawn with replacement from ``values``."""

    kind: Literal["empirical"]
    values: tuple[TokenCount, ...] = Field(min_length=1)


Length = Annotated[
    FixedLength | UniformLength | LogNormalLength | EmpiricalLength, Field(discriminator="kind")
]


def shortest_tokens(length: FixedLength | UniformLength | LogNormalLength | EmpiricalLength) -> int:
    """The smallest token count that a length distribution can give."""
    if isinstance(length, FixedLength):
        return length.tokens
    if isinstance(length, EmpiricalLength):
        return min(length.values)
    return length.low


class PrefixSharing(Declared):
    """``share_ratio`` of the requests begin with one of ``groups`` prefixes of
    ``shared_tokens`` tokens.

    The prefix counts into the prompt's declared length, so every prompt must be longer
    than it.
    """

    groups: int = Field(ge=1)
    shared_tokens: TokenCount
    share_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0


class Conversation(Declared):
    """Requests form conversations of ``turns``: each prompt holds the earlier turns,
    ``think_time_s`` after the last reply.

    ``prompt_tokens`` of the workload is what each turn adds; an arrival process paces
    the conversations' first turns. In a closed loop one of the ``concurrency`` slots is
    one user, who plays a conversation to its end before starting the next.
    """

    turns: int = Field(ge=2)
    think_time_s: float = Field(ge=0, default=0.0, allow_inf_nan=False)


class Sampling(Declared):
    """Sampling parameters; greedy by default so that the work is the same every
    time.
    """

    temperature: float = Field(ge=0, default=0.0, allow_inf_nan=False)
    sequences: int = Field(ge=1, default=1)
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class ServiceLevel(Declared):
    """Bounds that a request must meet to count into goodput."""

    ttft_ms: PositiveFloat
    tpot_ms: PositiveFloat


class WorkloadSpec(Declared):
    """The requests of a cell. Seeded; expands to a plan with a digest.

    A trace brings its own lengths and prefixes: with ``arrival: {kind: trace}`` leave
    ``prompt_tokens``, ``output_tokens``, ``prefix`` and ``conversation`` out;
    ``requests`` then is an upper limit. ``repeat_prompts``: send the very same prompts
    in every round of a session (they hit the prefix cache then); by default every round
    has prompts of its own.
    """

    schema_version: Literal[1]
    name: Name
    description: str = Field(min_length=8)
    seed: int = Field(ge=0)
    requests: int | None = Field(ge=1, default=None)
    arrival: Arrival
    prompt_tokens: Length | None = None
    output_tokens: Length | None = None
    prefix: PrefixSharing | None = None
    conversation: Conversation | None = None
    sampling: Sampling = Sampling()
    service_level: ServiceLevel | None = None
    repeat_prompts: bool = False
    request_timeout_s: PositiveFloat = 120
    stall_timeout_s: PositiveFloat = 60

    @model_validator(mode="after")
    def _lengths_where_needed(self) -> Self:
        is_trace = isinstance(self.arrival, TraceReplay)
        for field in ("requests", "prompt_tokens", "output_tokens"):
            if not is_trace and getattr(self, field) is None:
                raise ValueError(f"{field} is missing; only a trace brings its own")
        if is_trace:
            for field in ("prompt_tokens", "output_tokens", "prefix", "conversation"):
                if getattr(self, field) is not None:
                    raise ValueError(f"{field} cannot be set beside a trace, which brings its own")
        return self

    @model_validator(mode="after")
    def _prefix_fits(self) -> Self:
        if (
            self.prefix
            and self.prompt_tokens
            and shortest_tokens(self.prompt_tokens) <= self.prefix.shared_tokens
        ):
            raise ValueError(
                f"prompt_tokens can be as short as {shortest_tokens(self.prompt_tokens)} tokens,"
                f" which does not hold the prefix of {self.prefix.shared_tokens} shared tokens and"
                " one of its own; lengthen the prompts or shorten the prefix"
            )
        if self.prefix and self.conversation:
            raise ValueError(
                "prefix and conversation cannot be combined; the turns of a conversation already"
                " share their beginning"
            )
        return self
