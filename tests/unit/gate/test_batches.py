"""Sessions of one host and day are not exchangeable with tomorrow's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from k3perf.baselines.target_policy import with_noise_of
from k3perf.config.models import MeasurementPlan
from k3perf.gate.compare import compare
from k3perf.gate.policy import Policy
from k3perf.records.baseline import Baseline, digest_of
from k3perf.records.measurement import CellMeasurement, SessionMetrics
from k3perf.records.outcome import Outcome
from k3perf.stats.batches import UNKNOWN_SPREAD, batch_factor, batch_spread, joint_df
from k3perf.stats.estimators import Location
from k3perf.stats.noise import MetricNoise, batched_noise
from tests.unit.gate.conftest import Build

MONDAY, TUESDAY, FRIDAY = ("a", "2026-01-05"), ("a", "2026-01-06"), ("b", "2026-01-09")


def on(batch: tuple[str, str], sessions: Sequence[SessionMetrics]) -> list[SessionMetrics]:
    host, day = batch
    return [
        replace(
            session,
            session_id=f"{day}-{session.session_id}",
            host=host,
            started_at_utc=f"{day}T08:00:00Z",
        )
        for session in sessions
    ]


def cell(build: Build, *parts: tuple[tuple[str, str], float, int]) -> CellMeasurement:
    return build.cell(
        [
            session
            for batch, level, count in parts
            for session in on(batch, build.sessions(level, count))
        ]
    )


def recorded(build: Build, *parts: tuple[tuple[str, str], float, int]) -> tuple[Baseline, Policy]:
    baseline = build.baseline(cell(build, *parts))
    policy = build.policy(plan=MeasurementPlan(mode="baseline", maximum_sessions=4))
    return baseline, with_noise_of(policy, (baseline,))


def test_host_and_day_are_stored_with_each_session(build: Build) -> None:
    baseline, _ = recorded(build, (MONDAY, 1000.0, 3), (FRIDAY, 1000.0, 3))
    entry = baseline.workloads[0].metrics[0]
    assert entry.batches == (MONDAY,) * 3 + (FRIDAY,) * 3
    assert Baseline.model_validate_json(baseline.model_dump_json()) == baseline


def test_an_older_file_keeps_its_digest(build: Build) -> None:
    baseline = build.baseline()
    text = baseline.model_dump_json()
    assert '"host"' not in text
    assert '"day"' not in text
    assert baseline.workloads[0].metrics[0].batches == ()
    assert digest_of(Baseline.model_validate_json(text)) == baseline.digest


def test_a_day_that_differs_as_recorded_days_do_is_not_a_loss(build: Build) -> None:
    """Recorded days differ by 12 %. A third one 12 % lower is no loss of 5 %."""
    days = ((MONDAY, 1060.0, 3), (TUESDAY, 940.0, 3))
    baseline, policy = recorded(build, *days)
    third = compare(baseline, cell(build, (FRIDAY, 880.0, 4)), policy)
    assert third.outcome is not Outcome.REGRESSED
    # as sessions that could be of any day, they would have been enough for REGRESSED
    one_day, plain = recorded(build, (MONDAY, 1000.0, 6))
    seen = compare(one_day, cell(build, (FRIDAY, 880.0, 4)), plain)
    assert seen.outcome is Outcome.REGRESSED


def test_a_candidate_of_the_recorded_batch_needs_no_allowance(build: Build) -> None:
    baseline, policy = recorded(build, (MONDAY, 1000.0, 6))
    same = compare(baseline, cell(build, (MONDAY, 880.0, 4)), policy)
    assert same.outcome is Outcome.REGRESSED


def test_the_report_says_where_only_one_batch_exists(build: Build) -> None:
    one, policy = recorded(build, (MONDAY, 1000.0, 6))
    said = compare(one, cell(build, (FRIDAY, 1000.0, 2)), policy).notes
    assert any("all baseline sessions were recorded on 2026-01-05 (a)" in note for note in said)
    two, policy = recorded(build, (MONDAY, 1000.0, 3), (FRIDAY, 1000.0, 3))
    said = compare(two, cell(build, (FRIDAY, 1000.0, 2)), policy).notes
    assert not any("all baseline sessions" in note for note in said)


@pytest.mark.parametrize("true", [0.0, 1.0, 4.0])
def test_the_estimate_is_that_of_the_analysis_of_variance(true: float) -> None:
    """Over many draws of unequal batches it is right on average, but for what the floor
    at 0 adds where there is nothing.
    """
    random = np.random.default_rng(7)
    found = []
    for _ in range(400):
        cells = [
            [
                (random.normal(0, true**0.5) + random.normal(0, 1.0, size)).tolist()
                for size in (3, 4, 2)
            ]
            for _ in range(6)
        ]
        found.append(batch_spread(cells).variance)
    assert np.mean(found) == pytest.approx(true, abs=0.2)
    assert min(found) >= 0
    assert batch_spread([[[1.0, 2.0]]]) == UNKNOWN_SPREAD


def test_days_of_one_session_count_wholly_as_between_days() -> None:
    cells = (((1.0,), (3.0,)), ((2.0,), (6.0,)))
    noise = batched_noise(cells, [(MONDAY, TUESDAY)] * 2, 1)
    assert noise.batch_spread(Location.MEDIAN, 1) == (5.0, 2)
    assert noise.prior(Location.MEDIAN, 1) == MetricNoise(cells, 1).prior(Location.MEDIAN, 1)


def test_noise_between_sessions_is_that_inside_of_batches() -> None:
    cells = (((1.0,), (2.0,), (11.0,), (12.0,)), ((1.0,), (2.0,)))
    noise = batched_noise(cells, [(MONDAY, MONDAY, FRIDAY, FRIDAY), ()], 1)
    assert noise.prior(Location.MEDIAN, 1).variance == pytest.approx(0.5)
    assert noise.batch_spread(Location.MEDIAN, 1) == (pytest.approx((100 - 0.5) / 2), 1)


def test_how_often_the_batch_part_counts() -> None:
    assert batch_factor("aaa", "a") == 0
    assert batch_factor("aaa", None) == 2
    assert batch_factor("aabb", None) == 1.5
    assert batch_factor("aabb", "a") == 0.5
    assert joint_df(1.0, 8, 0.0, 0) == 8
    assert joint_df(1.0, 8, 1.0, 8) == 16
    assert joint_df(0.001, 100, 1.0, 1) == 1
