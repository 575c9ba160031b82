"""Records of requests, rounds and sessions (``docs/glossary.md`` has the words)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from k3perf.records.quality import SessionQuality


class RequestStatus(StrEnum):
    """How one request ended. Everything but OK is counted by kind and makes its round
    suspect.
    """

    OK = "ok"
    SHORT = "short"  # fewer tokens than asked, stream ended properly
    LONG = "long"  # more tokens than asked
    # the server counted other prompt tokens than were sent
    WRONG_PROMPT = "wrong_prompt"
    HTTP_STATUS = "http_status"  # a status other than 200; the number is in ``detail``
    REFUSED = "refused"
    RESET = "reset"  # connection lost while streaming
    CUT = "cut"  # stream ended without its end marker
    BAD_PAYLOAD = "bad_payload"  # invalid JSON, wrong content type, bad encoding
    NO_USAGE = "no_usage"  # token counts could not be established
    ENGINE_ERROR = "engine_error"  # an error object inside the stream
    STALLED = "stalled"  # no byte for longer than the stall limit
    TIMED_OUT = "timed_out"
    ABANDONED = (
        # the round was ended before this request was, e.g. because the engine died
        "abandoned"
    )


class RoundKind(StrEnum):
    """Warm-up rounds are recorded and reported, never judged."""

    WARM_UP = "warm_up"
    MEASURED = "measured"


class Arm(StrEnum):
    """Which side of a comparison a session serves. ``baseline`` mode has candidates
    only.
    """

    CANDIDATE = "candidate"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """One streamed chunk that carried tokens: when it was read and how many tokens it
    held.
    """

    at_ns: int
    token_count: int


@dataclass(frozen=True, slots=True)
class RequestSample:
    """What was seen of one request.

    ``scheduled_ns`` is when the plan wanted it sent, ``sent_ns`` when its first byte
    was handed to the socket; the difference is the generator's own lag. ``chunks``
    holds every chunk with at least one token, of any channel. With parallel sampling
    (``n > 1``) all sequences' chunks are in ``chunks`` and ``sequence_count`` says how
    many there were. ``distinct_token_count``: different token ids in the first
    sequence. None: the server returned no ids, or an older file.
    """

    request_index: int
    status: RequestStatus
    scheduled_ns: int
    sent_ns: int | None
    end_ns: int
    chunks: tuple[ChunkRecord, ...]
    prompt_token_count: int
    requested_output_token_count: int
    output_token_count: int
    sequence_count: int = 1
    cached_prompt_token_count: int | None = None
    detail: str = ""
    distinct_token_count: int | None = None

    @property
    def first_token_ns(self) -> int | None:
        """When the first chunk with a token was read; None if none came."""
        return self.chunks[0].at_ns if self.chunks else None

    @property
    def last_token_ns(self) -> int | None:
        """When the last chunk with a token was read; None if none came."""
        return self.chunks[-1].at_ns if self.chunks else None


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """How an engine failed: what was seen, the root cause from its log (empty if
    unknown), the log's path and last lines.
    """

    message: str
    cause: str = ""
    log_path: str = ""
    log_lines: Annotated[tuple[str, ...], Field(max_length=1_000)] = ()


@dataclass(frozen=True, slots=True)
class InvalidReason:
    """Why a round or session cannot be trusted: the rule's name, the reading that broke
    it, the limit, one sentence.

    ``failure``: the details for a person at the terminal, where an engine failed.
    """

    rule: str
    text: str
    reading: float | None = None
    limit: float | None = None
    failure: EngineFailure | None = None


@dataclass(frozen=True, slots=True)
class TelemetryReading:
    """One named reading over a round's window, e.g. ``sm_clock_min_mhz``; ``value``
    None when the source could not be read.
    """

    name: str
    value: float | None
    source: str


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One pass of the plan in a live session.

    ``pair_index`` joins a candidate's and a reference's round that were measured next
    to each other (None in baseline mode). ``counters`` are differences of the server's
    own counters over the round, keyed by their Prometheus name.
    """

    round_index: int
    kind: RoundKind
    start_ns: int
    end_ns: int
    samples: tuple[RequestSample, ...]
    pair_index: int | None = None
    client_lag_p99_ns: int | None = None
    client_cpu_ns: int | None = None
    counters: dict[str, float] = field(default_factory=dict)
    telemetry: tuple[TelemetryReading, ...] = ()
    invalid_reasons: tuple[InvalidReason, ...] = ()

    @property
    def valid(self) -> bool:
        """Measured without a broken rule."""
        return not self.invalid_reasons


@dataclass(frozen=True, slots=True)
class StageTiming:
    """One stage of an engine's start: import, load, profile, compile, capture,
    ready.
    """

    stage: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory parts of one worker rank in bytes. None: this vLLM release or platform
    does not offer it.

    ``rank`` counts over all data-parallel engines: engine's index x ranks of an engine
    + rank in the engine.
    """

    rank: int
    weights_bytes: int | None = None
    kv_cache_bytes: int | None = None
    peak_activation_bytes: int | None = None
    graph_pool_estimate_bytes: int | None = None
    graph_pool_bytes: int | None = None
    non_torch_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    resident_bytes: int | None = None
    peak_resident_bytes: int | None = None
    device_used_bytes: int | None = None
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What served: versions and hardware, for provenance and for the hardware-class
    check.
    """

    vllm_version: str
    python_version: str
    torch_version: str
    hardware_class: str
    device_names: tuple[str, ...]
    driver_version: str | None
    host: str


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One engine process from start to end, for one (target, config, workload).

    ``pair_id`` joins a candidate's session with the reference's that was measured
    with it (None in baseline mode). ``imported_ahead``: the process had imported vLLM
    before its turn, so ``stages`` are shorter than those of a start from nothing.
    ``environment``: what the machine brings (``metrics.environment``); empty in older
    recordings. ``quality``: the answers compared with the reference config's; None
    where the target has no ``quality``.
    """

    session_id: str
    target: str
    config: str
    workload: str
    plan_digest: str
    arm: Arm
    started_at_utc: str
    identity: EngineIdentity
    resolved_config: dict[str, Any]
    stages: tuple[StageTiming, ...]
    memory: tuple[RankMemory, ...]
    rounds: tuple[RoundRecord, ...]
    kv_capacity_tokens: int | None = None
    kv_max_concurrency_ratio: float | None = None
    engine_peak_resident_bytes: int | None = None
    compile_cache_warm: bool | None = None
    imported_ahead: bool = False
    invalid_reasons: tuple[InvalidReason, ...] = ()
    injected: str = ""
    pair_id: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    quality: SessionQuality | None = None

    @property
    def valid(self) -> bool:
        """The session as a whole can be used; single rounds may still be invalid."""
        return not self.invalid_reasons
