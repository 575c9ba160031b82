"""Settings in which the noise is not as recorded, and a run's verdict with the rule for
the candidate's own noise. Pure and seeded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from k3perf.ci.run_noise import judged_by_own_noise
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.decision import Decision
from k3perf.records.outcome import Outcome, join
from k3perf.records.verdict import CellVerdict, MetricVerdict
from tests.calibration.lab.replay import CellSource, Replayed, Session, Setting, quick_runs
from tests.calibration.lab.selftest import GATED, SUITE_METRICS, simulated_source
from tests.calibration.lab.simulation import OUTLIER_LOSS, Noise, Rounds


def louder(source: CellSource, times: float) -> CellSource:
    """The same cell with all its deviations so many times as large, recorded ones too."""

    def draw(rng: np.random.Generator, count: int) -> Sequence[Session]:
        return [
            (
                {name: tuple(times * loss for loss in losses) for name, losses in own.items()},
                None,
            )
            for own, _ in source(rng, count)
        ]

    return draw


def with_loud_cell(setting: Setting, times: float) -> Setting:
    """One config of the target is noisier than its siblings."""
    first, *others = setting.sources
    return replace(setting, sources=(louder(first, times), *others))


def _verdict(decision: Decision) -> MetricVerdict:
    noise: dict[str, Any] = {} if decision.noise is None else decision.noise.as_fields()
    return MetricVerdict("output_tokens_per_s", "", decision.outcome, **noise)


def outcomes_of(run: Sequence[Replayed]) -> list[Outcome]:
    """Of a run's cells, judged together."""
    cells = judged_by_own_noise(
        CellVerdict(
            "simulated",
            f"cell{number}",
            "simulated",
            metrics=tuple(map(_verdict, cell.decisions)),
        )
        for number, cell in enumerate(run)
    )
    return [cell.outcome for cell in cells]


def run_outcomes(
    setting: Setting, tolerances: Sequence[float], runs: int, seed: int
) -> list[list[Outcome]]:
    """Per loss the joined outcome of each run."""
    rng = np.random.default_rng(seed)
    found: list[list[Outcome]] = [[] for _ in tolerances]
    for _ in range(runs):
        for at_loss, run in zip(found, quick_runs(setting, tolerances, rng), strict=True):
            at_loss.append(join(outcomes_of(run)))
    return found


def of_two_batches(setting: Setting, share: float) -> Setting:
    """The candidates are of another day than the baseline. Each cell and metric is
    shifted by a normal draw with that share of the tolerance.
    """

    def batched(source: CellSource) -> CellSource:
        def draw(rng: np.random.Generator, count: int) -> Sequence[Session]:
            first = setting.plan.baseline_sessions
            drawn = source(rng, count)
            shifts = {
                name: share * setting.loss_of(name, 1.0) * float(rng.standard_normal())
                for name in drawn[0][0]
            }
            return [
                *drawn[:first],
                *(
                    (
                        {
                            name: tuple(loss + shifts[name] for loss in losses)
                            for name, losses in own.items()
                        },
                        beside,
                    )
                    for own, beside in drawn[first:]
                ),
            ]

        return draw

    return replace(setting, sources=tuple(map(batched, setting.sources)))


def unlike_cells(spread: float, cells: int, seed: int) -> Setting:
    """Cells whose noise differs by a log-normal factor of that sigma."""
    rng = np.random.default_rng(seed)
    sigma = 0.25 * math.log1p(0.05) / 1.06
    metrics = GATED[: 60 // cells] if cells >= 20 else GATED
    sources = []
    for _ in range(cells):
        own = sigma * math.exp(rng.standard_normal() * spread)
        sources.append(
            simulated_source(dict.fromkeys(metrics, Noise("normal", own, own)), 12, paired=False)
        )
    repeats = max(1, SUITE_METRICS // (cells * len(metrics)))
    return Setting(
        tuple(sources),
        dict.fromkeys(metrics, Tolerance(loss_ratio=0.05)),
        MeasurementPlan(mode="baseline", maximum_sessions=5),
        repeats=repeats,
    )


def with_stalls(setting: Setting, session_share: float, *, by_turns: bool = False) -> Setting:
    """In that share of the candidate's sessions half of the rounds are twice as slow,
    for all metrics; the baseline never saw such rounds.

    A robust sigma of six rounds is out of line from three slow ones on. ``by_turns``:
    every other round of the candidate, which is an engine that has lost its steadiness;
    else rounds at random and, in pairs, of either arm: a busy host.
    """
    rng = np.random.default_rng(3)
    recorded = setting.plan.baseline_sessions

    def hit(values: Rounds, slow: set[int]) -> Rounds:
        return tuple(value + OUTLIER_LOSS * (index in slow) for index, value in enumerate(values))

    def stalling(source: CellSource) -> CellSource:
        def draw(draws: np.random.Generator, count: int) -> list[Session]:
            sessions = source(draws, count)
            found = list(sessions[:recorded])
            for own, beside in sessions[recorded:]:
                rounds = setting.plan.maximum_rounds
                stalled = rng.random() < session_share
                slow = (
                    (
                        range(1, rounds, 2)
                        if by_turns
                        else rng.choice(rounds, rounds // 2, replace=False).tolist()
                    )
                    if stalled
                    else ()
                )
                other = {
                    place
                    for place in slow
                    if beside is not None and not by_turns and rng.random() < 0.5
                }
                both = [(own, set(slow) - other), (beside or {}, other)]
                now, then = (
                    {metric: hit(values, places) for metric, values in arm.items()}
                    for arm, places in both
                )
                found.append((now, then or None))
            return found

        return draw

    return replace(setting, sources=tuple(stalling(source) for source in setting.sources))
