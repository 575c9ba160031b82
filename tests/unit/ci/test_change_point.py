"""The change-point test: right about clean series, sharp on real steps, the same every
time.
"""

from __future__ import annotations

import numpy as np
import pytest

from k3perf.stats.change_point import ChangePoint, change_points, newest_step


def false_alarm_share(
    draw: str, size: int, alpha: float, series_count: int, permutation_count: int = 199
) -> float:
    random = np.random.default_rng(7)
    noise = {
        "normal": lambda: random.standard_normal(size),
        "heavy": lambda: random.standard_t(2, size),
        "skewed": lambda: random.exponential(size=size),
    }
    return (
        sum(
            bool(
                change_points(100 + noise[draw](), alpha=alpha, permutation_count=permutation_count)
            )
            for _ in range(series_count)
        )
        / series_count
    )


@pytest.mark.parametrize("draw", ["normal", "heavy", "skewed"])
def test_clean_series_alarm_no_more_often_than_stated(draw: str) -> None:
    """At alpha 5 % over 400 series, 34 or more alarms have a chance below 1 in 1,000
    (binomial).
    """
    assert false_alarm_share(draw, 20, 0.05, 400) < 34 / 400


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["normal", "heavy", "skewed"])
@pytest.mark.parametrize("size", [8, 14, 30, 60])
def test_calibration(draw: str, size: int) -> None:
    """At alpha 1 % over 4,000 series, 60 or more alarms have a chance near 0.1 %. All
    series share the random orders, so there are enough of them to know the level.
    """
    assert false_alarm_share(draw, size, 0.01, 4_000, 9_999) < 60 / 4_000


@pytest.mark.slow
def test_power_on_a_step_of_three_standard_deviations() -> None:
    """A 3 % step in noise of 1 %, at an alpha that 100 series share (1 in 10,000). The
    newest three nights show about half of such steps, ten nights nearly all.
    """
    random = np.random.default_rng(3)

    def found(nights_since: int) -> float:
        hits = 0
        for _ in range(100):
            data = random.standard_normal(40)
            data[-nights_since:] += 3
            hits += bool(
                newest_step(data, alpha=1e-4)
                if nights_since == 3
                else change_points(data, alpha=1e-4, permutation_count=99_999)
            )
        return hits / 100

    assert found(3) > 0.35
    assert found(7) > 0.35
    assert found(10) > 0.9


def test_steps_are_found_where_they_are() -> None:
    random = np.random.default_rng(5)
    data = np.concatenate(
        [random.normal(10, 0.1, 20), random.normal(12, 0.1, 15), random.normal(11, 0.1, 15)]
    )
    found = change_points(data, alpha=0.001)
    assert [change.index for change in found] == [20, 35]
    assert found[0].mean_before == pytest.approx(10, abs=0.1)
    assert found[0].mean_after == found[1].mean_before == pytest.approx(12, abs=0.1)
    assert found[1].mean_after == pytest.approx(11, abs=0.1)


def test_constant_short_and_stepped_exact_series() -> None:
    assert change_points([1.0] * 50, alpha=0.01) == ()
    assert change_points([1.0, 2.0] * 3, alpha=0.5) == ()
    (change,) = change_points([100.0] * 20 + [101.0] * 10, alpha=0.001)
    assert change == ChangePoint(20, 100.0, 101.0, 1 / 10_000)


def test_same_input_same_answer() -> None:
    data = np.random.default_rng(11).standard_normal(30).cumsum()
    assert change_points(data, alpha=0.05) == change_points(data, alpha=0.05)


def test_unusable_settings_and_values_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be reached"):
        change_points([1.0] * 20, alpha=0.001, permutation_count=99)
    with pytest.raises(ValueError, match="cannot be reached"):
        change_points([1.0] * 20, alpha=0.0)
    with pytest.raises(ValueError, match="finite"):
        change_points([1.0] * 10 + [float("nan")], alpha=0.01)
