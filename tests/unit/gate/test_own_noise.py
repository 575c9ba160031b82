"""A config with a tolerance of its own: its noise stays out of its siblings' intervals,
and theirs out of its own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from k3perf.baselines.target_policy import pool_noise, pool_own_noise, with_noise_of
from k3perf.baselines.testable import testable
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.config.suite import load_suite
from k3perf.gate.compare import compare
from k3perf.gate.policy import Policy
from k3perf.gate.reference import recorded_reference
from k3perf.metrics.loss_scale import scale_for
from k3perf.records.baseline import Baseline
from k3perf.records.measurement import CellMeasurement
from k3perf.records.metric_definitions import METRICS
from k3perf.stats.estimators import Location, median, sample_variance
from k3perf.stats.noise import NO_NOISE
from k3perf.stats.reference import Level
from k3perf.store.measurements import read_measurement_file
from tests.unit.gate.conftest import LEVELS, RATE, Build

RECORDINGS = Path(__file__).resolve().parents[3] / "perf_tests" / "recordings"
LOUD = "batched_tokens_down"
TPOT = "tpot_mean_ms"
TOLERANCES = {RATE: Tolerance(loss_ratio=0.10), TPOT: Tolerance(loss_ratio=0.04)}
WIDE = {RATE: Tolerance(loss_ratio=0.6), TPOT: Tolerance(loss_ratio=0.6)}


@pytest.fixture(scope="module")
def plan() -> MeasurementPlan:
    """That of h200-k3, for three recorded sessions."""
    target = load_suite(RECORDINGS.parent).target("h200-k3")
    return target.measurement.model_copy(update={"baseline_sessions": 3})


@pytest.fixture(scope="module")
def recorded(plan: MeasurementPlan) -> dict[str, Baseline]:
    """The configs of h200-k3 as they were recorded: five within 1 to 3 % between
    sessions, batched_tokens_down at 15 and 11 %.
    """
    build = Build()
    cells: dict[str, list[CellMeasurement]] = {}
    for number in (1, 2, 3):
        for cell in read_measurement_file(RECORDINGS / f"h200-k3-{number}-2026-11-29.json").cells:
            cells.setdefault(cell.config, []).append(cell)
    from k3perf.baselines.propose import propose

    policy = build.policy(tolerances=TOLERANCES, plan=plan)
    return {
        config: propose(
            members, versions={}, policy=policy, previous=None, acceptance=build.acceptance()
        )
        for config, members in cells.items()
    }


def policy_of(plan: MeasurementPlan, **changes: object) -> Policy:
    return Build().policy(tolerances=TOLERANCES, plan=plan, gated_metric_count=36, **changes)


def level(baseline: Baseline, metric: str, policy: Policy) -> Level:
    """What a candidate's sessions are compared with."""
    workload = baseline.workloads[0]
    entry = next(entry for entry in workload.metrics if entry.metric == metric)
    cell = policy.for_cell(baseline.config, workload.workload)
    scale = replace(scale_for(METRICS[metric], cell.tolerances[metric]), basis=entry.basis)
    reference = recorded_reference(scale, entry, cell)
    return reference.at(reference.rounds)


def test_one_loud_config_would_take_its_siblings_power_and_does_not(
    plan: MeasurementPlan, recorded: dict[str, Baseline]
) -> None:
    siblings = [baseline for config, baseline in recorded.items() if config != LOUD]
    everybody = [*siblings, recorded[LOUD]]
    alone = with_noise_of(policy_of(plan), siblings)
    together = with_noise_of(policy_of(plan), everybody)
    apart = with_noise_of(policy_of(plan, config_tolerances={LOUD: WIDE}), everybody)
    assert len(siblings) == 5
    assert not [problem for baseline in siblings for problem in testable(baseline, alone)]
    assert sum(len(testable(baseline, together)) for baseline in siblings) >= 5
    assert not [problem for baseline in siblings for problem in testable(baseline, apart)]
    for baseline in siblings:
        for metric in TOLERANCES:
            assert level(baseline, metric, apart) == level(baseline, metric, alone)


