"""`h200-k3` default at the tolerances that are committed for it, along the path that a
run takes: propose, pool, compare, buy.

The self-test's replay tries the smallest tolerances that its own promises speak of;
here the question is what the gate does with the ones that a pull request meets. Nine
recorded sessions of three hosts are split into six and three in every way; losses are
injected into every round.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import combinations, islice
from pathlib import Path
from typing import Final

from k3perf.baselines.propose import propose
from k3perf.baselines.target_policy import target_policy, with_noise_of
from k3perf.config.gated import statistical_metric_count
from k3perf.config.suite import load_suite
from k3perf.gate.compare import compare
from k3perf.records.measurement import CellMeasurement, MetricValue, RoundMetrics, SessionMetrics
from k3perf.records.outcome import Outcome, join
from k3perf.store.baselines import read_target_baselines
from k3perf.store.measurements import read_measurement_file
from tests.calibration.lab.replay import ACCEPTANCE

REPOSITORY = Path(__file__).resolve().parents[2]
SUITE = load_suite(REPOSITORY / "perf_tests")
TARGET: Final = "h200-k3"
CANDIDATES: Final = 3
TIMES: Final = {"tpot_mean_ms": 1, "output_tokens_per_s": -1}
"""What a step that takes longer does to a metric: in proportion, or in inverse
proportion.
"""


@cache
def recorded() -> CellMeasurement:
    cells = [
        cell
        for path in sorted(
            (REPOSITORY / "perf_tests" / "recordings").glob("h200-k3-[1-4]-2026-11-29.json")
        )
        for cell in read_measurement_file(path).cells
        if cell.config == "default"
    ]
    return replace(cells[0], sessions=tuple(session for cell in cells for session in cell.sessions))


def slowed(session: SessionMetrics, factor: float) -> SessionMetrics:
    """Its valid rounds, each of which took ``factor`` times as long."""

    def value(metric: str, was: MetricValue) -> MetricValue:
        return (
            was
            if was.value is None or metric not in TIMES
            else replace(was, value=was.value * factor ** TIMES[metric])
        )

    def whole(measured: RoundMetrics) -> RoundMetrics:
        return replace(
            measured, values={metric: value(metric, was) for metric, was in measured.values.items()}
        )

    return replace(
        session,
        rounds=tuple(
            whole(measured) for measured in session.rounds if not measured.invalid_reasons
        ),
    )


def judged(
    baseline_sessions: tuple[SessionMetrics, ...], candidates: tuple[SessionMetrics, ...]
) -> Outcome:
    target = SUITE.target(TARGET)
    plan = target.measurement.model_copy(
        update=dict.fromkeys(("maximum_sessions", "maximum_suspect_sessions"), len(candidates))
    )
    count = statistical_metric_count(SUITE, SUITE.cells((TARGET,)))
    policy = replace(target_policy(SUITE, target, gated_metric_count=count), plan=plan)
    siblings = [
        b for b in read_target_baselines(REPOSITORY / "baselines", TARGET) if b.config != "default"
    ]
    cell = recorded()
    own = propose(
        [replace(cell, sessions=baseline_sessions)],
        versions={},
        policy=policy,
        previous=None,
        acceptance=ACCEPTANCE,
    )
    policy = with_noise_of(policy, [own, *siblings])
    bought = [plan.minimum_rounds]
    while True:
        measured = tuple(
            replace(s, rounds=s.rounds[:rounds])
            for s, rounds in zip(candidates, bought, strict=False)
        )
        verdict = compare(own, replace(cell, sessions=measured), policy)
        more = verdict.buy_until_sessions - len(bought)
        wanted = [max(had, verdict.buy_until_rounds) for had in bought] + [
            verdict.buy_until_rounds
        ] * more
        if not verdict.buy_until_sessions or wanted == bought:
            return join(metric.outcome for metric in verdict.metrics if metric.metric in TIMES)
        bought = wanted


def outcomes(factor: float, step: int) -> Counter[str]:
    sessions = recorded().sessions
    found: Counter[str] = Counter()
    for chosen in islice(combinations(range(len(sessions)), CANDIDATES), 0, None, step):
        rest = tuple(session for index, session in enumerate(sessions) if index not in chosen)
        found[judged(rest, tuple(slowed(sessions[index], factor) for index in chosen)).name] += 1
    return found


def test_no_clean_split_is_red_and_one_and_a_half_tolerances_are_always_seen() -> None:
    clean, lost = outcomes(1.0, 4), outcomes(1.06, 4)
    assert clean == {"PASS": 21}
    assert lost == {"REGRESSED": 21}


def test_five_percent_are_caught_in_most_splits_and_pass_in_none() -> None:
    """A tolerance of 4 % promises 6 %. What lies between is caught more often than not,
    and otherwise said to be undecided.
    """
    found = outcomes(1.05, 4)
    assert set(found) <= {"REGRESSED", "SUSPECT", "INCONCLUSIVE"}
    assert found["REGRESSED"] > found["SUSPECT"] + found["INCONCLUSIVE"]
