"""Processor time of ``compare`` over a large suite: 200 cells x 12 metrics. Goal: under 100 ms for all of them.

Run: ``python benchmarks/gate_compare.py``. Prints the best and the median of seven passes, at no change (one look decides) and at a loss.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.baseline import Baseline
from k3perf.gate.compare import compare
from k3perf.gate.noise import pool_noise
from k3perf.gate.policy import Policy
from k3perf.gate.propose import propose
from k3perf.gate.replay import ACCEPTANCE
from k3perf.gate.simulation import Noise, cell_of, session_of, session_rounds
from k3perf.metrics.definitions import METRICS, Comparison, Scope
from k3perf.metrics.values import CellMeasurement

CELLS = 200
METRIC_COUNT = 12
NOISE = Noise("normal", 0.008, 0.008)


def build(loss: float, rounds: int, sessions: int) -> tuple[list[tuple[Baseline, CellMeasurement]], Policy]:
    """Baselines of six sessions of 12 rounds and measurements of the given size."""
    names = [m.name for m in METRICS.values() if m.comparison is Comparison.STATISTICAL and m.scope is Scope.ROUND][:METRIC_COUNT]
    rng = random.Random(1)
    policy = Policy(
        tolerances=dict.fromkeys(names, Tolerance(loss_ratio=0.05)),
        plan=MeasurementPlan(mode="baseline"),
        gated_metric_count=CELLS * METRIC_COUNT,
        today=date(2026, 1, 1),
    )

    def made(prefix: str, count: int, size: int, shift: float):
        drawn = [{name: [value + shift for value in session_rounds(NOISE, size, rng)] for name in names} for _ in range(count)]
        return [session_of(f"{prefix}{index}", losses) for index, losses in enumerate(drawn)]

    pairs = []
    for index in range(CELLS):
        recorded = cell_of(f"c{index}", made("b", 6, 12, 0.0))
        baseline = propose([recorded], versions={}, policy=policy, previous=None, acceptance=ACCEPTANCE)
        pairs.append((baseline, cell_of(f"c{index}", made("c", sessions, rounds, loss))))
    return pairs, replace(policy, noise=pool_noise([baseline for baseline, _ in pairs], policy.tolerances))


def passes(pairs: Sequence[tuple[Baseline, CellMeasurement]], policy: Policy, count: int = 7) -> list[float]:
    """Processor seconds of each pass over all cells: compare has one thread and waits for nothing.

    The first pass, which fills the caches of quantiles, is left out.
    """
    taken = []
    for _ in range(count + 1):
        start = time.process_time()
        for baseline, measurement in pairs:
            compare(baseline, measurement, policy)
        taken.append(time.process_time() - start)
    return taken[1:]


def main() -> None:
    for label, loss, rounds, sessions in (
        ("no change, 1 session x 4 rounds", 0.0, 4, 1),
        ("7.5 % loss, 2 sessions x 4 rounds", math.log1p(0.075), 4, 2),
    ):
        taken = passes(*build(loss, rounds, sessions))
        print(
            f"{CELLS} cells x {METRIC_COUNT} metrics, {label}: best {min(taken) * 1e3:.0f} ms, median {statistics.median(taken) * 1e3:.0f} ms"
        )


if __name__ == "__main__":
    main()
