"""What the tuning rules find on a simulated engine of known optimum and noise, and what
the rules of other tools find there.
"""

import pytest

from k3perf.records.tuning import TuningResult
from k3perf.tune.strategy import RunNames, Tuning

from .simulated_engine import (
    OTHER_RULES,
    SEQS,
    SimulatedEngine,
    false_winner,
    full_grid_rounds,
    plan,
)

RUNS = 200
KNEES = (32, 64, 128)
NAMES = RunNames("simulated", "none", "base", "load", {})


def tuned(engine: SimulatedEngine, **changes: object) -> TuningResult:
    return Tuning(plan(**changes), engine, NAMES).run()


@pytest.fixture(scope="module")
def with_a_knee() -> list[tuple[SimulatedEngine, TuningResult]]:
    engines = [SimulatedEngine(seed, knee=KNEES[seed % 3]) for seed in range(RUNS)]
    return [(engine, tuned(engine)) for engine in engines]


@pytest.fixture(scope="module")
def without_effect() -> list[tuple[SimulatedEngine, TuningResult]]:
    engines = [
        SimulatedEngine(10_000 + seed, knee=None, heavy=bool(seed % 2)) for seed in range(RUNS)
    ]
    return [(engine, tuned(engine)) for engine in engines]


def test_the_knee_is_found_within_one_grid_step(with_a_knee):
    hits = 0
    for engine, result in with_a_knee:
        knee = result.parameters[0].knee
        if knee is not None and knee.value is not None:
            hits += abs(SEQS.index(int(knee.value)) - SEQS.index(engine.knee)) <= 1
    assert hits >= 0.95 * RUNS


def test_the_knees_interval_covers_it(with_a_knee):
    covered = sum(
        result.parameters[0].knee.low <= engine.knee <= result.parameters[0].knee.high
        for engine, result in with_a_knee
    )
    assert covered >= 0.95 * RUNS


def test_a_true_gain_is_proposed(with_a_knee):
    """Without this the rule that never proposes anything would pass every other test."""
    found = [result.proposal.get("max_num_seqs", 0) for _, result in with_a_knee]
    assert sum(seqs >= 32 for seqs in found) >= 0.95 * RUNS


def test_a_false_winner_is_rare(with_a_knee, without_effect):
    false = [false_winner(engine, result.proposal) for engine, result in with_a_knee]
    ridden = [set(result.proposal) - {"max_num_seqs"} for _, result in with_a_knee]
    assert sum(false) + sum(map(bool, ridden)) <= 0.01 * RUNS
    assert sum(bool(result.proposal) for _, result in without_effect) <= 0.01 * RUNS


def test_a_third_of_the_full_grids_rounds_is_enough(with_a_knee, without_effect):
    most = max(result.round_count for _, result in [*with_a_knee, *without_effect])
    assert most <= full_grid_rounds() / 3


def test_what_has_no_effect_is_bounded(without_effect):
    """The true effect is 0, so a bound can only be missing or too small by mistake."""
    bounds = [
        finding.nothing_beyond_ratio
        for _, result in without_effect
        for finding in result.parameters
    ]
    known = [bound for bound in bounds if bound is not None]
    assert len(known) >= 0.95 * len(bounds)
    assert sorted(known)[len(known) // 2] < 0.08


@pytest.mark.parametrize("name", OTHER_RULES)
def test_other_rules_crown_the_luckiest_run(name):
    """auto_tune's and optuna's rule where nothing has an effect."""
    rule = OTHER_RULES[name]
    false = sum(bool(rule(SimulatedEngine(10_000 + seed, knee=None))) for seed in range(40))
    assert false >= 0.7 * 40


def test_a_combination_that_loses_to_its_best_part_is_not_proposed():
    """FP8 KV with a speculative decoder: good alone, bad together."""
    gains = {4096: 0.15, 8192: 0.15}
    lost = 0
    for seed in range(20):
        engine = SimulatedEngine(seed, token_gain=gains, interaction=-0.4)
        result = tuned(engine)
        lost += len(result.proposal) > 1
    assert lost == 0


def test_gains_that_add_up_are_combined():
    """The opposite: two true gains without an interaction are proposed together."""
    gains = {4096: 0.15, 8192: 0.15, 16384: 0.15}
    both, excess = 0, []
    for seed in range(20):
        result = tuned(SimulatedEngine(seed, token_gain=gains))
        both += len(result.proposal) == 2
        if result.interaction is not None:
            excess.append(result.interaction.excess.ratio)
    assert both >= 18
    assert abs(sum(excess) / len(excess)) < 0.02


def test_the_same_source_gives_the_same_result():
    assert tuned(SimulatedEngine(3)) == tuned(SimulatedEngine(3))