@pytest.mark.parametrize(("metric", "sigma"), [(RATE, 0.15), (TPOT, 0.11)])
def test_quiet_siblings_do_not_make_a_loud_config_look_quieter(
    plan: MeasurementPlan, recorded: dict[str, Baseline], metric: str, sigma: float
) -> None:
    everybody = list(recorded.values())
    apart = with_noise_of(policy_of(plan, config_tolerances={LOUD: WIDE}), everybody)
    entry = next(entry for entry in recorded[LOUD].workloads[0].metrics if entry.metric == metric)
    scale = scale_for(METRICS[metric], WIDE[metric])
    own = sample_variance(
        [
            median([scale.loss(value) for value in session.round_values[:4]])
            for session in entry.sessions
        ]
    )
    found = level(recorded[LOUD], metric, apart)
    assert found.variance == pytest.approx(own)
    assert found.variance**0.5 == pytest.approx(sigma, abs=0.01)
    assert found.df == len(entry.sessions) - 1
    together = level(recorded[LOUD], metric, with_noise_of(policy_of(plan), everybody))
    assert metric in [problem.metric for problem in testable(recorded[LOUD], apart)], (
        "three sessions alone test nothing, whatever siblings say"
    )
    assert together.variance == pytest.approx(own), "louder than all others, so apart by itself"


def of_config(build: Build, config: str, factor: float = 1.0, workload: str = "chat") -> Baseline:
    sessions = [
        build.session(f"s{n}", build.rounds(1000.0 * (1 + factor * LEVELS[n]))) for n in range(6)
    ]
    return build.baseline(build.cell(sessions, config=config, workload=workload))


def test_configs_with_the_same_tolerance_share_their_noise_and_others_do_not(build: Build) -> None:
    wide, wider = Tolerance(loss_ratio=0.4), Tolerance(loss_ratio=0.5)
    own = {
        "a": {RATE: wide},
        "b": {RATE: wide},
        "c": {RATE: wider},
        "d": {RATE: None},
        "e": {TPOT: wide},
    }
    baselines = [
        of_config(build, config) for config in ("a", "b", "c", "d", "e", "default", "other")
    ]
    found = pool_own_noise(baselines, own)
    key = (RATE, "absolute")
    assert {config: len(noise[key].cells) for config, noise in found.items()} == {
        "a": 2,
        "b": 2,
        "c": 1,
    }
    assert found["a"][key] is found["b"][key]
    siblings = pool_noise(baselines, {RATE: Tolerance(loss_ratio=0.05)}, own)
    assert len(siblings[key].cells) == 3, (
        "e has its own word on another metric alone; d is gated nowhere, so its noise says nothing"
    )


def test_what_a_config_has_its_own_word_on_is_never_judged_by_its_siblings_noise(
    build: Build,
) -> None:
    own = {"loud": {RATE: Tolerance(loss_ratio=0.4)}}
    policy = with_noise_of(
        build.policy(config_tolerances=own),
        [of_config(build, "default"), of_config(build, "other")],
    )
    assert policy.for_cell("loud", "chat").noise_of(RATE, "absolute") is NO_NOISE
    assert len(policy.for_cell("default", "chat").noise_of(RATE, "absolute").cells) == 2


def test_all_ratios_are_on_one_scale_whatever_their_size() -> None:
    metric = METRICS[RATE]
    narrow, wide = (scale_for(metric, Tolerance(loss_ratio=ratio)) for ratio in (0.05, 0.6))
    assert narrow.loss(7.0) == wide.loss(7.0)


def test_a_loss_inside_the_own_tolerance_passes_beside_a_sibling_that_fails(build: Build) -> None:
    own = {"loud": {RATE: Tolerance(loss_ratio=0.3)}}
    baselines = [
        of_config(build, config, factor) for config, factor in (("default", 1.0), ("loud", 6.0))
    ]
    policy = with_noise_of(build.policy(config_tolerances=own), baselines)
    outcomes = {}
    for baseline in baselines:
        lost = build.cell(build.sessions(880.0, 4), config=baseline.config)
        outcomes[baseline.config] = str(
            compare(baseline, lost, replace(policy, plan=MeasurementPlan(mode="baseline"))).outcome
        )
    assert outcomes == {"default": "REGRESSED", "loud": "PASS"}


def test_the_noise_of_a_config_apart_is_taken_by_the_median_of_the_plans_fewest_rounds(
    build: Build,
) -> None:
    own = {"loud": {RATE: Tolerance(loss_ratio=0.4)}}
    policy = with_noise_of(
        build.policy(config_tolerances=own), [of_config(build, "loud"), of_config(build, "default")]
    )
    noise = policy.for_cell("loud", "chat").noise_of(RATE, "absolute")
    assert noise.choice(4, 12) == (Location.MEDIAN, 4)


