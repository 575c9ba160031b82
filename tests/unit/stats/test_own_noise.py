from __future__ import annotations

import pytest
from scipy.stats import f

from k3perf.ci.run_noise import judged_by_own_noise
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict, MetricVerdict
from k3perf.stats.estimators import Location
from k3perf.stats.noise import MetricNoise
from k3perf.stats.own_noise import NoiseRatio, exceeding_p, own_noise, pooled_ratio
from k3perf.stats.reference import Level


def metric(outcome: Outcome, ratio: float, *, holds: bool) -> MetricVerdict:
    noise = NoiseRatio(ratio, 2, 60, holds)
    return MetricVerdict("output_tokens_per_s", "", outcome, reason="lost", **noise.as_fields())


def cell(*metrics: MetricVerdict) -> CellVerdict:
    return CellVerdict("gpu", "default", "chat", metrics=metrics)


def test_the_f_test_is_scipys() -> None:
    assert exceeding_p(3.2, 5, 60) == pytest.approx(float(f.sf(3.2, 5, 60)))
    assert exceeding_p(100, 0, 60) == exceeding_p(100, 5, 0) == 1.0


def test_ratios_pool_by_their_degrees_of_freedom() -> None:
    assert pooled_ratio([]) is None
    assert pooled_ratio([NoiseRatio(5.0, 0, 60)]) is None
    found = pooled_ratio([NoiseRatio(1.0, 3, 60), NoiseRatio(5.0, 1, 40)])
    assert found == NoiseRatio(2.0, 4, 40)


def test_own_noise_takes_the_candidates_degrees_of_freedom() -> None:
    level = Level(0.0, 1.0, 60)
    found = own_noise([1.0, 5.0], level, 3.0, (2, 6), 0.01)
    assert found is not None
    assert (found.ratio, found.df, found.recorded_df, found.holds) == (8.0, 1, 60, False)
    assert own_noise([2.9, 3.0, 3.1], level, 3.0, (3, 6), 0.01).holds  # type: ignore[union-attr]
    assert own_noise([3.0], level, 3.0, (1, 6), 0.01) is None
    assert own_noise([1.0, 2.0], level._replace(variance=0.0), 3.0, (2, 6), 0.01) is None


def test_a_loss_that_only_the_recorded_noise_proves_is_invalid_in_a_noisier_run() -> None:
    noisy = [cell(metric(Outcome.PASS, 9.0, holds=False)) for _ in range(8)]
    lost = cell(metric(Outcome.REGRESSED, 9.0, holds=False))
    proven = cell(metric(Outcome.REGRESSED, 9.0, holds=True))
    *passed, doubted, kept = judged_by_own_noise([*noisy, lost, proven])
    assert passed == noisy
    assert (doubted.outcome, kept) == (Outcome.INVALID, proven)
    assert "vary 3.0 times as much as recorded" in doubted.metrics[0].reason
    quiet = [cell(metric(Outcome.PASS, 1.0, holds=False)) for _ in range(8)]
    assert judged_by_own_noise([*quiet, lost])[-1] == lost
    unknown = cell(MetricVerdict("output_tokens_per_s", "", Outcome.REGRESSED))
    assert judged_by_own_noise([*noisy, unknown])[-1] == unknown


def test_a_cell_louder_than_all_others_is_apart() -> None:
    loud = ((0.0,), (10.0,), (-10.0,), (5.0,))
    others = tuple(((0.1 * n,), (1.0,), (-1.0,), (0.5,)) for n in range(5))
    noise = MetricNoise((loud, *others), 1)
    assert noise.louder(loud, 72.9, Location.MEDIAN, 1)
    assert not noise.louder(others[0], 0.7, Location.MEDIAN, 1)
    assert not MetricNoise((loud,), 1).louder(loud, 72.9, Location.MEDIAN, 1)
    assert not noise.louder(((3.0,), (99.0,)), 5000.0, Location.MEDIAN, 1), "not one of them"
