from __future__ import annotations

import math

import pytest

from k3perf.capacity.cache_layout import CacheLayout, CacheRequest, cache_layout
from k3perf.capacity.growth import UsePoint, check_growth
from k3perf.capacity.ranks import Ranks
from k3perf.capacity.rules import platform_rules
from k3perf.capacity.shape import model_shape
from tests.unit.capacity.proxies import shipped

STATE_BLOCKS = 6  # three linear groups, two blocks each with prefix caching
CONTEXTS = (500, 1000, 2000, 4000)


@pytest.fixture(scope="module")
def layout() -> CacheLayout:
    request = CacheRequest(maximum_context_tokens=4096)
    return cache_layout(model_shape(shipped("cpu-hybrid")), request, Ranks(), platform_rules("cpu"))


def points(block: float, state: float, sequences: int = 4) -> list[UsePoint]:
    return [
        UsePoint(context, sequences, sequences * (math.ceil(context / block) + state))
        for context in CONTEXTS
    ]


def test_use_as_planned_has_no_problem(layout: CacheLayout) -> None:
    seen = check_growth(
        points(layout.block_size_tokens, STATE_BLOCKS), layout, linear_group_blocks=STATE_BLOCKS
    )
    assert seen.problems == ()
    assert seen.slope_blocks_per_token == pytest.approx(1 / 384, rel=0.1)


def test_tokens_that_cost_more_are_seen(layout: CacheLayout) -> None:
    seen = check_growth(
        points(layout.block_size_tokens / 1.4, STATE_BLOCKS),
        layout,
        linear_group_blocks=STATE_BLOCKS,
    )
    assert "a token takes" in seen.problems[0]


def test_state_that_costs_more_is_seen(layout: CacheLayout) -> None:
    seen = check_growth(
        points(layout.block_size_tokens, STATE_BLOCKS + 3), layout, linear_group_blocks=STATE_BLOCKS
    )
    assert any("a sequence of" in problem for problem in seen.problems)


def test_state_that_grows_with_the_context_is_seen(layout: CacheLayout) -> None:
    growing = [
        UsePoint(context, 1, math.ceil(context / 384) + STATE_BLOCKS + (context / 1000) ** 2)
        for context in CONTEXTS
    ]
    assert check_growth(growing, layout, linear_group_blocks=STATE_BLOCKS).problems


def test_one_context_length_is_not_enough(layout: CacheLayout) -> None:
    with pytest.raises(ValueError, match="two different context lengths"):
        check_growth([UsePoint(100, 1, 1), UsePoint(100, 2, 2)], layout, linear_group_blocks=0)
