"""Frozen models of a workload: arrival process, lengths, prefix sharing, sampling, SLO.
Declared here, expanded in ``k3perf.workload``.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from k3perf.config.declared import Declared, Name, PositiveFloat

TokenCount = Annotated[int, Field(ge=1)]


class AllAtOnce(Declared):
    """Every request is sent at time zero."""

    kind: Literal["all_at_once"]
    """Selects this form."""


class ClosedLoop(Declared):
    """A fixed number of requests in flight."""

    kind: Literal["closed_loop"]
    """Selects this form."""
    concurrency: int = Field(ge=1)
    """Requests in flight. Each completed request starts the next."""


class OpenLoop(Declared):
    """Arrivals that do not wait for replies, at exactly one of two rates."""

    rate_per_s: PositiveFloat | None = None
    """Requests per second."""
    found_rate_share_ratio: PositiveFloat | None = None
    """Share of the maximum sustainable rate that `k3perf load find-rate` stored for
    the target.
    """

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if (self.rate_per_s is None) == (self.found_rate_share_ratio is None):
            raise ValueError("give exactly one of rate_per_s and found_rate_share_ratio")
        return self


class Constant(OpenLoop):
    """Equal gaps of ``1 / rate``."""

    kind: Literal["constant"]
    """Selects this form."""


class Poisson(OpenLoop):
    """Exponential gaps."""

    kind: Literal["poisson"]
    """Selects this form."""


class Gamma(OpenLoop):
    """Gamma gaps with mean ``1 / rate``."""

    kind: Literal["gamma"]
    """Selects this form."""
    shape: PositiveFloat
    """1 is Poisson, below 1 is burstier. The gaps' coefficient of variation is
    `shape ** -0.5`.
    """


class Ramp(Declared):
    """A Poisson process whose rate changes linearly and then stays."""

    kind: Literal["ramp"]
    """Selects this form."""
    start_rate_per_s: PositiveFloat
    """Requests per second at the start."""
    end_rate_per_s: PositiveFloat
    """Requests per second at the end of the ramp and after it."""
    duration_s: PositiveFloat
    """Seconds from one rate to the other."""


class TraceReplay(Declared):
    """Arrivals, lengths and prefix sharing come from a trace file (docs/load.md)."""

    kind: Literal["trace"]
    """Selects this form."""
    file: str = Field(min_length=1)
    """Name of the trace in the suite's `traces` directory."""
    window_start_s: float = Field(ge=0, default=0, allow_inf_nan=False)
    """Seconds of the trace to skip."""
    window_duration_s: PositiveFloat | None = None
    """Seconds of the trace to play. Empty: to its end."""
    time_scale: PositiveFloat = 1.0
    """Divides the gaps: 2.0 is twice as fast."""
    length_scale: PositiveFloat = 1.0
    """Multiplies lengths: 0.125 makes blocks of 512 tokens 64 tokens long."""
    longest_request_tokens: int | None = Field(ge=2, default=None)
    """Requests with more tokens, prompt and output together, are excluded and
    counted. The scaled lengths count.
    """
    concurrency_limit: int | None = Field(ge=1, default=None)
    """Hold back arrivals beyond this many in flight."""


Arrival = Annotated[
    AllAtOnce | ClosedLoop | Constant | Poisson | Gamma | Ramp | TraceReplay,
    Field(discriminator="kind"),
]


class FixedLength(Declared):
    """Always the same length."""

    kind: Literal["fixed"]
    """Selects this form."""
    tokens: TokenCount
    """The length in tokens."""


class UniformLength(Declared):
    """Whole numbers, each as likely as the other."""

    kind: Literal["uniform"]
    """Selects this form."""
    low: TokenCount
    """Shortest length in tokens."""
    high: TokenCount
    """Longest length in tokens."""

    @model_validator(mode="after")
    def _ordered(self) -> UniformLength:
        if self.low > self.high:
            raise ValueError("low is larger than high")
        return self


class LogNormalLength(Declared):
    """Log-normal lengths, clipped."""

    kind: Literal["lognormal"]
    """Selects this form."""
    median: TokenCount
    """Median in tokens, before clipping."""
    sigma: PositiveFloat
    """Standard deviation of the logarithm."""
    low: TokenCount = 1
    """Shortest length in tokens."""
    high: TokenCount
    """Longest length in tokens."""


