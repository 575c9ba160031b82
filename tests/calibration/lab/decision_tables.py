"""Tables of what the gate decides where its assumptions bend, and on the committed
targets. ``python -m tests.calibration.lab.decision_tables BENT_RUNS
TARGET_RUNS`` prints them.

A target's made-up sessions are normal, with the noise that its committed baselines
show, in as many cells as it has. Its metrics are drawn independently.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from k3perf.baselines.target_policy import target_policy, with_noise_of
from k3perf.config.models import MeasurementPlan
from k3perf.config.suite import Suite, load_suite
from k3perf.metrics.loss_scale import scale_for
from k3perf.records.metric_definitions import METRICS, Comparison
from k3perf.records.outcome import Outcome, join
from k3perf.stats.estimators import Location
from k3perf.store.baselines import read_target_baselines
from tests.calibration.lab.noisy import of_two_batches, outcomes_of, run_outcomes, with_loud_cell
from tests.calibration.lab.replay import Setting, quick_runs
from tests.calibration.lab.selftest import rate, simulated_setting, simulated_source
from tests.calibration.lab.simulation import Noise

ROOT: Final = Path(__file__).resolve().parents[3]
LOSSES: Final = (0.0, 1.0, 1.25, 1.5)
GREEN: Final = (Outcome.PASS, Outcome.IMPROVED, Outcome.INCONCLUSIVE)
MEDIAN_VARIANCE: Final = math.pi / 2
"""Of a median of many normal values, over that of their mean."""


def target_setting(suite: Suite, name: str) -> Setting | None:
    """None: the target has no committed timing with a relative tolerance."""
    target = suite.target(name)
    baselines = read_target_baselines(ROOT / "baselines", name)
    cells = sum(len(baseline.workloads) for baseline in baselines)
    policy = with_noise_of(target_policy(suite, target, gated_metric_count=1), baselines)
    plan = target.measurement
    noises, tolerances = {}, {}
    for metric, tolerance in policy.tolerances.items():
        scale = scale_for(METRICS[metric], tolerance, plan.mode)
        noise = policy.noise_of(metric, scale.basis)
        gated = METRICS[metric].comparison is Comparison.STATISTICAL and scale.logarithmic
        if not (gated and noise.cells and noise.round_count and noise.round_variance):
            continue
        location, rounds = noise.choice(plan.minimum_rounds, plan.maximum_rounds)
        of_rounds = noise.round_variance / rounds
        if location is Location.MEDIAN and rounds > 2:
            of_rounds *= MEDIAN_VARIANCE
        between = max(noise.between(location, rounds) - of_rounds, 0.0)
        noises[metric] = Noise("normal", math.sqrt(between), math.sqrt(noise.round_variance))
        tolerances[metric] = tolerance
    if not noises:
        return None
    source = simulated_source(noises, plan.maximum_rounds, paired=plan.mode == "reference")
    return Setting((source,) * cells, tolerances, plan)


def target_rows(runs: int) -> Iterator[str]:
    """One target and loss a row: the green share of runs, of one cell alone and of one
    metric alone, and the mean sessions of a cell.
    """
    suite = load_suite(ROOT / "perf_tests")
    for name in sorted(path.name for path in (ROOT / "baselines").iterdir() if path.is_dir()):
        setting = target_setting(suite, name)
        if setting is None:
            continue
        rng = np.random.default_rng(21)
        whole: list[list[Outcome]] = [[] for _ in LOSSES]
        alone: list[list[Outcome]] = [[] for _ in LOSSES]
        single: list[list[Outcome]] = [[] for _ in LOSSES]
        sessions: list[list[int]] = [[] for _ in LOSSES]
        for _ in range(runs):
            for at, run in enumerate(quick_runs(setting, LOSSES, rng)):
                found = outcomes_of(run)
                whole[at].append(join(found))
                alone[at] += found
                single[at] += [one for cell in run for one in cell.outcomes]
                sessions[at] += [cell.session_count for cell in run]
        size = f"{len(setting.sources)} x {len(setting.tolerances)}"
        for loss, *kinds in zip(LOSSES, whole, alone, single, strict=True):
            green = [rate(sum(one in GREEN for one in kind), len(kind)) for kind in kinds]
            count = np.mean(sessions[LOSSES.index(loss)])
            yield f"| {name} | {size} | {loss:g} | {' | '.join(green)} | {count:.1f} |"


def bent_rows(runs: int) -> Iterator[str]:
    """60 gated metrics with noise of a quarter of the tolerance: the share of red runs
    without a change where an assumption does not hold.
    """
    plan = MeasurementPlan(mode="baseline", maximum_sessions=3)
    usual = simulated_setting("normal", plan=plan)
    bent: dict[str, Callable[[], Setting]] = {
        "as recorded": lambda: usual,
        **{
            f"baselines moved {m:g} tolerances from their anchors": (
                lambda m=m: replace(usual, moved_tolerances=m)  # type: ignore[misc]
            )
            for m in (0.01, 0.25, 0.5, 2.0)
        },
        "candidate 2 times as noisy": lambda: replace(usual, candidate_noise=2.0),
        "candidate 3 times as noisy": lambda: replace(usual, candidate_noise=3.0),
        "candidate's sessions 2 times as noisy, rounds as recorded": (
            lambda: replace(usual, candidate_session_noise=2.0)
        ),
        "candidate's sessions 3 times as noisy, rounds as recorded": (
            lambda: replace(usual, candidate_session_noise=3.0)
        ),
        "one config 4 times as noisy": lambda: with_loud_cell(usual, 4.0),
        "one config 10 times as noisy": lambda: with_loud_cell(usual, 10.0),
        "another batch, a quarter of the tolerance apart": lambda: of_two_batches(usual, 0.25),
    }
    for name, make in bent.items():
        (found,) = run_outcomes(make(), (0.0,), runs, 31)
        reds, others = found.count(Outcome.REGRESSED), found.count(Outcome.SUSPECT)
        invalid = found.count(Outcome.INVALID)
        yield (
            f"| {name} | {rate(reds, len(found))} | {others / len(found):.1%} |"
            f" {invalid / len(found):.1%} |"
        )


if __name__ == "__main__":
    for row in chain(bent_rows(int(sys.argv[1])), target_rows(int(sys.argv[2]))):
        print(row, flush=True)
