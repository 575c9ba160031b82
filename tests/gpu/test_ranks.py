"""Per-rank spread: the worst rank, never hidden by a rank that says nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3perf.metrics.ranks import balance_ratio, rank_report, scaling_efficiency_ratio
from k3perf.samples import RankMemory


def test_worst_is_the_largest_but_for_the_kv_cache() -> None:
    report = rank_report((RankMemory(0, weights_bytes=100, kv_cache_bytes=50), RankMemory(1, weights_bytes=120, kv_cache_bytes=40)))
    weights, kv = report.spreads["weights_bytes"], report.spreads["kv_cache_bytes"]
    assert (weights.worst_rank, weights.worst_bytes) == (1, 120)
    assert (kv.worst_rank, kv.worst_bytes) == (1, 40)
    assert weights.spread_ratio == pytest.approx(20 / 120)
    assert set(report.spreads) == {"weights_bytes", "kv_cache_bytes"}


def test_a_silent_rank_is_named_and_the_part_has_no_worst() -> None:
    report = rank_report((RankMemory(0, weights_bytes=100), RankMemory(1), RankMemory(2, weights_bytes=90)))
    assert report.incomplete == {"weights_bytes": (1,)}
    assert report.spreads == {}


def test_zero_is_a_value_and_nothing_is_not() -> None:
    spread = rank_report((RankMemory(0, non_torch_bytes=0), RankMemory(1, non_torch_bytes=0))).spreads["non_torch_bytes"]
    assert (spread.worst_rank, spread.worst_bytes, spread.spread_ratio) == (0, 0, 0.0)
    assert rank_report(()).spreads == {}


@given(st.lists(st.integers(min_value=0, max_value=1 << 40), min_size=1, max_size=32))
def test_spread_is_within_bounds_and_order_does_not_matter(values: list[int]) -> None:
    ranks = tuple(RankMemory(rank, weights_bytes=value) for rank, value in enumerate(values))
    spread = rank_report(ranks).spreads["weights_bytes"]
    assert rank_report(ranks[::-1]).spreads["weights_bytes"] == spread
    assert 0 <= spread.spread_ratio <= 1
    assert spread.worst_bytes == max(values)
    assert values[spread.worst_rank] == max(values)


def test_scaling_efficiency() -> None:
    assert scaling_efficiency_ratio(150, 2, 100) == 0.75
    with pytest.raises(ValueError, match="no efficiency"):
        scaling_efficiency_ratio(150, 2, 0)


def test_balance() -> None:
    assert balance_ratio({"a": 10, "b": 10}) == 1.0
    assert balance_ratio({"a": 20, "b": 0}) == 2.0
    assert balance_ratio({"a": 0}) is None
    assert balance_ratio({}) is None
