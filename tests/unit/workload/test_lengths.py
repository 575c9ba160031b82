"""Length distributions stay inside their bounds and have their centre."""

from __future__ import annotations

import numpy as np
import pytest

from k3perf.config.workload_spec import EmpiricalLength, FixedLength, LogNormalLength, UniformLength
from k3perf.workload.draws import draw_lengths


def drawn(length):
    return np.array(draw_lengths(length, seed=5, label="x", count=20_000))


def test_fixed():
    assert set(drawn(FixedLength(kind="fixed", tokens=9))) == {9}


def test_uniform_reaches_both_ends_evenly():
    values, counts = np.unique(
        drawn(UniformLength(kind="uniform", low=3, high=7)), return_counts=True
    )
    assert list(values) == [3, 4, 5, 6, 7]
    assert counts.min() > 3700


def test_log_normal_has_its_median_and_sigma():
    values = drawn(LogNormalLength(kind="lognormal", median=1000, sigma=0.5, low=1, high=100_000))
    assert np.median(values) == pytest.approx(1000, rel=0.02)
    assert np.log(values).std() == pytest.approx(0.5, rel=0.03)


def test_log_normal_is_clipped():
    values = drawn(LogNormalLength(kind="lognormal", median=1000, sigma=1, low=500, high=2000))
    assert (values.min(), values.max()) == (500, 2000)


def test_empirical_draws_its_values_in_proportion():
    values = drawn(EmpiricalLength(kind="empirical", values=(5, 5, 5, 80)))
    assert set(values) == {5, 80}
    assert (values == 80).mean() == pytest.approx(0.25, abs=0.015)


def test_labels_are_independent():
    length = UniformLength(kind="uniform", low=1, high=10_000)
    first = draw_lengths(length, seed=5, label="a", count=5000)
    second = draw_lengths(length, seed=5, label="b", count=5000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
