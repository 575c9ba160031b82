from __future__ import annotations

import math

import numpy as np
import pytest

from k3perf.baselines.scaling import USUAL_SPREAD
from k3perf.baselines.target_policy import pool_noise
from k3perf.config.models import MeasurementPlan
from k3perf.stats.estimators import Location, locate, sample_variance
from k3perf.stats.noise import NO_NOISE, MetricNoise, Sessions
from k3perf.stats.pooling import NO_PRIOR, pool_groups
from k3perf.stats.reference import cell_reference
from tests.calibration.lab.location_trial import choices
from tests.calibration.lab.simulation import Noise, session_rounds
from tests.unit.gate.conftest import RATE, Build

SIGMA = 0.012


def cells(
    shape: str, count: int = 20, sessions: int = 6, rounds: int = 12, sigma: float = SIGMA
) -> tuple[Sessions, ...]:
    rng = np.random.default_rng(7)
    made = [session_rounds(Noise(shape, sigma, sigma), sessions, rounds, rng) for _ in range(count)]
    return tuple(tuple(tuple(session) for session in cell.tolist()) for cell in made)


def chosen(shape: str) -> list[tuple[str, int]]:
    """What is chosen from each of twenty recordings of a suite."""
    return list(
        choices(Noise(shape, SIGMA, SIGMA), MeasurementPlan(mode="baseline"), drawn=20).elements()
    )


def test_quiet_rounds_are_taken_by_the_median_of_the_fewest() -> None:
    assert chosen("normal").count(("median", 4)) >= 15


def test_rounds_that_stand_out_are_taken_by_the_better_quartile() -> None:
    found = chosen("outlier_contaminated")
    assert [name for name, _ in found].count("lower quartile") >= 18
    assert max(rounds for _, rounds in found) < 12


def test_sessions_that_slide_are_measured_nearly_to_their_end() -> None:
    found = chosen("drifting")
    assert sum(rounds >= 8 for _, rounds in found) >= 18
    assert [name for name, _ in found].count("median") >= 17


def test_noisy_rounds_are_worth_more_of_them() -> None:
    rng = np.random.default_rng(1)
    made = [
        session_rounds(Noise("normal", SIGMA, 4 * SIGMA), 6, 12, rng).tolist() for _ in range(20)
    ]
    taken = MetricNoise(tuple(tuple(map(tuple, cell)) for cell in made), 12).choice(4, 12)
    assert taken[1] > 7


def test_few_recorded_sessions_cannot_choose_and_keep_the_median() -> None:
    assert (
        MetricNoise(cells("outlier_contaminated", count=1), 12).choice(4, 12)[0] is Location.MEDIAN
    )
    assert NO_NOISE.choice(4, 12) == (Location.MEDIAN, 4)
    assert MetricNoise((((1.0, 2.0, 1.5),),), 3).choice(4, 12) == (Location.MEDIAN, 4)


def test_no_fewer_rounds_than_the_plan_has_and_no_more_than_were_recorded() -> None:
    noise = MetricNoise(cells("drifting", rounds=6), 6)
    assert noise.choice(8, 12)[1] == 8
    assert noise.choice(4, 12)[1] <= 6


def test_the_pooled_variance_is_that_of_sessions_of_so_many_rounds() -> None:
    recorded = cells("drifting")
    noise = MetricNoise(recorded, 12)
    for location in Location:
        for rounds in (4, 12):
            groups = [[locate(location, session[:rounds]) for session in cell] for cell in recorded]
            assert noise.prior(location, rounds) == pool_groups(groups)
            expected = sum(map(sample_variance, groups)) / len(groups)
            assert noise.prior(location, rounds).variance == pytest.approx(expected)
    assert noise.share(Location.MEDIAN, 4, 12) == pytest.approx(0.32, abs=0.15)
    assert noise.share(Location.MEDIAN, 12, 4) == 1.0
    assert NO_NOISE.share(Location.MEDIAN, 4, 12) == 1.0
    assert MetricNoise((((1.0, 1.0),) * 3,), 2).share(Location.MEDIAN, 1, 2) == 1.0


