"""Recordings to the settings that the self-test replays, with the smallest tolerances
that the promises speak of. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from k3perf.baselines.testable import CATCH_MISS, smallest_tolerance
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.metric_verdict import analyses_of, limits_of
from k3perf.metrics.loss_scale import scale_for
from k3perf.records.measurement import CellMeasurement, RoundMetrics
from k3perf.records.metric_definitions import METRICS, Direction
from k3perf.stats.estimators import locate, sample_variance
from k3perf.stats.noise import MetricNoise
from k3perf.stats.reference import Level, cell_reference
from k3perf.stats.sequential import last_planned
from tests.calibration.lab.recordings import Recording, paired_rounds, usable_sessions
from tests.calibration.lab.replay import CellSource, Session, Setting
from tests.calibration.lab.simulation import Rounds

NOISE_SHARE: Final = 0.25
"""The noise between sessions, as a share of the tolerance, up to which the promises
hold.
"""

UNLUCKY_SHARE: Final = 0.1
"""``accept`` would refuse the tolerance on at most this share of the splits."""

LARGEST_TRIED: Final = 0.66
"""The largest tolerance that a replay tries: a loss of one and a half of it is
injected, and nothing can lose more than everything.
"""


def recorded_sessions(cell: CellMeasurement, metrics: Sequence[str]) -> list[Session]:
    """The usable sessions as losses by round."""
    made: list[Session] = []
    for session, beside in usable_sessions(cell):
        pairs = paired_rounds(session, beside)
        own = _losses([measured for measured, _ in pairs], metrics)
        made.append(
            (
                own,
                (
                    None
                    if beside is None
                    else _losses([other for _, other in pairs if other is not None], metrics)
                ),
            )
        )
    return made


def recorded_source(
    cell: CellMeasurement, metrics: Sequence[str], *, in_order: bool = False
) -> CellSource:
    """Sessions drawn from recorded ones without replacement, or in the order of
    recording; pairs stay together.
    """
    sessions = recorded_sessions(cell, metrics)

    def draw(rng: np.random.Generator, count: int) -> list[Session]:
        order = range(len(sessions)) if in_order else rng.permutation(len(sessions)).tolist()
        return [sessions[index] for index in order[:count]]

    return draw


def _losses(rounds: Sequence[RoundMetrics], metrics: Sequence[str]) -> Mapping[str, Rounds]:
    return {
        name: tuple(_loss(name, measured.values[name].value) for measured in rounds)
        for name in metrics
    }


def _loss(name: str, value: float | None) -> float:
    sign = 1 if METRICS[name].direction is Direction.LOWER_IS_BETTER else -1
    return sign * math.log((value or math.nan) / 100.0)


def recorded_setting(
    recording: Recording,
    tolerances: Mapping[str, Tolerance],
    *,
    suite_metrics: int,
    in_order: bool = False,
) -> Setting:
    """The recorded cells, drawn often enough for a suite of that many metrics."""
    sources = tuple(
        recorded_source(cell, tuple(tolerances), in_order=in_order) for cell in recording.cells
    )
    repeats = max(1, round(suite_metrics / len(tolerances) / len(sources)))
    return Setting(sources, tolerances, recording.plan(), repeats=repeats)


def testable_tolerances(
    recording: Recording, metrics: Sequence[str], *, suite_metrics: int
) -> dict[str, Tolerance]:
    """Per metric the smallest whole percentage that the promises speak of, up to
    ``LARGEST_TRIED``.

    ``baseline accept`` would take it in nine of ten splits of this recording, in a
    suite of that many metrics, and it is at least four times the standard deviation
    between sessions of the noisiest cell. A metric for which none does is left out.
    """
    plan = recording.plan()
    found = {}
    for name in metrics:
        tolerance = _smallest(recording, name, plan, suite_metrics)
        if tolerance is not None and math.ceil(100 * tolerance) <= 100 * LARGEST_TRIED:
            found[name] = Tolerance(loss_ratio=math.ceil(100 * tolerance) / 100)
    return found


testable_tolerances.__test__ = False  # type: ignore[attr-defined]  # no test for pytest to collect, whatever its name


def _smallest(
    recording: Recording, name: str, plan: MeasurementPlan, suite_metrics: int
) -> float | None:
    barely = Tolerance(loss_ratio=0.001)
    policy = Setting((), {name: barely}, plan).policy_for(suite_metrics)
    scale = scale_for(METRICS[name], barely)
    limits = limits_of(scale, policy)._replace(beta=CATCH_MISS)
    series = []
    for cell in recording.cells:
        pairs = [
            (own[name], None if beside is None else beside[name])
            for own, beside in recorded_sessions(cell, (name,))
        ]
        series.append(
            tuple(
                own if other is None else tuple(a - b for a, b in zip(own, other, strict=True))
                for own, other in pairs
            )
        )
    noise = MetricNoise(tuple(series), recording.rounds)
    needed = []
    for cell_series in series:
        rounds = (plan.minimum_rounds, plan.maximum_rounds)
        reference = cell_reference(
            cell_series,
            noise,
            recording.rounds,
            rounds,
            spread_over_noise_ratio=policy.spread_over_noise_ratio,
        )
        planned = reference.with_level(
            plan.baseline_sessions, partial(_as_planned, plan.baseline_sessions, len(cell_series))
        )
        needed.append(
            smallest_tolerance(
                scale, planned, limits, last_planned(analyses_of(scale, planned, plan))
            )
        )
        values = [locate(reference.location, losses[: reference.rounds]) for losses in cell_series]
        needed.append(scale.loss_ratio(math.sqrt(sample_variance(values)) / NOISE_SHARE, None))
    return (
        None if None in needed else max(tolerance for tolerance in needed if tolerance is not None)
    )


def _as_planned(planned: int, recorded: int, level: Level) -> Level:
    """A replay's baseline has fewer sessions than the recording and fewer degrees of
    freedom, and its variance is larger by chance: by as much as in one of ten splits
    (chi-square).
    """
    from scipy.special import chdtri

    df = level.df * (planned - 1) // (recorded - 1)
    return level._replace(df=df, variance=level.variance * float(chdtri(df, UNLUCKY_SHARE)) / df)
