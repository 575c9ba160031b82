"""The parts of the tuning rules: fit, knee, race, bounds, front, budget, failures."""

import math

import numpy as np
import pytest

from k3perf.records.tuning import BoundSpec, Fate, label_of
from k3perf.tune.block_fit import BlockFit
from k3perf.tune.confirm import effect_of, no_judge
from k3perf.tune.front import Front
from k3perf.tune.interaction import combine, known_pair_text
from k3perf.tune.knee import find_knee
from k3perf.tune.ledger import Ledger, fit_of
from k3perf.tune.plan import Parameter
from k3perf.tune.strategy import Tuning

from .simulated_engine import BASE, PARAMETERS, SimulatedEngine, plan
from .test_tuning_rules import NAMES


def table(rows, blocks=4, sigma=0.0, block_steps=0.0, seed=1):
    random = np.random.default_rng(seed)
    return {
        label: {
            block: value + block_steps * block + sigma * random.standard_normal()
            for block in range(blocks)
        }
        for label, value in rows.items()
    }


def test_a_drift_between_blocks_is_taken_out():
    fit = BlockFit(table({"base": 1.0, "a": 1.1}, block_steps=-0.5))
    assert fit.gain("a", "base") == pytest.approx(0.1)
    assert fit.df == 3


def test_a_missing_cell_leaves_the_estimate_unbiased():
    rows = table({"base": 1.0, "a": 1.1, "b": 1.0}, block_steps=-0.5)
    del rows["a"][0]
    fit = BlockFit(rows)
    assert fit.gain("a", "base") == pytest.approx(0.1)
    assert fit.own_df == 11 - 3 - 3


def test_points_that_no_block_joins_are_not_compared():
    fit = BlockFit({"base": {0: 1.0, 1: 1.0}, "a": {2: 9.0, 3: 9.1}})
    assert fit.error("a", "base") == math.inf


def test_intervals_cover_at_their_level():
    missed = 0
    for seed in range(400):
        fit = BlockFit(table({"base": 0.0, "a": 0.05, "b": 0.0}, sigma=0.02, seed=seed))
        low, high = fit.bounds("a", "base", 0.05)
        missed += not low <= 0.05 <= high
    assert missed <= 0.10 * 400 * 1.4


def test_an_interval_without_information_has_no_end():
    """One degree of freedom and a strict level: nothing overflows."""
    fit = BlockFit({"base": {0: 0.0, 1: 2.0}, "a": {0: 0.1, 1: 1.0}})
    effect = effect_of(fit, "a", "base", 1e-6)
    assert effect.ratio is not None
    assert effect.high_ratio is None


def test_a_noisy_point_is_judged_by_its_own_noise():
    quiet = table({"base": 0.0, "a": 0.0, "b": 0.0, "c": 0.0}, sigma=0.001)
    quiet["a"] = {0: 0.1, 1: -0.1, 2: 0.12, 3: -0.08}
    fit = BlockFit(quiet)
    assert fit.error("a", "base") > 1.3 * fit.error("b", "base")


def knee_of(truth, sigma=0.004):
    rows = {f"v{value}": math.log(gain) for value, gain in truth.items()}
    fit = BlockFit(table(rows, sigma=sigma))
    return find_knee([(float(v), f"v{v}") for v in truth], fit, smallest_effect=0.02)


def test_a_knee_has_its_interval():
    knee = knee_of({4: 0.5, 8: 0.7, 16: 0.85, 32: 1.0, 64: 1.0, 128: 1.0})
    assert knee.value == 32
    assert knee.low <= 32 <= knee.high < 128


def test_no_knee_where_the_objective_still_rises():
    knee = knee_of({4: 0.5, 8: 0.6, 16: 0.7, 32: 0.8})
    assert knee.value is None
    assert "still rises at 32" in knee.text


def test_no_knee_where_nothing_changes():
    knee = knee_of({4: 1.0, 8: 1.0, 16: 1.0})
    assert knee.value is None
    assert "no knee inside the range" in knee.text


def test_two_values_have_no_knee():
    assert knee_of({4: 0.5, 8: 1.0}) is None


def test_a_budget_ends_the_run_undecided():
    result = Tuning(plan(budget_s=40.0 * 20), SimulatedEngine(1), NAMES).run()
    assert result.spent_s <= 40.0 * 20
    assert result.undecided


def test_a_budget_for_nothing_measures_nothing():
    result = Tuning(plan(budget_s=60.0), SimulatedEngine(1), NAMES).run()
    assert result.session_count == 0
    assert not result.proposal
    assert len(result.undecided) == 3


