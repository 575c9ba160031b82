"""The plan of a load run: synthetic lengths, or the conversations of a prompt file.
Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from k3perf.config.workload_spec import TraceReplay, WorkloadSpec
from k3perf.units import s_to_ns
from k3perf.workload.arrivals import send_offsets_ns
from k3perf.workload.draws import TokenSource
from k3perf.workload.request_plan import Plan, PlannedRequest
from k3perf.workload.text_prompts import PromptFile, PromptText


def with_arrival(spec: WorkloadSpec, arrival: Mapping[str, Any], requests: int) -> WorkloadSpec:
    """The workload with another arrival process and number of requests."""
    document = spec.model_dump(mode="json", exclude_none=True)
    return WorkloadSpec.model_validate(document | {"arrival": dict(arrival), "requests": requests})


def plan_of_prompts(
    spec: WorkloadSpec,
    prompts: PromptFile,
    *,
    first_conversation: int = 0,
    longest_output_tokens: int,
    think_time_s: float = 0.0,
) -> tuple[Plan, tuple[PromptText, ...]]:
    """Whole conversations of the file, in its order from ``first_conversation`` on,
    until ``spec.requests`` requests are planned. Then the text of each request.

    The arrival process paces the conversations, and a later turn follows the reply
    before it.
    """
    assert not isinstance(spec.arrival, TraceReplay)  # noqa: S101 - a trace has its own lengths
    wanted = spec.requests or sum(map(len, prompts.conversations))
    chosen: list[tuple[PromptText, ...]] = []
    while sum(map(len, chosen)) < wanted:
        position = (first_conversation + len(chosen)) % len(prompts.conversations)
        left = wanted - sum(map(len, chosen))
        chosen.append(prompts.conversations[position][:left])
    offsets = send_offsets_ns(spec.arrival, seed=spec.seed, count=len(chosen))
    source = TokenSource(spec.seed, 1 << 16, 3)
    requests: list[PlannedRequest] = []
    texts: list[PromptText] = []
    for conversation, offset_ns in zip(chosen, offsets, strict=True):
        for turn, text in enumerate(conversation):
            index = len(requests)
            output = text.output_token_count or longest_output_tokens
            requests.append(
                PlannedRequest(
                    index=index,
                    segments=(),
                    output_token_count=min(output, longest_output_tokens),
                    offset_ns=None if turn else offset_ns,
                    source=source,
                    previous_index=index - 1 if turn else None,
                    think_time_ns=s_to_ns(think_time_s) if turn else 0,
                )
            )
            texts.append(text)
    concurrency = getattr(spec.arrival, "concurrency", None)
    digest = _digest(spec, tuple(requests), tuple(texts), concurrency)
    return Plan(spec, tuple(requests), concurrency, digest, source), tuple(texts)


def turn_of_requests(plan: Plan) -> dict[int, int]:
    """Request index to its turn, from 1."""
    turns: dict[int, int] = {}
    for request in plan.requests:
        previous = request.previous_index
        turns[request.index] = 1 if previous is None else turns[previous] + 1
    return turns


def _digest(
    spec: WorkloadSpec,
    requests: tuple[PlannedRequest, ...],
    texts: tuple[PromptText, ...],
    concurrency: int | None,
) -> str:
    work = {
        "sampling": spec.sampling.model_dump(mode="json"),
        "concurrency": concurrency,
        "requests": [
            [
                [[message.role, message.content] for message in text.messages],
                request.output_token_count,
                request.offset_ns,
                request.previous_index,
                request.think_time_ns,
            ]
            for request, text in zip(requests, texts, strict=True)
        ],
    }
    return hashlib.sha256(orjson.dumps(work, option=orjson.OPT_SORT_KEYS)).hexdigest()
