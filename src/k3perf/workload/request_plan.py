"""A workload spec to a seeded plan: every request's prompt, output length and send
time, under one digest.

Pure but for reading the named trace file. Nothing here knows HTTP, an engine or a
clock.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from k3perf.config.workload_spec import ClosedLoop, TraceReplay, WorkloadSpec
from k3perf.errors import UsageError
from k3perf.units import s_to_ns
from k3perf.workload.arrivals import send_offsets_ns
from k3perf.workload.draws import CONTENT_VERSION, Segment, TokenSource, draw_lengths, permutation
from k3perf.workload.trace import TraceUse, read_trace, scale_trace


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of a plan.

    ``offset_ns`` is the send time from the round's start; None where the send follows a
    reply: in a closed loop, and for the later turns of a conversation, which start
    ``think_time_ns`` after the reply to ``previous_index``.
    """

    index: int
    segments: tuple[Segment, ...]
    output_token_count: int
    offset_ns: int | None
    source: TokenSource
    previous_index: int | None = None
    think_time_ns: int = 0

    @property
    def prompt_token_count(self) -> int:
        """Tokens of the prompt."""
        return sum(segment.token_count for segment in self.segments)

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The prompt, drawn at each call. Replies of earlier turns are stand-ins of the
        right length.
        """
        return tuple(token for segment in self.segments for token in self.source.token_ids(segment))

    def prompt_with_replies(self, replies: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
        """The prompt with the real replies to earlier requests where ``replies`` has
        them at their planned length.
        """
        tokens: list[int] = []
        for segment in self.segments:
            reply = replies.get(segment.reply_to) if segment.reply_to is not None else None
            usable = reply is not None and len(reply) == segment.token_count
            tokens.extend(reply if usable and reply is not None else self.source.token_ids(segment))
        return tuple(tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every request of one round. ``concurrency`` bounds the requests in flight; None
    means unbounded.

    ``digest`` is a SHA-256 over all that decides the work: lengths, send times, content
    keys and seed, vocabulary, sampling, concurrency, and the service level that goodput
    is counted under. It is part of every baseline's key. Names, descriptions and
    time-outs are not in it.
    """

    spec: WorkloadSpec
    requests: tuple[PlannedRequest, ...]
    concurrency: int | None
    digest: str
    source: TokenSource
    trace: TraceUse | None = None

    @property
    def round_index(self) -> int:
        """Which round's content the prompts hold."""
        return self.source.round_index

    def for_round(self, round_index: int) -> Plan:
        """The same lengths, send times and sharing with the content of another round;
        the digest stays.

        With ``repeat_prompts`` in the spec every round has the content of round 0.
        """
        if self.spec.repeat_prompts or round_index == self.round_index:
            return self
        source = replace(self.source, round_index=round_index)
        return replace(
            self,
            source=source,
            requests=tuple(replace(request, source=source) for request in self.requests),
        )


def expand(
    spec: WorkloadSpec,
    *,
    vocabulary_size: int,
    reserved_token_ids: int = 3,
    trace_directory: Path | None = None,
    trace_file: Path | None = None,
    found_rate_per_s: float | None = None,
) -> Plan:
    """Expand a workload; equal arguments give equal plans on every machine.

    ``reserved_token_ids``: ids below it are never in a prompt (padding, begin, end).
    ``trace_directory``: where a relative trace ``file`` is looked up; ``trace_file``: a
    trace to replay instead of it. ``found_rate_per_s``: the rate that
    ``found_rate_share_ratio`` is a share of. Raises UsageError (ConfigFileError for a
    trace file) when the workload cannot be expanded.
    """
    source = TokenSource(spec.seed, vocabulary_size, reserved_token_ids)
    trace: TraceUse | None = None
    concurrency: int | None = None
    if isinstance(spec.arrival, TraceReplay):
        requests, trace = _trace_requests(
            spec,
            spec.arrival,
            source,
            trace_file or (trace_directory or Path()) / spec.arrival.file,
        )
        concurrency = spec.arrival.concurrency_limit
    elif spec.conversation is not None:
        requests = _conversation_requests(spec, source, found_rate_per_s)
    else:
        requests = _independent_requests(spec, source, found_rate_per_s)
    if isinstance(spec.arrival, ClosedLoop):
        concurrency = spec.arrival.concurrency
    return Plan(
        spec, requests, concurrency, _digest(spec, requests, concurrency, source), source, trace
    )


def _trace_requests(
    spec: WorkloadSpec, arrival: TraceReplay, source: TokenSource, path: Path
) -> tuple[tuple[PlannedRequest, ...], TraceUse]:
    scaled, use = scale_trace(arrival, read_trace(path), maximum_requests=spec.requests)
    if not scaled:
        raise UsageError(
            f"workload {spec.name}: nothing of the trace {path} is left: {use.outside_window_count}"
            f" requests are outside the window, {use.too_long_count} are too long; widen the"
            " window, lower length_scale or raise longest_request_tokens"
        )
    requests = tuple(
        PlannedRequest(
            index, request.segments, request.output_token_count, request.offset_ns, source
        )
        for index, request in enumerate(scaled)
    )
    return requests, use