def test_a_crash_is_tried_once_more_and_never_scored():
    engine = SimulatedEngine(1, crashes=("max_num_seqs=64",))
    result = Tuning(plan(), engine, NAMES).run()
    tries = [one for one in engine.measured if one.change.get("max_num_seqs") == 64]
    assert [one.attempt for one in tries] == [0, 1]
    found = next(one for one in result.parameters[0].values if one.value == 64)
    assert found.outcome == "the engine crashed: ValueError: refused"
    assert found.effects == {}


def test_an_equal_engine_is_not_measured():
    same = {f"block_size={size}": "base" for size in (32, 64, 128)}
    engine = SimulatedEngine(1, same=same)
    result = Tuning(plan(), engine, NAMES).run()
    kv = result.parameters[2]
    assert {one.outcome for one in kv.values[1:]} == {"the engine resolves to that of base"}
    assert kv.nothing_beyond_ratio == 0.0
    assert sum("block_size" in one.change for one in engine.measured) == 3


def test_a_point_that_the_plan_excludes_costs_nothing():
    engine = SimulatedEngine(1)
    excluded = plan(exclude=lambda change: "too large" if change.get("max_num_seqs") == 256 else "")
    result = Tuning(excluded, engine, NAMES).run()
    assert result.parameters[0].values[-1].outcome == "too large"
    assert all(one.change.get("max_num_seqs") != 256 for one in engine.measured)


def test_a_bound_keeps_a_faster_point_out():
    """More sequences give more throughput and a longer TTFT: the bound allows 32."""
    bound = BoundSpec("ttft_p99_ms", 80.0)
    for seed in range(10):
        result = Tuning(plan(bounds=(bound,)), SimulatedEngine(seed), NAMES).run()
        assert result.proposal.get("max_num_seqs", 16) in (16, 32)


def test_a_parent_that_breaks_a_bound_gives_way_to_a_slower_point():
    bound = BoundSpec("ttft_p99_ms", 40.0)
    result = Tuning(plan(bounds=(bound,)), SimulatedEngine(2), NAMES).run()
    assert result.proposal["max_num_seqs"] in (4, 8)
    assert "meets every bound" in result.parameters[0].decision


def test_a_bound_on_a_metric_without_readings_admits_nothing():
    """Absence is not success."""
    bound = BoundSpec("tpot_p99_ms", 1000.0)
    result = Tuning(plan(bounds=(bound,)), SimulatedEngine(2), NAMES).run()
    assert not result.proposal
    assert result.parameters[0].confirmation is None
    assert "has no reading of tpot_p99_ms" in result.parameters[0].values[-1].note


def test_a_lossy_value_needs_a_quality_reading():
    lossy = (Parameter("quantisation", "max_num_seqs", PARAMETERS[0].values, lossy=True),)
    silent = Tuning(plan(parameters=lossy), SimulatedEngine(4), NAMES).run()
    assert not silent.proposal
    notes = [one.note for one in silent.parameters[0].values]
    assert any("quality was not measured" in note for note in notes)
    known = {f"max_num_seqs={value}": 0.001 for value in PARAMETERS[0].values}
    read = plan(parameters=lossy, quality_loss=known, largest_quality_loss=0.01)
    assert Tuning(read, SimulatedEngine(4), NAMES).run().proposal


def test_the_gates_word_stops_a_proposal():
    result = Tuning(plan(), SimulatedEngine(4), NAMES, judge=lambda *_: ("ttft_mean_ms",)).run()
    assert not result.proposal
    assert "ttft_mean_ms is REGRESSED" in result.parameters[0].decision


def test_a_proposal_that_loses_on_the_trace_is_not_one():
    """Chosen on one workload, slower on the validation's."""
    watched = plan(validation_workload="trace")
    lost = Tuning(watched, SimulatedEngine(4, on_workload={"trace": 0.5}), NAMES).run()
    assert not lost.proposal
    assert "it loses output_tokens_per_s there" in lost.validation.text
    assert lost.parameters[0].winner
    kept = Tuning(watched, SimulatedEngine(4), NAMES).run()
    assert kept.validation.passed
    assert kept.proposal
    assert kept.validation.effects["output_tokens_per_s"].low_ratio > 0


def test_without_budget_for_the_validation_nothing_is_proposed():
    watched = plan(validation_workload="trace", budget_s=40.0 * 400, validate_blocks=300)
    result = Tuning(watched, SimulatedEngine(4), NAMES).run()
    assert not result.proposal
    assert "validation" in result.undecided


BOTH = {"max_num_seqs": 64, "max_num_batched_tokens": 4096}


