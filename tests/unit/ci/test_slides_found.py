"""Slides at the suite's size: in time, a large step within three nights, and a known one
only once.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from k3perf.ci.history import AcknowledgedSlide, HistoryEntry, Series, series_of, slides
from k3perf.stats.change_point import newest_step


def history(
    name: str, values: list[float], metric: str = "tpot_mean_ms"
) -> tuple[HistoryEntry, ...]:
    return tuple(
        HistoryEntry(
            run_id=f"r{index}", commit="c", vllm_version="0.33.0", hardware_class="h200",
            created_at_utc=f"2026-{1 + index // 28:02d}-{1 + index % 28:02d}T01:00:00Z",
            target="gpu", config=name, workload="chat", plan_digest="p", metric=metric,
            value=value, session_count=2,
        )
        for index, value in enumerate(values)
    )  # fmt: skip


def noisy(count: int, *, seed: int, shift: float, nights_since: int) -> list[float]:
    dice = np.random.default_rng(seed)
    values = 20 * np.exp(0.01 * dice.standard_t(4, count))
    values[count - nights_since :] *= 1 + shift
    return [float(value) for value in values]


def many(count: int, shift: float, nights_since: int, size: int = 60) -> tuple[Series, ...]:
    return tuple(
        series
        for index in range(count)
        for series in series_of(
            history(f"c{index}", noisy(size, seed=index, shift=shift, nights_since=nights_since))
        )
    )


def test_a_hundred_shifted_series_are_judged_within_a_minute() -> None:
    series = many(100, 0.05, 20)
    started = time.process_time()
    found = slides(series)
    assert time.process_time() - started < 60
    assert len(found) == 100
    assert all(slide.loss_ratio == pytest.approx(0.05, abs=0.02) for slide in found)
    assert sum(18 <= slide.nights_since <= 22 for slide in found) >= 90


@pytest.mark.parametrize("size", [14, 60])
def test_a_step_of_a_fifth_is_found_within_three_nights(size: int) -> None:
    assert len(slides(many(100, 0.20, 3, size))) >= 95
    assert len(slides(many(100, 0.20, 2, size))) <= 2, "two nights are too few"


def test_clean_series_with_heavy_tails_are_left_alone() -> None:
    """One night's error rate is 1 % over all series: two slides of 300 nights would have
    a chance of about 20 %, six one of 0.1 %.
    """
    alarms = 0
    for night in range(30):
        clean = tuple(
            one
            for index in range(20)
            for one in series_of(
                history(f"c{index}", noisy(40, seed=1_000 * night + index, shift=0, nights_since=1))
            )
        )
        alarms += len(slides(clean))
    assert alarms <= 2


def test_an_acknowledged_slide_is_quiet_until_a_later_one() -> None:
    values = noisy(60, seed=1, shift=0.05, nights_since=30)
    series = series_of(history("c", values))
    (slide,) = slides(series)
    known = AcknowledgedSlide(
        target="gpu", config="c", workload="chat", metric="tpot_mean_ms",
        day=slide.first.created_at_utc[:10], by="ann", reason="the sampler costs this",
    )  # fmt: skip
    assert slides(series, acknowledged=[known]) == ()
    assert slides(series, acknowledged=[known.model_copy(update={"config": "d"})]) == (slide,)
    again = [value * (1.05 if index >= 45 else 1) for index, value in enumerate(values)]
    (later,) = slides(series_of(history("c", again)), acknowledged=[known])
    assert later.first.created_at_utc > slide.first.created_at_utc


def test_a_step_needs_every_night_beyond_the_older_ones() -> None:
    old = [10.0, 10.1, 9.9, 10.2, 10.0, 9.8, 10.1, 10.0]
    assert newest_step([*old, 12.0, 12.1, 12.0], alpha=0.001) is not None
    assert newest_step([*old, 12.0, 12.1, 10.1], alpha=0.001) is None
    assert newest_step([*old[:5], 12.0, 12.1, 12.0], alpha=0.001) is None, "too few older nights"
    assert newest_step([*old, 10.21, 10.22, 10.23], alpha=1e-5) is None, "a small one"