class EmpiricalLength(Declared):
    """Lengths drawn from a list, with replacement."""

    kind: Literal["empirical"]
    """Selects this form."""
    values: tuple[TokenCount, ...] = Field(min_length=1)
    """The lengths in tokens."""


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
    """Requests that begin with one of a few shared prefixes."""

    groups: int = Field(ge=1)
    """How many prefixes there are."""
    shared_tokens: TokenCount
    """Tokens of each prefix. They count into the prompt's length, so every prompt
    must be longer.
    """
    share_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the requests that begin with a prefix."""


class Conversation(Declared):
    """Requests form conversations: each prompt holds the earlier turns.

    The workload's ``prompt_tokens`` is what each turn adds. An arrival process paces
    the first turns. In a closed loop each slot is one user, who plays a conversation to
    its end before starting the next.
    """

    turns: int = Field(ge=2)
    """Turns of each conversation."""
    think_time_s: float = Field(ge=0, default=0.0, allow_inf_nan=False)
    """Seconds from a reply to the next turn."""


class Sampling(Declared):
    """Sampling parameters. Greedy by default, so that the work is always the same."""

    temperature: float = Field(ge=0, default=0.0, allow_inf_nan=False)
    """0 is greedy."""
    sequences: int = Field(ge=1, default=1)
    """Completions for each prompt (`n`)."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: probability mass to sample from."""


class ServiceLevel(Declared):
    """Bounds that a request must meet to count into goodput."""

    ttft_ms: PositiveFloat
    """Longest time to first token, in milliseconds."""
    tpot_ms: PositiveFloat
    """Longest mean time per output token, in milliseconds."""


class WorkloadSpec(Declared):
    """The requests of a cell, expanded to a plan with a digest.

    A trace has its own lengths and prefixes: with ``arrival: {kind: trace}`` omit
    ``prompt_tokens``, ``output_tokens``, ``prefix`` and ``conversation``.
    """

    schema_version: Literal[1]
    """Version of this file's format."""
    name: Name
    """The workload's name, also in test ids."""
    description: str = Field(min_length=8)
    """What the workload shows, in a sentence."""
    seed: int = Field(ge=0)
    """Seed of all draws. Another seed makes another plan."""
    requests: int | None = Field(ge=1, default=None)
    """Requests of one round. With a trace an upper limit."""
    arrival: Arrival
    """When requests are sent."""
    prompt_tokens: Length | None = None
    """Lengths of the prompts."""
    output_tokens: Length | None = None
    """Lengths of the outputs. The server must produce exactly these."""
    prefix: PrefixSharing | None = None
    """Prefixes that prompts share."""
    conversation: Conversation | None = None
    """Turns of conversations, instead of single requests."""
    sampling: Sampling = Sampling()
    """How the server samples."""
    service_level: ServiceLevel | None = None
    """Bounds for goodput and for the maximum sustainable rate."""
    repeat_prompts: bool = False
    """Send the same prompts in every round of a session, which then hit the prefix
    cache. By default each round has different ones.
    """
    request_timeout_s: PositiveFloat = 120
    """Seconds after which a request fails."""
    stall_timeout_s: PositiveFloat = 60
    """Seconds without a byte after which a request fails."""

    @model_validator(mode="after")
    def _lengths_where_needed(self) -> Self:
        is_trace = isinstance(self.arrival, TraceReplay)
        for field in ("requests", "prompt_tokens", "output_tokens"):
            if not is_trace and getattr(self, field) is None:
                raise ValueError(f"{field} is missing; only a trace brings its own")
        if is_trace:
            for field in ("prompt_tokens", "output_tokens", "prefix", "conversation"):
                if getattr(self, field) is not None:
                    raise ValueError(f"{field} cannot be set with a trace, which brings its own")
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
                " one separate token; lengthen the prompts or shorten the prefix"
            )
        if self.prefix and self.conversation:
            raise ValueError(
                "prefix and conversation cannot be combined; the turns of a conversation already"
                " share their beginning"
            )
        return self
