"""Made-up noise to measured cells: what the gate is calibrated on, beside recorded
noise. Pure and seeded.

Noise has two parts, a session's own level and its rounds' scatter, in units of the
logarithm of the value. Each shape's draws are standardised, so that shapes differ in
nothing but shape; slow rounds and slides come on top, and ``session_sigma_for`` makes
room for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from k3perf.records.measurement import CellMeasurement, MetricValue, RoundMetrics, SessionMetrics
from k3perf.records.metric_definitions import METRICS, Direction
from k3perf.records.samples import Arm
from k3perf.stats.estimators import Location, locate_rows

Rounds = tuple[float, ...]
"""One session's rounds, on the loss scale around 0."""

Matrix = NDArray[np.float64]
"""Sessions x rounds."""

LOG_NORMAL_SHAPE: Final = 0.25
"""On top of the logarithm: values that are plainly log-normal are normal on the loss
scale.
"""

SKEWED_SHAPE: Final = 0.5
"""Skewness 1.75: beyond what the promises speak of, shown all the same."""

HEAVY_TAIL_DF: Final = 4
OUTLIER_SHARE: Final = 0.1
OUTLIER_LOSS: Final = math.log(2)
DRIFT_PER_ROUND: Final = 0.0075
"""9 % over 12 rounds: the slide seen on an idle CPU machine within ten minutes."""

SIGMA_SESSIONS: Final = 40_000
"""Sessions that a shape's realised standard deviation is measured on: its relative
standard error is about 0.5 %.
"""


@dataclass(frozen=True, slots=True)
class Noise:
    """A shape of noise with its standard deviations between sessions and between the
    rounds of a session.
    """

    shape: str
    session_sigma: float
    round_sigma: float


Size = tuple[int, ...]


def _normal(rng: np.random.Generator, size: Size) -> Matrix:
    return rng.standard_normal(size)


def _skewed(shape: float) -> Callable[[np.random.Generator, Size], Matrix]:
    """Log-normal, towards the loss, mean 0 and variance 1; shape 0.25 has skewness
    0.78.
    """
    square = shape**2
    centre, scale = math.exp(square / 2), math.sqrt(math.expm1(square) * math.exp(square))

    def draw(rng: np.random.Generator, size: Size) -> Matrix:
        drawn: Matrix = (np.exp(shape * rng.standard_normal(size)) - centre) / scale
        return drawn

    return draw


def _heavy_tailed(rng: np.random.Generator, size: Size) -> Matrix:
    """Student's t with 4 degrees of freedom, scaled to variance 1: its fourth moment is
    infinite.
    """
    return rng.standard_t(HEAVY_TAIL_DF, size) * math.sqrt((HEAVY_TAIL_DF - 2) / HEAVY_TAIL_DF)


def _two_level(rng: np.random.Generator, size: Size) -> Matrix:
    """One of two levels, like a process that lands on one of two memory layouts."""
    return rng.choice(np.array([-1.0, 1.0]), size)


DRAWS: Final[Mapping[str, Callable[[np.random.Generator, Size], Matrix]]] = MappingProxyType(
    {
        "normal": _normal,
        "log_normal": _skewed(LOG_NORMAL_SHAPE),
        "heavy_tailed": _heavy_tailed,
        "outlier_contaminated": _normal,
        "drifting": _normal,
        "two_level": _two_level,
        "strongly_skewed": _skewed(SKEWED_SHAPE),
    }
)
SHAPES: Final = tuple(name for name in DRAWS if name != "strongly_skewed")
"""The shapes that the promises speak of."""


def session_rounds(
    noise: Noise, session_count: int, round_count: int, rng: np.random.Generator
) -> Matrix:
    """Sessions of one cell and metric.

    two_level: the session's level is one of two, its rounds are normal.
    outlier_contaminated: normal, and each round is twice as slow with probability 0.1.
    drifting: normal, and each session slides at a constant rate of its own, up to 9 %
    either way in 12 rounds, around its middle.
    """
    draw = DRAWS[noise.shape]
    round_draw = _normal if noise.shape == "two_level" else draw
    size = (session_count, round_count)
    rounds = (
        draw(rng, (session_count, 1)) * noise.session_sigma
        + round_draw(rng, size) * noise.round_sigma
    )
    if noise.shape == "outlier_contaminated":
        rounds += OUTLIER_LOSS * (rng.random(size) < OUTLIER_SHARE)
    if noise.shape == "drifting":
        slopes = rng.uniform(-DRIFT_PER_ROUND, DRIFT_PER_ROUND, (session_count, 1))
        rounds += slopes * (np.arange(round_count) - (round_count - 1) / 2)
    return rounds


