from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from k3perf.stats.estimators import (
    MAD_TO_SIGMA,
    Location,
    locate,
    locate_rows,
    mean,
    median,
    robust_sigma,
    sample_variance,
    weights,
)
from k3perf.stats.pooling import (
    NO_PRIOR,
    pool_groups,
    pooled_skewness,
    spread_difference_p,
    variance_difference_p,
)
from k3perf.stats.quantiles import (
    mean_difference_skewness,
    single_draw_quantile,
    skewed_quantile,
    upper_quantile,
)
from k3perf.stats.sequential import shares
from tests.calibration.lab.proportion import clopper_pearson

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


@given(numbers)
def test_the_median_deviation_is_at_most_half_of_the_range(values: list[float]) -> None:
    """The gate leaves out the deviation where the range already says that it is small."""
    assert (
        robust_sigma(values, median(values)) / MAD_TO_SIGMA
        <= (max(values) - min(values)) / 2 * (1 + 1e-9) + 1e-9
    )


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
    assert spread_difference_p(groups) == pytest.approx(
        stats.levene(*groups, center="median").pvalue
    )
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


def test_a_lone_group_is_all_that_is_known() -> None:
    assert pool_groups([]) is NO_PRIOR
    assert pool_groups([[1.0], [2.0]]) is NO_PRIOR
    assert pool_groups([[1.0, 2.0, 3.0], [3.0]]).moderate(7.0, 1) == (1.0, 2)


def test_equal_values_do_not_break_the_prior() -> None:
    prior = pool_groups([[1.0] * 6, [2.0] * 6, *groups_of([1.0, 5.0])])
    variance, df = prior.moderate(0.0, 5)
    assert 0 < variance < math.inf
    assert df >= 5


def test_spreads_that_differ_no_more_than_their_counting_noise_are_pooled_after_all() -> None:
    # the spread test fires, but the variances show no excess: the prior's degrees of
    # freedom reach the pooled ones
    found = [pool_groups(groups_of([1.0] * 4, seed=seed)) for seed in range(200)]
    assert all(prior.df <= prior.total_df for prior in found)
    assert sum(prior.pooled for prior in found) > 180


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_locations_equal_the_libraries(values: list[float]) -> None:
    assert locate(Location.MEDIAN, values) == pytest.approx(statistics.median(values))
    assert locate(Location.LOWER_QUARTILE, values) == pytest.approx(
        float(np.quantile(values, 0.25)), abs=1e-6
    )


@pytest.mark.parametrize("location", list(Location))
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 12, 16])
def test_locations_are_weighted_means_and_the_same_for_rows(location: Location, count: int) -> None:
    first, shares_ = weights(location, count)
    assert sum(shares_) == pytest.approx(1)
    assert 0 <= first <= first + len(shares_) <= count
    rows = np.random.default_rng(count).standard_normal((7, count))
    assert locate_rows(location, rows) == pytest.approx(
        [locate(location, row) for row in rows.tolist()]
    )


@pytest.mark.parametrize(
    ("location", "slow"),
    [(Location.MEDIAN, 5), (Location.LOWER_QUARTILE, 8)],
)
def test_how_many_slow_rounds_of_twelve_each_location_withstands(
    location: Location, slow: int
) -> None:
    rounds = [0.01 * index for index in range(12)]
    spoiled = [*rounds[: 12 - slow], *[1e6] * slow]
    assert locate(location, spoiled) < 1
    assert locate(location, [*rounds[: 11 - slow], *[1e6] * (slow + 1)]) > 1


def test_pooled_skewness_is_found_and_is_rarely_seen_where_there_is_none() -> None:
    rng = np.random.default_rng(5)
    starts = list(range(0, 6000, 6))
    found = pooled_skewness(
        rng.gamma(4.0, size=6000) + np.repeat(rng.standard_normal(1000) * 50, 6), starts
    )
    assert found == pytest.approx(1.0, abs=0.2)
    few = list(range(0, 120, 6))
    chance = [pooled_skewness(rng.standard_normal(120), few) for _ in range(400)]
    assert sum(value > 0 for value in chance) == pytest.approx(64, abs=30)
    assert min(chance) == 0
    assert pooled_skewness(-rng.gamma(1.0, size=6000), starts) == 0


def test_too_few_or_equal_values_have_no_skewness() -> None:
    assert pooled_skewness(np.array([1.0, 5.0, 2.0, 9.0]), [0, 2]) == 0
    assert pooled_skewness(np.array([3.0]), [0]) == 0
    assert pooled_skewness(np.full(12, 2.0), [0, 6]) == 0


def test_the_skewness_of_a_difference_of_means_equals_its_simulation() -> None:
    rng = np.random.default_rng(6)
    drawn = rng.exponential(size=(400_000, 8))
    differences = drawn[:, :2].mean(axis=1) - drawn[:, 2:].mean(axis=1)
    assert mean_difference_skewness(2.0, 2, 6) == pytest.approx(
        float(stats.skew(differences)), abs=0.03
    )
    assert mean_difference_skewness(2.0, 4, 0) == pytest.approx(1.0)
    assert mean_difference_skewness(2.0, 6, 6) == 0


def test_a_skewed_quantile_lies_further_out_and_never_further_in() -> None:
    gamma = stats.gamma(16)  # skewness 0.5
    level = 0.01
    true = (gamma.isf(level) - gamma.mean()) / gamma.std()
    corrected = skewed_quantile(float(stats.norm.isf(level)), 0.5)
    assert corrected == pytest.approx(true, abs=0.06)
    assert skewed_quantile(3.0, -1.0) == 3.0
    assert skewed_quantile(0.5, 1.0) == 0.5


@pytest.mark.parametrize("value", [1e-6, 1e-3, 0.1, 1.0, 10.0, 1e4])
def test_the_inverse_of_trigamma_is_one(value: float) -> None:
    from scipy.special import polygamma

    from k3perf.stats.pooling import _inverse_trigamma

    assert float(polygamma(1, _inverse_trigamma(value))) == pytest.approx(value, rel=1e-8)


def test_bartletts_test_is_scipys():
    rng = random.Random(11)
    groups = [
        [rng.gauss(0, sigma) for _ in range(count)]
        for sigma, count in ((1, 2), (1, 3), (2, 2), (0.5, 5))
    ]
    variances, dfs = (
        [statistics.variance(group) for group in groups],
        [len(group) - 1 for group in groups],
    )
    assert variance_difference_p(variances, dfs) == pytest.approx(stats.bartlett(*groups).pvalue)


def test_groups_of_two_that_spread_alike_are_pooled():
    """Both values of a pair lie equally far from their median, so Brown and Forsythe's
    test alone would find every such set to differ.
    """
    rng = random.Random(12)
    pooled = [
        pool_groups([[rng.gauss(0, 1), rng.gauss(0, 1)] for _ in range(8)]).pooled
        for _ in range(200)
    ]
    assert sum(pooled) >= 180
    apart = [
        pool_groups(
            [[rng.gauss(0, sigma), rng.gauss(0, sigma)] for sigma in [0.01] * 4 + [10.0] * 4]
        ).pooled
        for _ in range(200)
    ]
    assert sum(apart) <= 5
