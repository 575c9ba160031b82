"""Each arrival process is what its name says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from k3perf.config.workload_spec import AllAtOnce, ClosedLoop, Constant, Gamma, Poisson, Ramp
from k3perf.errors import UsageError
from k3perf.units import NS_PER_S
from k3perf.workload.arrivals import send_offsets_ns

COUNT = 20_000


def gaps_and_phases(arrival, seed=3):
    offsets_ns = np.array(send_offsets_ns(arrival, seed=seed, count=COUNT))
    return np.diff(offsets_ns) / NS_PER_S, offsets_ns % NS_PER_S / NS_PER_S


def test_all_at_once_sends_everything_at_zero():
    assert send_offsets_ns(AllAtOnce(kind="all_at_once"), seed=1, count=3) == (0, 0, 0)


def test_a_closed_loop_has_no_send_times():
    assert send_offsets_ns(ClosedLoop(kind="closed_loop", concurrency=2), seed=1, count=2) == (
        None,
        None,
    )


@pytest.mark.parametrize("rate_per_s", [3.0, 5.0, 700.0])
def test_constant_gaps_have_no_spread(rate_per_s):
    gaps_s, _ = gaps_and_phases(Constant(kind="constant", rate_per_s=rate_per_s))
    assert gaps_s.std() / gaps_s.mean() < 1e-6
    assert gaps_s.mean() == pytest.approx(1 / rate_per_s, rel=1e-9)


def test_poisson_gaps_have_a_cv_of_one_and_a_uniform_phase():
    gaps_s, phases = gaps_and_phases(Poisson(kind="poisson", rate_per_s=5))
    assert gaps_s.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1, abs=0.03)
    assert stats.kstest(phases, "uniform").pvalue > 0.01
    assert stats.kstest(gaps_s, "expon", args=(0, 0.2)).pvalue > 0.01


@pytest.mark.parametrize("shape", [0.25, 0.5, 4.0])
def test_gamma_gaps_have_the_cv_of_their_shape_and_a_uniform_phase(shape):
    gaps_s, phases = gaps_and_phases(Gamma(kind="gamma", rate_per_s=5, shape=shape))
    assert gaps_s.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(shape**-0.5, rel=0.03)
    assert stats.kstest(phases, "uniform").pvalue > 0.01
    law, floor_s = (
        stats.gamma(shape, 0, 0.2 / shape),
        1e-3,
    )  # below the floor the rounding to a microsecond shows
    below = law.cdf(floor_s)
    assert (
        stats.kstest(
            gaps_s[gaps_s > floor_s], lambda gap: (law.cdf(gap) - below) / (1 - below)
        ).pvalue
        > 0.01
    )


def test_gamma_of_shape_one_is_poisson():
    gamma = send_offsets_ns(Gamma(kind="gamma", rate_per_s=5, shape=1), seed=3, count=500)
    poisson = send_offsets_ns(Poisson(kind="poisson", rate_per_s=5), seed=3, count=500)
    assert np.abs(np.array(gamma) - np.array(poisson)).max() <= 2000


@pytest.mark.parametrize(("start", "end"), [(2.0, 18.0), (18.0, 2.0), (10.0, 10.0)])
def test_a_ramp_has_its_rates_at_both_ends_and_in_the_middle(start, end):
    arrival = Ramp(kind="ramp", start_rate_per_s=start, end_rate_per_s=end, duration_s=1000)
    times_s = np.array(send_offsets_ns(arrival, seed=3, count=15_000)) / NS_PER_S
    for low, high in ((0, 100), (450, 550), (900, 1000)):
        middle = start + (end - start) * (low + high) / 2000
        expected = middle * (high - low)
        seen = ((times_s >= low) & (times_s < high)).sum()
        assert abs(seen - expected) < 4 * expected**0.5
    after = times_s[times_s > 1000]
    assert len(after) / (after[-1] - 1000) == pytest.approx(end, rel=0.1)


def test_random_times_never_decrease_and_are_whole_microseconds():
    offsets = send_offsets_ns(Poisson(kind="poisson", rate_per_s=5000), seed=1, count=5000)
    assert list(offsets) == sorted(offsets)
    assert all(offset % 1000 == 0 for offset in offsets)


def test_another_seed_gives_other_times():
    arrival = Poisson(kind="poisson", rate_per_s=5)
    assert send_offsets_ns(arrival, seed=1, count=5) != send_offsets_ns(arrival, seed=2, count=5)


def test_a_rate_can_be_a_share_of_the_found_rate():
    arrival = Constant(kind="constant", found_rate_share_ratio=0.5)
    assert send_offsets_ns(arrival, seed=1, count=3, found_rate_per_s=8) == (
        0,
        250_000_000,
        500_000_000,
    )


def test_a_share_of_an_unknown_rate_is_refused_with_the_next_step():
    with pytest.raises(UsageError, match=r"0\.5 of the maximum sustainable rate.*find-rate"):
        send_offsets_ns(Constant(kind="constant", found_rate_share_ratio=0.5), seed=1, count=3)
