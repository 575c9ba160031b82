"""Each estimator of a session's rounds under each shape of noise, and what the gate chooses:
a table of ``docs/studies/2026-11-30-gate-error-rates.md``. Pure, seeded.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from k3perf.config.models import MeasurementPlan
from k3perf.stats.estimators import Location
from k3perf.stats.noise import MetricNoise
from tests.calibration.lab.simulation import DRAWS, Noise, realised_sigma, session_rounds

SUITE_CELLS: Final = 20
DRAWN: Final = 100
"""Recordings of a whole suite that the choice is counted over."""


def choices(
    noise: Noise, plan: MeasurementPlan, *, seed: int = 1, drawn: int
) -> Counter[tuple[str, int]]:
    """How often each (location, rounds) is chosen from a suite's recorded sessions."""
    rng = np.random.default_rng(seed)
    found: Counter[tuple[str, int]] = Counter()
    for _ in range(drawn):
        cells = [
            session_rounds(noise, plan.baseline_sessions, plan.maximum_rounds, rng).tolist()
            for _ in range(SUITE_CELLS)
        ]
        recorded = MetricNoise(
            tuple(tuple(map(tuple, cell)) for cell in cells), plan.maximum_rounds
        )
        location, rounds = recorded.choice(plan.minimum_rounds, plan.maximum_rounds)
        found[str(location), rounds] += 1
    return found


def location_table(noises: dict[str, Noise], quarter: float, plan: MeasurementPlan) -> str:
    """Markdown: per shape the realised standard deviation of a session's value by
    location and number of rounds, in units of ``quarter``, and the commonest choice.
    """
    counts = (plan.minimum_rounds, 8, plan.maximum_rounds)
    heads = [f"{location}, {' / '.join(map(str, counts))} rounds" for location in Location]
    lines = [f"| noise | {' | '.join(heads)} | chosen |", "| --- " * (len(heads) + 2) + "|"]
    for shape in DRAWS:
        noise = noises[shape]
        cells = [
            " / ".join(
                f"{realised_sigma(noise, location, rounds, plan.maximum_rounds) / quarter:.2f}"
                for rounds in counts
            )
            for location in Location
        ]
        found = choices(noise, plan, drawn=DRAWN).most_common(2)
        told = ", ".join(
            f"{name} of {rounds} rounds ({count} of {DRAWN})" for (name, rounds), count in found
        )
        lines.append(f"| {shape.replace('_', ' ')} | {' | '.join(cells)} | {told} |")
    return "\n".join(lines)
