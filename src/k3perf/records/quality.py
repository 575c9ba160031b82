"""What was seen of an engine's answers on fixed prompts, and what a session's quality
came to.

A book holds log-probabilities in nats. It is made of one engine and compared with the
book of the reference config (``metrics.quality``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """The log-probabilities of successive tokens of one prompt.

    ``token_ids[i]`` stands at position ``first_position + i`` of prompt
    ``prompt_index``, and ``logprobs[i]`` is its log-probability given all tokens before
    it. ``top_ids[i]`` and ``top_logprobs[i]`` are the most probable tokens there, the
    most probable first, always as many.
    """

    prompt_index: int
    first_position: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_ids: tuple[tuple[int, ...], ...]
    top_logprobs: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class NeedleCount:
    """Needle tokens that were found again, of those hidden."""

    found: int
    hidden: int


@dataclass(frozen=True, slots=True)
class QualityBook:
    """One engine's answers to the quality prompts.

    ``prefill``: every prompt scored as a prompt. ``decode``: stretches of the same
    prompts, decoded token by token along the prompt (forced). ``cached``: the same
    stretches again, over a prefix that was in the cache. ``alone``: some of the
    stretches with no other request in the batch. ``greedy``: free continuations. A part
    that could not be had is empty, and ``absent`` has the reason under its name.

    ``key``: digest of what the answers depend on. ``context_tokens``: length of the
    longest prompt.
    """

    key: str
    context_tokens: Annotated[int, Field(ge=1)]
    top_k: Annotated[int, Field(ge=1)]
    prefill: tuple[ScoredTokens, ...]
    decode: tuple[ScoredTokens, ...] = ()
    cached: tuple[ScoredTokens, ...] = ()
    alone: tuple[ScoredTokens, ...] = ()
    greedy: tuple[tuple[int, ...], ...] = ()
    needles: NeedleCount | None = None
    absent: dict[str, str] = field(default_factory=dict)
    duration_s: float = 0.0
    schema_version: Literal[1] = field(default=1, kw_only=True)


@dataclass(frozen=True, slots=True)
class QualityValue:
    """One quality metric of a session. ``value`` None: not measured, for ``reason``.
    ``n``: tokens or answers that it rests on.
    """

    value: float | None
    n: Annotated[int, Field(ge=0)]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SessionQuality:
    """A session's quality metrics by name.

    ``reference``: which engine it was compared with. ``duration_s``: what the pass took
    of the cell's time, the reference's share included where it was measured for it.
    ``problems``: why the answers cannot be trusted, one sentence each. They make the
    session invalid.
    """

    values: dict[str, QualityValue]
    reference: str
    duration_s: float
    problems: tuple[str, ...] = ()