def test_what_would_do_is_told_for_the_target_and_for_the_config_alone(build: Build) -> None:
    loud = of_config(build, "loud", 9.0)
    everybody = [loud, *(of_config(build, f"quiet{n}") for n in range(5))]
    (shared,) = testable(loud, with_noise_of(build.policy(), everybody))
    assert shared.own_tolerance_that_does is not None
    assert (
        f"one of {shared.own_tolerance_that_does:.3g} for this config only (configs in"
        " tolerances.yaml)" in shared.text()
    )
    assert shared.tolerance_that_does is None or "for the target" in shared.text()

    def apart(loss_ratio: float) -> Policy:
        return with_noise_of(
            build.policy(config_tolerances={"loud": {RATE: Tolerance(loss_ratio=loss_ratio)}}),
            everybody,
        )

    assert testable(loud, apart(1.001 * shared.own_tolerance_that_does)) == ()
    (narrow,) = testable(loud, apart(0.98 * shared.own_tolerance_that_does))
    assert narrow.tolerance_that_does == pytest.approx(shared.own_tolerance_that_does, rel=1e-6)
    assert (narrow.own, narrow.own_tolerance_that_does) == (True, None)
    assert "in every cell of the same tolerance" in narrow.text()


def test_what_would_do_for_a_config_of_several_workloads_is_what_the_gate_asks_of_it(
    build: Build,
) -> None:
    parts = [
        of_config(build, "loud", factor, workload)
        for factor, workload in ((9.0, "a"), (10.0, "b"), (8.0, "c"))
    ]
    loud = parts[0].model_copy(update={"workloads": tuple(part.workloads[0] for part in parts)})
    everybody = [loud, *(of_config(build, f"quiet{n}") for n in range(2))]
    found = testable(loud, with_noise_of(build.policy(), everybody))
    told = {problem.own_tolerance_that_does for problem in found}
    assert len(found) == 3
    assert len(told) == 1, "one tolerance holds for all workloads"
    (ratio,) = told
    assert ratio is not None

    def apart(loss_ratio: float) -> Policy:
        return with_noise_of(
            build.policy(config_tolerances={"loud": {RATE: Tolerance(loss_ratio=loss_ratio)}}),
            everybody,
        )

    assert testable(loud, apart(1.001 * ratio)) == ()
    assert testable(loud, apart(0.98 * ratio)) != ()


def test_a_workload_that_does_not_vary_and_one_that_tests_nothing(build: Build) -> None:
    """The first has no say in what would do; with the second nothing does."""

    def told(*parts: Baseline) -> set[float | None]:
        whole = parts[0].model_copy(
            update={"workloads": tuple(part.workloads[0] for part in parts)}
        )
        policy = with_noise_of(build.policy(), [whole])
        return {problem.own_tolerance_that_does for problem in testable(whole, policy)}

    loud = of_config(build, "loud", 9.0, "a")
    constant = [
        build.session(f"s{n}", [build.round(index, {RATE: 5.0}) for index in range(12)])
        for n in range(6)
    ]
    still = build.baseline(build.cell(constant, config="loud", workload="b"))
    assert told(loud, still) == told(loud)
    assert told(loud) != {None}
    siblings = [of_config(build, f"sibling{n}", 9.0) for n in range(3)]
    problems = testable(still, with_noise_of(build.policy(), [still, *siblings]))
    assert [problem.own_tolerance_that_does for problem in problems] == [0.05], (
        "beside loud siblings alone is it loud itself"
    )
    assert told(loud, of_config(build, "loud", 190.0, "b")) == {None}


def test_the_tolerance_that_does_is_one_that_can_be_declared(build: Build) -> None:
    """Up to 99 %, also where doubling from the one given steps over it."""

    def needed(factor: float, given: float) -> float | None:
        own = {"loud": {RATE: Tolerance(loss_ratio=given)}}
        loud = of_config(build, "loud", factor)
        return testable(loud, with_noise_of(build.policy(config_tolerances=own), [loud]))[
            0
        ].tolerance_that_does

    found = needed(55.0, 0.05)
    assert found is not None
    assert 0.64 < found < 0.99
    assert needed(55.0, 0.4) == pytest.approx(found, rel=1e-6)
    assert needed(190.0, 0.05) is None