def test_a_combination_that_gains_and_loses_to_its_best_part_gives_way_to_it():
    """Like FP8 KV with a speculative decoder: good alone, worse together."""
    for seed in range(10):
        engine = SimulatedEngine(seed, token_gain={4096: 0.12}, interaction=-0.22)
        found = combine(plan(), Ledger(plan(), engine), BOTH, no_judge)
        assert found.combined.ratio > 0
        assert found.proposed == {"max_num_seqs": 64}
        assert found.excess.high_ratio < 0
        assert "is worse than its best part max_num_seqs=64" in found.text


def test_a_combination_without_a_gain_is_not_proposed():
    for seed in range(20):
        engine = SimulatedEngine(seed, knee=None)
        assert combine(plan(), Ledger(plan(), engine), BOTH, no_judge).proposed == {}


def test_a_combination_that_adds_up_holds():
    engine = SimulatedEngine(3, token_gain={4096: 0.12})
    found = combine(plan(), Ledger(plan(), engine), BOTH, no_judge)
    assert found.proposed == BOTH
    assert found.excess.low_ratio < 0 < found.excess.high_ratio


def test_confirmation_takes_fresh_sessions():
    engine = SimulatedEngine(5)
    result = Tuning(plan(), engine, NAMES).run()
    assert result.parameters[0].confirmation is not None
    stages = {one.stage for one in engine.measured}
    assert "confirm max_num_seqs" in stages
    assert len(engine.measured) == len({one.key for one in engine.measured})


def test_the_order_in_a_block_turns():
    ledger = Ledger(plan(), SimulatedEngine(1))
    changes = ({}, {"block_size": 32}, {"block_size": 64})
    orders = [[one.trial.label for one in ledger.block("s", block, changes)] for block in (0, 1)]
    assert orders[0] == orders[1][::-1]


def test_a_spoiled_session_is_repeated_a_few_times():
    engine = SimulatedEngine(1)

    def spoiled(trial):
        reading = engine(trial)
        return (
            type(reading)(trial, Fate.INVALID, 10.0, text="busy") if trial.block == 0 else reading
        )

    ledger = Ledger(plan(), spoiled)
    (reading,) = ledger.block("s", 0, ({},))
    assert (reading.fate, ledger.session_count) == (Fate.INVALID, 3)
    assert not ledger.of("s")


def test_the_front_drops_what_is_dominated_and_keeps_trades():
    names = ("output_tokens_per_s", "ttft_p99_ms")
    rows = {
        "output_tokens_per_s": {"base": 5.0, "a=1": 5.2, "b=1": 4.8, "c=1": 4.8, "d=1": 5.0},
        "ttft_p99_ms": {"base": 1.0, "a=1": 0.9, "b=1": 1.2, "c=1": 0.8, "d=1": 1.0},
    }
    fits = {name: BlockFit(table(rows[name], sigma=0.003)) for name in names}
    front = Front(names)
    for label in rows[names[0]]:
        change = {} if label == "base" else {label[0]: 1}
        front.add(change, {}, fits, {})
    points = {label_of(point.change): point for point in front.points()}
    assert set(points) == {"base", "a=1", "b=1"}  # c is worse in both, d is the base again
    assert "better: output_tokens_per_s +2" in points["a=1"].trade
    assert "worse: ttft_p99_ms" in points["a=1"].trade


def test_known_pairs_are_named_with_their_source():
    found = known_pair_text(
        {"kv_cache_dtype": "fp8", "speculative_config": {"model": "draft"}}, ("kv_cache_dtype",)
    )
    assert "74 % slower" in found
    assert "sglang 32938" in found
    assert known_pair_text({**BASE, "kv_cache_dtype": "fp8"}, ("kv_cache_dtype",)) == ""


def test_means_of_zero_have_a_logarithm():
    engine = SimulatedEngine(1)
    ledger = Ledger(plan(), engine)
    readings = ledger.block("s", 0, ({}, {"block_size": 32}))
    readings[0].values["output_tokens_per_s"] = 0.0
    assert math.isfinite(fit_of(readings, "output_tokens_per_s").gain("block_size=32", "base"))


def test_a_small_share_of_the_budget_thins_the_values():
    """Half of the values of every sweep, rather than all values of the first."""
    result = Tuning(plan(budget_s=40.0 * 30), SimulatedEngine(1, knee=None), NAMES).run()
    seqs = result.parameters[0].values
    outcomes = [one.outcome for one in seqs]
    assert any("budget is too small" in outcome for outcome in outcomes)
    assert seqs[0].session_count >= 2
    assert seqs[-1].session_count >= 2
    assert all(one.values[-1].session_count >= 2 for one in result.parameters)
