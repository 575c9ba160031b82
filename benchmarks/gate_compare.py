"""Processor time of ``compare`` over a large suite: 200 cells x 12 metrics. Goal: under
100 ms for all of them, also where every cell needs two looks.

Run: ``python benchmarks/gate_compare.py``. Prints the first pass, which reads every
baseline and fills the caches, and the best and the median of seven further ones, at no
change (one look decides) and at a loss (two do).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tests.calibration.lab.replay import ACCEPTANCE, metric_loss
from tests.calibration.lab.simulation import Noise, cell_of, session_of, session_rounds

from k3perf.baselines.propose import propose
from k3perf.baselines.target_policy import pool_noise
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.compare import compare
from k3perf.gate.policy import Policy
from k3perf.gate.reference import References
from k3perf.records.baseline import Baseline
from k3perf.records.measurement import CellMeasurement
from k3perf.records.metric_definitions import METRICS, Comparison, Scope

CELLS = 200
METRIC_COUNT = 12
NOISE = Noise("normal", 0.008, 0.008)


def build(
    loss: float, rounds: int, sessions: int
) -> tuple[list[tuple[Baseline, CellMeasurement]], Policy]:
    """Baselines of six sessions of 12 rounds and measurements of the given size."""
    names = [
        m.name
        for m in METRICS.values()
        if m.comparison is Comparison.STATISTICAL and m.scope is Scope.ROUND
    ][:METRIC_COUNT]
    rng = np.random.default_rng(1)
    policy = Policy(
        tolerances=dict.fromkeys(names, Tolerance(loss_ratio=0.05)),
        plan=MeasurementPlan(mode="baseline"),
        gated_metric_count=CELLS * METRIC_COUNT,
    )

    def made(prefix: str, count: int, size: int, shift: float):
        drawn = {
            name: session_rounds(NOISE, count, size, rng) + metric_loss(name, shift) * (shift > 0)
            for name in names
        }
        return [
            session_of(
                f"{prefix}{index}", {name: rows[index].tolist() for name, rows in drawn.items()}
            )
            for index in range(count)
        ]

    pairs = []
    for index in range(CELLS):
        recorded = cell_of(f"c{index}", made("b", 6, 12, 0.0))
        baseline = propose(
            [recorded], versions={}, policy=policy, previous=None, acceptance=ACCEPTANCE
        )
        pairs.append((baseline, cell_of(f"c{index}", made("c", sessions, rounds, loss))))
    return pairs, replace(
        policy, noise=pool_noise([baseline for baseline, _ in pairs], policy.tolerances)
    )


def passes(
    pairs: Sequence[tuple[Baseline, CellMeasurement]], policy: Policy, count: int = 7
) -> list[float]:
    """Processor seconds of each pass over all cells, the first one included: compare
    has one thread and waits for nothing.
    """
    taken = []
    references = References()
    for _ in range(count + 1):
        start = time.process_time()
        for baseline, measurement in pairs:
            compare(baseline, measurement, policy, references)
        taken.append(time.process_time() - start)
    return taken


def main() -> None:
    for label, loss, rounds, sessions in (
        ("no change, 1 session x 4 rounds", 0.0, 4, 1),
        ("7.5 % loss, 2 sessions x 4 rounds", 0.075, 4, 2),
    ):
        first, *taken = passes(*build(loss, rounds, sessions))
        print(
            f"{CELLS} cells x {METRIC_COUNT} metrics, {label}: first {first * 1e3:.0f} ms, "
            f"then best {min(taken) * 1e3:.0f} ms, median {statistics.median(taken) * 1e3:.0f} ms"
        )


if __name__ == "__main__":
    main()
