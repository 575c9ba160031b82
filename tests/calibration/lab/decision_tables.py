"""Tables of what the gate decides where its assumptions bend, and on the committed
targets. ``python -m tests.calibration.lab.decision_tables BENT_RUNS
TARGET_RUNS`` prints them.

A target's made-up sessions are normal, with the noise that its committed baselines
show, in as many cells as it has. The metrics of a cell are as correlated as recorded.
Minutes are those of ``perf_tests/costs.json``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from k3perf.baselines.target_policy import target_policy, with_noise_of
from k3perf.ci.costs import RecordedCosts
from k3perf.config.models import MeasurementPlan
from k3perf.config.suite import Suite, load_suite
from k3perf.metrics.loss_scale import scale_for
from k3perf.records.metric_definitions import METRICS, Comparison
from k3perf.records.outcome import Outcome, join
from k3perf.stats.estimators import Location
from k3perf.store.baselines import read_target_baselines
from tests.calibration.lab.correlated import Correlation, correlated_source, recorded_correlation
from tests.calibration.lab.noisy import of_two_batches, outcomes_of, run_outcomes, with_loud_cell
from tests.calibration.lab.replay import Replayed, Setting, quick_runs
from tests.calibration.lab.selftest import rate, simulated_setting
from tests.calibration.lab.simulation import Noise

ROOT: Final = Path(__file__).resolve().parents[3]
LOSSES: Final = (0.0, 1.0, 1.25, 1.5)
GREEN: Final = (Outcome.PASS, Outcome.IMPROVED, Outcome.INCONCLUSIVE)
MEDIAN_VARIANCE: Final = math.pi / 2
"""Of a median of many normal values, over that of their mean."""


class TargetTrial(NamedTuple):
    """A committed target's setting, and how its metrics were correlated when
    recorded.
    """

    setting: Setting
    correlation: Correlation


def target_trial(suite: Suite, name: str) -> TargetTrial | None:
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
    correlation = recorded_correlation(baselines, tolerances, plan.mode)
    source = correlated_source(noises, plan.maximum_rounds, correlation)
    return TargetTrial(Setting((source,) * cells, tolerances, plan), correlation)


class SessionCost(NamedTuple):
    """Seconds: an engine's start and a session's rounds, medians over a target's
    configs.
    """

    start_s: float
    rounds_s: float

    def run_minutes(self, run: Sequence[Replayed], mode: str) -> float:
        """Of a run's cells one after another. Every session has its own start and all
        its rounds, so it is an upper limit. In ``reference`` mode one more engine
        starts for each round of sessions, and serves all cells.
        """
        sessions = [cell.session_count for cell in run]
        spent_s = sum(sessions) * (self.start_s + self.rounds_s)
        return (spent_s + (mode == "reference") * max(sessions) * self.start_s) / 60


def session_cost(name: str, costs: RecordedCosts) -> SessionCost:
    """Raises ValueError if no run of the target was recorded there."""
    starts = [cost for key, cost in costs.engine_start_s.items() if key.startswith(f"{name}/")]
    configs = {key.partition("/")[2] for key in costs.engine_start_s if key.startswith(f"{name}/")}
    cells = [
        cost
        for key, cost in costs.session_s.items()
        if any(key.startswith(f"{name}-{config}-") for config in configs)
    ]
    if not starts or not cells:
        raise ValueError(f"perf_tests/costs.json has no session of {name}")
    return SessionCost(median(starts), median(cells))


def target_rows(runs: int) -> Iterator[str]:
    """One target and loss a row: the green share of runs, of one cell alone and of one
    metric alone, the mean sessions of a cell and the mean minutes of a run.
    """
    suite = load_suite(ROOT / "perf_tests")
    costs = RecordedCosts.model_validate_json((ROOT / "perf_tests" / "costs.json").read_text())
    for name in sorted(path.name for path in (ROOT / "baselines").iterdir() if path.is_dir()):
        trial = target_trial(suite, name)
        if trial is None:
            continue
        setting, cost = trial.setting, session_cost(name, costs)
        rng = np.random.default_rng(21)
        whole: list[list[Outcome]] = [[] for _ in LOSSES]
        alone: list[list[Outcome]] = [[] for _ in LOSSES]
        single: list[list[Outcome]] = [[] for _ in LOSSES]
        sessions: list[list[int]] = [[] for _ in LOSSES]
        minutes: list[list[float]] = [[] for _ in LOSSES]
        for _ in range(runs):
            for at, run in enumerate(quick_runs(setting, LOSSES, rng)):
                found = outcomes_of(run)
                whole[at].append(join(found))
                alone[at] += found
                single[at] += [one for cell in run for one in cell.outcomes]
                sessions[at] += [cell.session_count for cell in run]
                minutes[at].append(cost.run_minutes(run, setting.mode))
        size = f"{len(setting.sources)} x {len(setting.tolerances)}"
        least, most = trial.correlation.range
        size += f", r {least:.2f} to {most:.2f}"
        for at, (loss, *kinds) in enumerate(zip(LOSSES, whole, alone, single, strict=True)):
            green = [rate(sum(one in GREEN for one in kind), len(kind)) for kind in kinds]
            spent = f"{np.mean(sessions[at]):.1f} | {np.mean(minutes[at]):.0f}"
            yield f"| {name} | {size} | {loss:g} | {' | '.join(green)} | {spent} |"


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