def paired_rounds(
    noise: Noise, session_count: int, round_count: int, rng: np.random.Generator
) -> tuple[Matrix, Matrix]:
    """Candidate and reference sessions whose rounds alternate on a machine that slides
    by 0.75 % a pair and wanders besides.

    The pair's own noise has the given standard deviations: half of each variance comes
    from either arm.
    """
    half = Noise(
        "normal" if noise.shape == "drifting" else noise.shape,
        noise.session_sigma / math.sqrt(2),
        noise.round_sigma / math.sqrt(2),
    )
    candidate = session_rounds(half, session_count, round_count, rng)
    reference = session_rounds(half, session_count, round_count, rng)
    wander = np.cumsum(
        rng.standard_normal((session_count, round_count)) * noise.round_sigma, axis=1
    )
    machine = wander + DRIFT_PER_ROUND * np.arange(round_count)
    return candidate + machine, reference + machine


def realised_sigma(
    noise: Noise, location: Location, rounds: int, round_count: int, *, paired: bool = False
) -> float:
    """Standard deviation (ddof 1) of what the first ``rounds`` of ``round_count``
    rounds give as a session's value, slow rounds and slides included. Fixed seed.
    """
    rng = np.random.default_rng(20261129)
    if paired:
        candidate, reference = paired_rounds(noise, SIGMA_SESSIONS, round_count, rng)
        values = candidate - reference
    else:
        values = session_rounds(noise, SIGMA_SESSIONS, round_count, rng)
    return float(locate_rows(location, values[:, :rounds]).std(ddof=1))


@lru_cache(maxsize=64)
def session_sigma_for(
    shape: str, total: float, location: Location, round_count: int, *, paired: bool = False
) -> float:
    """The standard deviation of sessions, and of rounds, at which session values of
    ``round_count`` rounds have ``total``: found by bisection. Raises ``ValueError``
    where slow rounds or slides alone exceed it.
    """
    low, high = 0.0, total
    if (
        realised_sigma(Noise(shape, low, low), location, round_count, round_count, paired=paired)
        >= total
    ):
        raise ValueError(f"{shape} noise alone exceeds a standard deviation of {total}")
    for _ in range(10):
        middle = (low + high) / 2
        too_much = (
            realised_sigma(
                Noise(shape, middle, middle), location, round_count, round_count, paired=paired
            )
            > total
        )
        low, high = (low, middle) if too_much else (middle, high)
    return low


def value_of(metric: str, loss: float, level: float = 100.0) -> float:
    """A loss on the log scale as a value of the metric, ``level`` being no loss."""
    sign = 1 if METRICS[metric].direction is Direction.LOWER_IS_BETTER else -1
    return level * math.exp(sign * loss)


def session_of(
    session_id: str,
    losses: Mapping[str, Sequence[float]],
    *,
    arm: Arm = Arm.CANDIDATE,
    pair_id: str | None = None,
) -> SessionMetrics:
    """A session whose rounds have the given losses, metric by metric."""
    count = max(map(len, losses.values()), default=0)
    rounds = tuple(
        RoundMetrics(
            round_index=index,
            pair_index=None if pair_id is None else index,
            values={
                name: MetricValue(value_of(name, series[index]), 1)
                for name, series in losses.items()
                if index < len(series)
            },
        )
        for index in range(count)
    )
    return SessionMetrics(
        session_id=session_id,
        arm=arm,
        pair_id=pair_id,
        rounds=rounds,
        values={},
        resolved_config={"block_size": 16},
    )


def cell_of(
    config: str,
    sessions: Sequence[SessionMetrics],
    *,
    mode: str = "baseline",
    target: str = "simulated",
    workload: str = "simulated",
) -> CellMeasurement:
    """A cell around sessions."""
    return CellMeasurement(
        target=target,
        config=config,
        workload=workload,
        mode=mode,
        hardware_class="simulated",
        plan_digest="simulated",
        sessions=tuple(sessions),
    )
