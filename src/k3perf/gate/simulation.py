"""Made-up noise to measured cells: what the gate is calibrated on, beside recorded noise. Pure and seeded.

Noise has two parts, a session's own level and its rounds' scatter, in units of the logarithm of the value. Each shape is standardised
to the given standard deviations, so that shapes differ in nothing but shape.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from k3perf.metrics.definitions import METRICS, Direction
from k3perf.metrics.values import CellMeasurement, MetricValue, RoundMetrics, SessionMetrics
from k3perf.samples import Arm

Rounds = tuple[float, ...]
"""One session's rounds, on the loss scale around 0."""

LOG_NORMAL_SHAPE: Final = 0.25
"""On top of the logarithm: values that are plainly log-normal are normal on the loss scale."""

HEAVY_TAIL_DF: Final = 4
OUTLIER_SHARE: Final = 0.1
OUTLIER_LOSS: Final = math.log(2)
DRIFT_PER_ROUND: Final = 0.0075
"""9 % over 12 rounds: the slide seen on an idle CPU machine within ten minutes."""


@dataclass(frozen=True, slots=True)
class Noise:
    """A shape of noise with its standard deviations between sessions and between the rounds of a session."""

    shape: str
    session_sigma: float
    round_sigma: float


def _normal(rng: random.Random) -> float:
    return rng.gauss(0.0, 1.0)


def _log_normal(rng: random.Random) -> float:
    """Skewed towards the loss (skewness 0.78), mean 0 and variance 1."""
    square = LOG_NORMAL_SHAPE**2
    centred = math.exp(rng.gauss(0.0, LOG_NORMAL_SHAPE)) - math.exp(square / 2)
    return centred / math.sqrt(math.expm1(square) * math.exp(square))


def _heavy_tailed(rng: random.Random) -> float:
    """Student's t with 4 degrees of freedom, scaled to variance 1: its fourth moment is infinite."""
    chi_square = 2 * rng.gammavariate(HEAVY_TAIL_DF / 2, 1.0)
    return rng.gauss(0.0, 1.0) / math.sqrt(chi_square / HEAVY_TAIL_DF) * math.sqrt((HEAVY_TAIL_DF - 2) / HEAVY_TAIL_DF)


def _two_level(rng: random.Random) -> float:
    """One of two levels, like a process that lands on one of two memory layouts."""
    return rng.choice((-1.0, 1.0))


DRAWS: Final[Mapping[str, Callable[[random.Random], float]]] = MappingProxyType(
    {
        "normal": _normal,
        "log_normal": _log_normal,
        "heavy_tailed": _heavy_tailed,
        "outlier_contaminated": _normal,
        "drifting": _normal,
        "two_level": _two_level,
    }
)
SHAPES: Final = tuple(DRAWS)


def session_rounds(noise: Noise, round_count: int, rng: random.Random) -> Rounds:
    """One session's rounds.

    two_level: the session's level is one of two, its rounds are normal. outlier_contaminated: normal, and each round is twice as slow
    with probability 0.1. drifting: normal, and the session slides at a constant rate of its own, up to 9 % either way in 12 rounds.
    """
    draw = DRAWS[noise.shape]
    round_draw = _normal if noise.shape == "two_level" else draw
    level = draw(rng) * noise.session_sigma
    slope = rng.uniform(-DRIFT_PER_ROUND, DRIFT_PER_ROUND) if noise.shape == "drifting" else 0.0
    rounds = []
    for index in range(round_count):
        slow = OUTLIER_LOSS if noise.shape == "outlier_contaminated" and rng.random() < OUTLIER_SHARE else 0.0
        rounds.append(level + round_draw(rng) * noise.round_sigma + slope * (index - (round_count - 1) / 2) + slow)
    return tuple(rounds)


def paired_rounds(noise: Noise, round_count: int, rng: random.Random) -> tuple[Rounds, Rounds]:
    """A candidate's and a reference's rounds in alternation on a machine that slides by 0.75 % a pair and wanders besides.

    The pair's own noise has the given standard deviations: half of each variance comes from either arm.
    """
    half = Noise(
        "normal" if noise.shape == "drifting" else noise.shape, noise.session_sigma / math.sqrt(2), noise.round_sigma / math.sqrt(2)
    )
    candidate, reference = session_rounds(half, round_count, rng), session_rounds(half, round_count, rng)
    wander, machine = 0.0, []
    for index in range(round_count):
        wander += rng.gauss(0.0, noise.round_sigma)
        machine.append(wander + DRIFT_PER_ROUND * index)
    together = [tuple(loss + shared for loss, shared in zip(arm, machine, strict=True)) for arm in (candidate, reference)]
    return together[0], together[1]


def value_of(metric: str, loss: float, level: float = 100.0) -> float:
    """A loss on the log scale as a value of the metric, ``level`` being no loss."""
    sign = 1 if METRICS[metric].direction is Direction.LOWER_IS_BETTER else -1
    return level * math.exp(sign * loss)


def session_of(
    session_id: str, losses: Mapping[str, Sequence[float]], *, arm: Arm = Arm.CANDIDATE, pair_id: str | None = None
) -> SessionMetrics:
    """A session whose rounds have the given losses, metric by metric."""
    count = max(map(len, losses.values()), default=0)
    rounds = tuple(
        RoundMetrics(
            round_index=index,
            pair_index=None if pair_id is None else index,
            values={name: MetricValue(value_of(name, series[index]), 1) for name, series in losses.items() if index < len(series)},
        )
        for index in range(count)
    )
    return SessionMetrics(session_id=session_id, arm=arm, pair_id=pair_id, rounds=rounds, values={}, resolved_config={"block_size": 16})


def cell_of(
    config: str, sessions: Sequence[SessionMetrics], *, mode: str = "baseline", target: str = "simulated", workload: str = "simulated"
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
