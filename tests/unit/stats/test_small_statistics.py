from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from k3perf.stats.location import MAD_TO_SIGMA, mean, median, robust_sigma, sample_variance
from k3perf.stats.pooling import NO_PRIOR, pool_groups, spread_difference_p
from k3perf.stats.proportion import clopper_pearson
from k3perf.stats.spending import shares
from k3perf.stats.student import single_draw_quantile, upper_quantile

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20)


@given(numbers)
def test_location_equals_the_standard_library(values: list[float]) -> None:
    assert median(values) == pytest.approx(statistics.median(values))
    assert mean(values) == pytest.approx(statistics.fmean(values), abs=1e-6)
    expected = statistics.variance(values) if len(values) > 1 else 0.0
    assert sample_variance(values) == pytest.approx(expected, rel=1e-6, abs=1e-3)


@given(numbers)
def test_robust_sigma_equals_scipy(values: list[float]) -> None:
    expected = stats.median_abs_deviation(values, scale="normal")
    assert robust_sigma(values, median(values)) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_scale_of_the_median_deviation_is_the_normals() -> None:
    assert pytest.approx(1 / stats.norm.ppf(0.75)) == MAD_TO_SIGMA


def test_one_bad_round_in_ten_hardly_moves_a_median() -> None:
    rounds = [100.0 + index for index in range(9)]
    assert median([*rounds, 1e9]) - median(rounds) < 1


@pytest.mark.parametrize("level", [0.05, 1e-3, 1e-5])
@pytest.mark.parametrize("df", [1, 5, 40, 1000])
def test_quantiles_equal_scipy(level: float, df: int) -> None:
    assert upper_quantile(level, df) == pytest.approx(stats.t.isf(level, df), rel=1e-9)


def test_nothing_can_be_said_without_degrees_of_freedom_or_budget() -> None:
    assert upper_quantile(0.05, 0) == math.inf
    assert upper_quantile(0.0, 10) == math.inf


def test_a_single_draw_must_pass_a_heavy_tail_of_unit_variance() -> None:
    heavy = stats.t.isf(1e-4, 3) / stats.t.std(3)
    assert single_draw_quantile(1e-4, 1000) == pytest.approx(heavy)
    assert single_draw_quantile(0.05, 2) == pytest.approx(stats.t.isf(0.05, 2))


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.sampled_from([1.0, 2.0, 3.0]))
def test_shares_sum_to_the_budget_and_are_never_negative(steps: list[float], power: float) -> None:
    total = sum(steps)
    fractions = [sum(steps[: index + 1]) / total for index in range(len(steps))]
    spent = shares(fractions, power)
    assert sum(spent) == pytest.approx(1)
    assert min(spent) >= 0


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (1, 2000)])
def test_the_exact_interval_equals_scipy(hits: int, trials: int) -> None:
    expected = stats.binomtest(hits, trials).proportion_ci(0.95, method="exact")
    assert clopper_pearson(hits, trials) == pytest.approx((expected.low, expected.high))


def test_no_trials_say_nothing() -> None:
    assert clopper_pearson(0, 0) == (0.0, 1.0)


def groups_of(sigmas: list[float], seed: int = 1, size: int = 6) -> list[list[float]]:
    rng = random.Random(seed)
    return [[rng.gauss(0, sigma) for _ in range(size)] for sigma in sigmas]


def test_the_test_for_differing_spreads_equals_scipy() -> None:
    groups = groups_of([1, 1, 3, 1])
    assert spread_difference_p(groups) == pytest.approx(stats.levene(*groups, center="median").pvalue)
    assert spread_difference_p([[1, 1], [2, 2]]) == 1.0
    assert spread_difference_p([[0, 0], [-1, 1]]) == 0.0


def test_like_groups_are_pooled_with_all_degrees_of_freedom() -> None:
    groups = groups_of([1.0] * 12)
    prior = pool_groups(groups)
    pooled = statistics.fmean(statistics.variance(group) for group in groups)
    assert prior.pooled
    assert prior.moderate(99.0, 5) == (pytest.approx(pooled), 60)


def test_groups_that_differ_keep_weight_of_their_own() -> None:
    prior = pool_groups(groups_of([0.2] * 6 + [3.0] * 6))
    assert not prior.pooled
    quiet, df = prior.moderate(0.04, 5)
    noisy, _ = prior.moderate(9.0, 5)
    assert quiet < 1.0
    assert noisy > 4.0
    assert 5 <= df < 60


def test_a_lone_group_has_nobody_to_share_with() -> None:
    assert pool_groups([]) is NO_PRIOR
    assert pool_groups([[1.0], [2.0]]) is NO_PRIOR
    assert pool_groups([[1.0, 2.0], [3.0]]).moderate(7.0, 1) == (7.0, 1)


def test_equal_values_do_not_break_the_prior() -> None:
    prior = pool_groups([[1.0] * 6, [2.0] * 6, *groups_of([1.0, 5.0])])
    variance, df = prior.moderate(0.0, 5)
    assert 0 < variance < math.inf
    assert df >= 5


def test_spreads_that_differ_no_more_than_their_counting_noise_are_pooled_after_all() -> None:
    # the spread test fires, but the variances show no excess: the prior's degrees of freedom reach the pooled ones
    found = [pool_groups(groups_of([1.0] * 4, seed=seed)) for seed in range(200)]
    assert all(prior.df <= prior.total_df for prior in found)
    assert sum(prior.pooled for prior in found) > 180