def test_sessions_of_unequal_length_are_taken_as_far_as_they_go() -> None:
    ragged = (
        ((1.0, 2.0, 3.0), (1.0, 2.0), (5.0, 6.0, 7.0)),
        ((2.0, 2.5, 2.0), (3.0, 3.5), (2.0, 2.0, 4.0)),
    )
    noise = MetricNoise(ragged, 2)
    expected = pool_groups([[2.0, 1.5, 6.0], [2.0, 3.25, 2.0]])
    found = noise.prior(Location.MEDIAN, 3)
    assert (found.variance, found.total_df) == (pytest.approx(expected.variance), expected.total_df)


def test_the_noise_of_a_pair_is_twice_that_of_single_sessions() -> None:
    noise = MetricNoise(cells("normal"), 12)
    taken = (Location.MEDIAN, 4)
    assert noise.doubled().prior(*taken).variance == pytest.approx(2 * noise.prior(*taken).variance)
    assert noise.doubled().round_variance == pytest.approx(2 * (noise.round_variance or 0))
    assert noise.known
    assert not NO_NOISE.known
    assert NO_NOISE.prior(*taken) is not None
    assert NO_NOISE.prior(*taken) == NO_PRIOR
    assert (NO_NOISE.skewness(*taken), NO_NOISE.round_variance) == (0.0, None)
    assert MetricNoise((((1.0,), (2.0,)),), 1).round_variance is None


def test_skewness_shows_where_it_is() -> None:
    taken = (Location.MEDIAN, 4)
    assert MetricNoise(cells("strongly_skewed"), 12).skewness(*taken) > 0.5
    assert MetricNoise(cells("normal"), 12).skewness(*taken) < 0.3


def test_rounds_compared_with_one_value_of_the_reference_bring_twice_the_noise_they_show() -> None:
    recorded = cells("drifting")
    noise = MetricNoise(recorded, 12)
    both = cell_reference(recorded[0], noise, 12, (4, 12), spread_over_noise_ratio=USUAL_SPREAD)
    hidden = cell_reference(
        recorded[0], noise, 12, (4, 12), one_armed=True, spread_over_noise_ratio=USUAL_SPREAD
    )
    assert hidden.at(12) == both.at(12)
    extra = both.at(4).variance - both.at(12).variance
    assert extra > 0
    assert hidden.at(4).variance == pytest.approx(both.at(4).variance + extra)
    moved = both.with_level(3, lambda level: level._replace(mean=1.0))
    assert (moved.session_count, moved.at(4).mean, moved.at(4).variance) == (
        3,
        1.0,
        both.at(4).variance,
    )
    assert moved.round_sigma == pytest.approx(both.round_sigma)


def test_a_cell_that_cannot_be_read_has_no_level() -> None:
    level = cell_reference(
        ((math.nan, 1.0),), NO_NOISE, 2, (1, 2), spread_over_noise_ratio=USUAL_SPREAD
    ).at(2)
    assert math.isnan(level.mean)
    assert level.df == 0


def test_baselines_are_pooled_by_metric_and_basis_without_constant_or_broken_ones(
    build: Build,
) -> None:
    policy = build.policy()
    first, second = build.baseline(), build.baseline(build.cell(build.sessions(900.0, 6)))
    entry = first.workloads[0].metrics[0]
    frozen = entry.model_copy(
        update={
            "sessions": tuple(
                s.model_copy(update={"value": 5.0, "round_values": (5.0,) * 12})
                for s in entry.sessions
            )
        }
    )
    broken = entry.model_copy(
        update={
            "sessions": (
                entry.sessions[0].model_copy(update={"round_values": (0.0,) * 12}),
                *entry.sessions[1:],
            )
        }
    )
    spoiled = first.model_copy(
        update={
            "workloads": (
                first.workloads[0].model_copy(
                    update={"metrics": (frozen, broken, entry.model_copy(update={"metric": "x"}))}
                ),
            )
        }
    )
    noise = pool_noise([first, second, spoiled], policy.tolerances)
    assert list(noise) == [(RATE, "absolute")]
    assert (len(noise[RATE, "absolute"].cells), noise[RATE, "absolute"].round_count) == (2, 12)
    assert pool_noise([first], {}) == {}


def test_the_plan_decides_how_many_rounds_are_looked_at(build: Build) -> None:
    from k3perf.gate.compare import compare

    plan = MeasurementPlan(mode="baseline", minimum_rounds=6, maximum_rounds=8)
    verdict = compare(
        build.baseline(), build.cell(build.sessions(1000.0, 1, rounds=5)), build.policy(plan=plan)
    )
    assert verdict.buy_until_rounds == 6