def _lengths(spec: WorkloadSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    assert spec.requests and spec.prompt_tokens and spec.output_tokens  # noqa: S101, PT018 - the model's validator holds this
    prompts = draw_lengths(spec.prompt_tokens, seed=spec.seed, label="prompt", count=spec.requests)
    outputs = draw_lengths(spec.output_tokens, seed=spec.seed, label="output", count=spec.requests)
    return prompts, outputs


def _prefix_groups(spec: WorkloadSpec, count: int) -> dict[int, int]:
    """Request index to prefix group, for exactly the stated share of the requests,
    groups as even as can be.
    """
    if spec.prefix is None:
        return {}
    shared_count = round(spec.prefix.share_ratio * count)
    chosen = permutation(spec.seed, "prefix", count)[:shared_count]
    return {index: position % spec.prefix.groups for position, index in enumerate(chosen)}


def _independent_requests(
    spec: WorkloadSpec, source: TokenSource, found_rate_per_s: float | None
) -> tuple[PlannedRequest, ...]:
    assert not isinstance(spec.arrival, TraceReplay)  # noqa: S101 - expand has branched on it
    prompts, outputs = _lengths(spec)
    offsets = send_offsets_ns(
        spec.arrival, seed=spec.seed, count=len(prompts), found_rate_per_s=found_rate_per_s
    )
    groups = _prefix_groups(spec, len(prompts))
    requests = []
    for index, (prompt, output, offset_ns) in enumerate(
        zip(prompts, outputs, offsets, strict=True)
    ):
        segments: tuple[Segment, ...] = (Segment(f"own:{index}", prompt),)
        if spec.prefix is not None and index in groups:
            shared = Segment(f"prefix:{groups[index]}", spec.prefix.shared_tokens)
            segments = (shared, Segment(f"own:{index}", prompt - spec.prefix.shared_tokens))
        requests.append(PlannedRequest(index, segments, output, offset_ns, source))
    return tuple(requests)


def _conversation_requests(
    spec: WorkloadSpec, source: TokenSource, found_rate_per_s: float | None
) -> tuple[PlannedRequest, ...]:
    assert spec.conversation is not None and not isinstance(spec.arrival, TraceReplay)  # noqa: S101, PT018 - expand has branched on it
    prompts, outputs = _lengths(spec)
    turns = spec.conversation.turns
    starts = send_offsets_ns(
        spec.arrival,
        seed=spec.seed,
        count=-(-len(prompts) // turns),
        found_rate_per_s=found_rate_per_s,
    )
    think_time_ns = s_to_ns(spec.conversation.think_time_s)
    requests: list[PlannedRequest] = []
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        own = Segment(f"own:{index}", prompt)
        if index % turns == 0:
            requests.append(PlannedRequest(index, (own,), output, starts[index // turns], source))
            continue
        before = requests[index - 1]
        reply = Segment(f"reply:{before.index}", before.output_token_count, reply_to=before.index)
        segments = (*before.segments, reply, own)
        requests.append(
            PlannedRequest(index, segments, output, None, source, before.index, think_time_ns)
        )
    return tuple(requests)


def work_digest(spec: WorkloadSpec) -> str:
    """SHA-256 of what the requests of a workload without a trace ask for, whenever they
    arrive: the work that a maximum sustainable rate is valid for.
    """
    asked = spec.model_dump(
        mode="json",
        include={
            "prompt_tokens",
            "output_tokens",
            "prefix",
            "conversation",
            "sampling",
            "repeat_prompts",
        },
    )
    encoded = json.dumps(
        {"content_version": CONTENT_VERSION, **asked}, sort_keys=True, separators=(",", ":")
    ).encode()
    return hashlib.sha256(encoded).hexdigest()


def _digest(
    spec: WorkloadSpec,
    requests: tuple[PlannedRequest, ...],
    concurrency: int | None,
    source: TokenSource,
) -> str:
    work = {
        "content_version": CONTENT_VERSION,
        "seed": source.seed,
        "vocabulary_size": source.vocabulary_size,
        "reserved_token_ids": source.reserved_token_ids,
        "repeat_prompts": spec.repeat_prompts,
        "sampling": spec.sampling.model_dump(mode="json"),
        "service_level": spec.service_level.model_dump(mode="json") if spec.service_level else None,
        "concurrency": concurrency,
        "requests": [
            [
                [
                    [segment.key, segment.token_count, segment.reply_to]
                    for segment in request.segments
                ],
                request.output_token_count,
                request.offset_ns,
                request.previous_index,
                request.think_time_ns,
            ]
            for request in requests
        ],
    }
    encoded = json.dumps(work, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(encoded).hexdigest()
