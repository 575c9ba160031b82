"""Frozen models of a workload: arrival process, lengths, prefix sharing, sampling, SLO. Declared here, expanded in ``k3perf.workload``."""

from __future__ import annotations

from typing import Annotated, Literal

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


class Constant(Declared):
    """Equal gaps of ``1 / rate_per_s``."""

    kind: Literal["constant"]
    rate_per_s: PositiveFloat


class Poisson(Declared):
    """Exponential gaps."""

    kind: Literal["poisson"]
    rate_per_s: PositiveFloat


class Gamma(Declared):
    """Gamma gaps with mean ``1 / rate_per_s``; ``shape`` 1 is Poisson, below 1 burstier, CV of a gap is ``shape ** -0.5``."""

    kind: Literal["gamma"]
    rate_per_s: PositiveFloat
    shape: PositiveFloat


class Ramp(Declared):
    """A Poisson process whose rate goes linearly from one rate to another over the requests' span."""

    kind: Literal["ramp"]
    start_rate_per_s: PositiveFloat
    end_rate_per_s: PositiveFloat
    duration_s: PositiveFloat


class TraceReplay(Declared):
    """Arrivals, lengths and prefix sharing come from a trace file (Mooncake's JSONL form).

    ``window_start_s``/``window_duration_s`` cut the trace, ``time_scale`` divides gaps (2.0 is twice as fast),
    ``length_scale`` multiplies lengths (0.125 makes 512-token blocks 64 tokens long).
    """

    kind: Literal["trace"]
    file: str
    window_start_s: float = Field(ge=0, default=0)
    window_duration_s: PositiveFloat | None = None
    maximum_requests: int | None = Field(ge=1, default=None)
    time_scale: PositiveFloat = 1.0
    length_scale: PositiveFloat = 1.0
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
    """Log-normal with the given median and sigma of the logarithm, clipped to ``low`` .. ``high``."""

    kind: Literal["lognormal"]
    median: TokenCount
    sigma: PositiveFloat
    low: TokenCount = 1
    high: TokenCount


class EmpiricalLength(Declared):
    """Drawn with replacement from ``values``."""

    kind: Literal["empirical"]
    values: tuple[TokenCount, ...] = Field(min_length=1)


Length = Annotated[FixedLength | UniformLength | LogNormalLength | EmpiricalLength, Field(discriminator="kind")]


class PrefixSharing(Declared):
    """``share_ratio`` of the requests begin with one of ``groups`` prefixes of ``shared_tokens`` tokens."""

    groups: int = Field(ge=1)
    shared_tokens: TokenCount
    share_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0


class Conversation(Declared):
    """Requests form conversations of ``turns``: each prompt holds the earlier turns, ``think_time_s`` after the last reply."""

    turns: int = Field(ge=2)
    think_time_s: float = Field(ge=0, default=0.0)


class Sampling(Declared):
    """Sampling parameters; greedy by default so that the work is the same every time."""

    temperature: float = Field(ge=0, default=0.0)
    sequences: int = Field(ge=1, default=1)
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class ServiceLevel(Declared):
    """Bounds that a request must meet to count into goodput."""

    ttft_ms: PositiveFloat
    tpot_ms: PositiveFloat


class WorkloadSpec(Declared):
    """The requests of a cell. Seeded; expands to a plan with a digest."""

    schema_version: Literal[1]
    name: Name
    description: str = Field(min_length=8)
    seed: int = Field(ge=0)
    requests: int = Field(ge=1)
    arrival: Arrival
    prompt_tokens: Length
    output_tokens: Length
    prefix: PrefixSharing | None = None
    conversation: Conversation | None = None
    sampling: Sampling = Sampling()
    service_level: ServiceLevel | None = None
    request_timeout_s: PositiveFloat = 120
    stall_timeout_s: PositiveFloat = 60
