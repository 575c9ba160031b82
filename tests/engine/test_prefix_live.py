"""Known shared prefixes on real CPU engines reach their computed hits, around block
edges, in parallel and with several sequences.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from k3perf.telemetry.counters import counter_difference
from tests.engine.live_engine import Live, StartLive
from tests.engine.prefix_expectation import (
    PrefixExpectation,
    boundary_lengths,
    expect_parallel_sampling,
    expect_repeat,
    expect_shared_prefix,
)

pytestmark = pytest.mark.engine

TARGETS = ("cpu-gqa", "cpu-hybrid")
_seeds = count(1)


@pytest.fixture(scope="module", params=TARGETS)
def live(request: pytest.FixtureRequest, start_live: StartLive) -> Live:
    return start_live(request.param, kv_cache_dtype="auto")


def prompt(length: int) -> list[int]:
    """Token ids that no earlier prompt of this run began with."""
    generator = random.Random(next(_seeds))
    return [generator.randrange(10, 4000) for _ in range(length)]


def block_of(live: Live) -> int:
    assert live.probe.block_size_tokens is not None
    return live.probe.block_size_tokens


def seen(
    live: Live, *prompts: list[int], sequences: int = 1, at_once: bool = False
) -> PrefixExpectation:
    """What the server counts for these prompts, sent in turn or all at once into an
    emptied cache.
    """
    live.probe.reset_prefix_cache()
    before = live.probe.counters()
    with ThreadPoolExecutor(max_workers=len(prompts) if at_once else 1) as pool:
        list(pool.map(lambda tokens: live.complete(tokens, 1, sequences=sequences), prompts))
    asked = sequences * sum(map(len, prompts))
    grown = counter_difference(
        before, live.probe.counters_after(before, "vllm:prompt_tokens_total", asked)
    ).values
    return PrefixExpectation(
        int(grown["vllm:prefix_cache_hits_total"]), int(grown["vllm:prefix_cache_queries_total"])
    )


def test_lengths_around_a_blocks_edge(live: Live) -> None:
    block = block_of(live)
    for length in (*boundary_lengths(block), *boundary_lengths(2 * block)):
        tokens = prompt(length)
        assert seen(live, tokens, tokens, tokens) == expect_repeat(
            length, 3, block, keeps_state=live.target == "cpu-hybrid"
        ), length


def test_a_known_shared_prefix_reaches_its_hits(live: Live) -> None:
    block = block_of(live)
    for shared in (block - 1, block, 2 * block + 10):
        start = prompt(shared)
        prompts = [start + prompt(length) for length in (700, 500, 600)]
        expected = expect_shared_prefix(
            [len(tokens) for tokens in prompts],
            shared,
            block,
            keeps_state=live.target == "cpu-hybrid",
        )
        assert seen(live, *prompts) == expected, shared


def test_parallel_sampling_shares_the_prompt(live: Live) -> None:
    length = 2 * block_of(live) + 5
    assert seen(live, prompt(length), sequences=4) == expect_parallel_sampling(
        length, 4, block_of(live)
    )


def test_partial_hits_under_concurrency(live: Live) -> None:
    """The prefix is cached first; eight different prompts then use it at once and must
    all find it, and none may find more.
    """
    block = block_of(live)
    start = prompt(block + 1)
    live.probe.reset_prefix_cache()
    warm = [start + prompt(50) for _ in range(2)]
    for tokens in warm:
        live.complete(tokens, 1)
    before = live.probe.counters()
    tails = [prompt(90 + index) for index in range(8)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda tail: live.complete(start + tail, 4), tails))
    asked = sum(len(start) + len(tail) for tail in tails)
    grown = counter_difference(
        before, live.probe.counters_after(before, "vllm:prompt_tokens_total", asked)
    ).values
    assert grown["vllm:prefix_cache_hits_total"] == 8 * block
    assert grown["vllm:prompt_tokens_by_source_total{source=local_cache_hit}"] == 8 * block


def test_a_requested_block_size_that_was_overridden_is_told(start_live: StartLive) -> None:
    live = start_live("cpu-hybrid", kv_cache_dtype="auto", block_size=64)
    assert block_of(live) == 320  # what `memory plan` says of 64 asked for
    assert live.probe.resolved_config()["cache_config.block_size"] == block_of(live)
