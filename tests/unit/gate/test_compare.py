from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3perf.baselines.target_policy import with_noise_of
from k3perf.baselines.waivers import apply_waivers
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.errors import UnknownNameError
from k3perf.gate.compare import compare
from k3perf.gate.decision import remaining_tolerance
from k3perf.gate.reference import References
from k3perf.records.measurement import MetricValue, SessionMetrics
from k3perf.records.outcome import SEVERITY, Outcome, join
from k3perf.records.samples import Arm, InvalidReason
from k3perf.records.verdict import Buy, CellVerdict
from tests.unit.gate.conftest import LEVELS, RATE, SPREAD, Build

outcomes = st.sampled_from(Outcome)
NOT_A_PASS = {outcome for outcome in Outcome if outcome not in (Outcome.PASS, Outcome.IMPROVED)}


@given(st.lists(outcomes), st.lists(outcomes))
def test_joining_is_commutative_associative_and_idempotent(
    one: list[Outcome], other: list[Outcome]
) -> None:
    assert join([*one, *other]) == join([*other, *one]) == join([join(one), join(other)])
    assert join([join(one), join(one)]) == join(one)
    assert join([Outcome.PASS, *one]) == join(one)
    assert SEVERITY[join([*one, *other])] >= SEVERITY[join(one)]


def only(verdict):
    assert len(verdict.metrics) == 1
    return verdict.metrics[0]


@pytest.mark.parametrize(
    ("level", "outcome"),
    [
        (1000.0, Outcome.PASS),
        (990.0, Outcome.PASS),
        (900.0, Outcome.REGRESSED),
        (1100.0, Outcome.IMPROVED),
        (952.0, Outcome.INCONCLUSIVE),
    ],
)
def test_absolute_values_are_judged_against_the_committed_ones(
    build: Build, level: float, outcome: Outcome
) -> None:
    verdict = compare(build.baseline(), build.cell(build.sessions(level, 3)), build.policy())
    found = only(verdict)
    assert (verdict.outcome, verdict.buy) == (outcome, Buy.NOTHING)
    assert found.baseline_value == pytest.approx(1000, rel=0.01)
    assert found.loss_ratio == pytest.approx(1 - level / 1000, abs=0.008)
    assert found.loss_lower_bound_ratio < found.loss_ratio < found.loss_upper_bound_ratio
    assert found.relevant == (found.loss_ratio > 0.05)


def test_significant_and_relevant_are_told_apart(build: Build) -> None:
    policy = build.policy(plan=MeasurementPlan(mode="baseline", minimum_sessions=3))
    small = only(compare(build.baseline(), build.cell(build.sessions(970.0, 3)), policy))
    assert (small.outcome, small.significant, small.relevant) == (Outcome.PASS, True, False)


def test_one_session_alone_is_never_a_regression_while_the_plan_has_a_second(build: Build) -> None:
    verdict = compare(build.baseline(), build.cell(build.sessions(500.0, 1)), build.policy())
    assert (verdict.outcome, verdict.buy, verdict.buy_until_sessions) == (
        Outcome.SUSPECT,
        Buy.SESSIONS,
        2,
    )
    assert "needs 2 sessions" in only(verdict).reason


def test_a_plan_of_one_session_needs_all_its_rounds_and_a_loss_no_single_draw_explains(
    build: Build,
) -> None:
    policy = build.policy(
        plan=MeasurementPlan(mode="baseline", maximum_sessions=1), gated_metric_count=1000
    )
    few = compare(build.baseline(), build.cell(build.sessions(800.0, 1, rounds=4)), policy)
    assert (few.outcome, few.buy, few.buy_until_rounds) == (Outcome.SUSPECT, Buy.ROUNDS, 12)
    assert (
        compare(build.baseline(), build.cell(build.sessions(800.0, 1)), policy).outcome
        is Outcome.REGRESSED
    )
    assert (
        compare(build.baseline(), build.cell(build.sessions(940.0, 1)), policy).outcome
        is Outcome.SUSPECT
    )


def test_one_lucky_session_of_two_is_not_enough_for_a_regression(build: Build) -> None:
    sessions = [*build.sessions(1000.0, 1), build.session("bad", build.rounds(700.0))]
    assert (
        compare(build.baseline(), build.cell([sessions[1], sessions[0]]), build.policy()).outcome
        is Outcome.SUSPECT
    )


def test_asking_more_often_never_changes_a_look(build: Build) -> None:
    baseline, policy = build.baseline(), build.policy()
    sessions = build.sessions(950.0, 3)
    assert [
        only(compare(baseline, build.cell(sessions[:count]), policy)).look for count in (1, 2, 3)
    ] == [1, 2, 3]
    alone = build.policy(plan=MeasurementPlan(mode="baseline", maximum_sessions=1))
    looks = [
        only(
            compare(
                baseline,
                build.cell([replace(sessions[0], rounds=sessions[0].rounds[:count])]),
                alone,
            )
        )
        for count in range(4, 13)
    ]
    assert [found.look for found in looks] == [1] * 8 + [2]
    assert len({found.loss_ratio for found in looks}) == 2
    decided = build.sessions(1000.0, 1)
    first = compare(
        baseline, build.cell([replace(decided[0], rounds=decided[0].rounds[:4])]), policy
    )
    later = compare(baseline, build.cell([*decided, *build.sessions(700.0, 2)]), policy)
    known = {"reason": "", "noise_ratio": None, "noise_df": 0, "recorded_noise_df": 0}
    later_found = replace(only(later), **known, holds_by_own_noise=None)
    assert replace(only(first), reason="") == later_found


def test_too_few_rounds_ask_for_the_first_look(build: Build) -> None:
    verdict = compare(
        build.baseline(), build.cell(build.sessions(1000.0, 1, rounds=3)), build.policy()
    )
    assert (verdict.outcome, verdict.buy, verdict.buy_until_sessions, verdict.buy_until_rounds) == (
        Outcome.INCONCLUSIVE,
        Buy.ROUNDS,
        1,
        4,
    )


def test_a_decided_cell_buys_nothing_and_an_undecided_metric_goes_on(build: Build) -> None:
    tolerances = {RATE: Tolerance(loss_ratio=0.05), "ttft_mean_ms": Tolerance(loss_ratio=0.05)}
    policy = build.policy(tolerances=tolerances)

    def sessions(rate: float, latency: float, count: int):
        return [
            build.session(
                f"s{number}",
                [
                    build.round(
                        index,
                        {
                            RATE: rate * (1 + LEVELS[number]) * step,
                            "ttft_mean_ms": latency * (1 + LEVELS[number]) * step,
                        },
                    )
                    for index, step in enumerate(
                        measured.values[RATE].value for measured in build.rounds(1.0)
                    )
                ],
            )
            for number in range(count)
        ]

    baseline = build.baseline(build.cell(sessions(1000, 50, 6)), policy)
    verdict = compare(baseline, build.cell(sessions(1000, 60, 1)), policy)
    assert [metric.outcome for metric in verdict.metrics] == [Outcome.PASS, Outcome.SUSPECT]
    assert verdict.buy is Buy.SESSIONS
    verdict = compare(baseline, build.cell(sessions(1000, 60, 2)), policy)
    assert [metric.outcome for metric in verdict.metrics] == [Outcome.PASS, Outcome.REGRESSED]
    assert verdict.buy is Buy.NOTHING
    assert only(replace(verdict, metrics=verdict.metrics[1:])).loss_ratio == pytest.approx(
        0.2, abs=0.02
    )


@pytest.mark.parametrize("alternating", [True, False])
def test_ratios_cancel_the_machine(build: Build, *, alternating: bool) -> None:
    policy = build.policy(plan=MeasurementPlan(mode="reference"))
    recorded = build.cell(build.pairs(1200.0, 1000.0, 6, alternating=alternating), "reference")
    baseline = build.baseline(recorded, policy)
    entry = baseline.workloads[0].metrics[0]
    assert (entry.basis, entry.unit) == ("ratio", "ratio")
    slow = build.cell(build.pairs(600.0, 500.0, 3, alternating=alternating), "reference")
    assert compare(baseline, slow, policy).outcome is Outcome.PASS
    lost = compare(
        baseline,
        build.cell(build.pairs(1000.0, 1000.0, 3, alternating=alternating), "reference"),
        policy,
    )
    assert lost.outcome is Outcome.REGRESSED
    assert only(lost).baseline_value == pytest.approx(1.2, rel=0.01)
    assert only(lost).loss_ratio == pytest.approx(1 / 6, abs=0.01)
    assert only(lost).unit == "ratio"


def test_ab_needs_no_baseline_and_works_when_the_base_is_red(build: Build) -> None:
    policy = build.policy(plan=MeasurementPlan(mode="reference"))
    pairs = build.cell(build.pairs(1000.0, 1000.0, 3), "ab")
    found = compare(None, pairs, policy)
    assert only(found).baseline_value == 1.0
    assert found.outcome in (Outcome.PASS, Outcome.INCONCLUSIVE)
    assert (
        compare(None, build.cell(build.pairs(600.0, 1000.0, 3), "ab"), policy).outcome
        is Outcome.REGRESSED
    )
    one = compare(None, build.cell(build.pairs(1000.0, 1000.0, 1), "ab"), policy)
    assert (one.outcome, one.buy) == (Outcome.INCONCLUSIVE, Buy.SESSIONS)
    assert "no noise" in only(one).reason


def test_ab_borrows_the_recorded_noise(build: Build) -> None:
    from k3perf.baselines.target_policy import pool_noise

    absolute = build.policy()
    baselines = [build.baseline(), build.baseline(build.cell(build.sessions(900.0, 6)))]
    policy = replace(absolute, noise=pool_noise(baselines, absolute.tolerances))
    verdict = compare(None, build.cell(build.pairs(1000.0, 1000.0, 1), "ab"), policy)
    assert verdict.outcome is Outcome.PASS
    ratios = build.policy(plan=MeasurementPlan(mode="reference"))
    recorded = [
        build.baseline(build.cell(build.pairs(1200.0, 1000.0, 6), "reference"), ratios)
        for _ in range(2)
    ]
    policy = replace(ratios, noise=pool_noise(recorded, ratios.tolerances))
    assert (
        compare(None, build.cell(build.pairs(1000.0, 1000.0, 1), "ab"), policy).outcome
        is Outcome.PASS
    )


def test_an_absolute_tolerance_is_judged_in_the_metrics_unit_even_at_zero(build: Build) -> None:
    policy = build.policy(
        tolerances={"prefix_hit_ratio": Tolerance(loss_absolute=0.05)},
        plan=MeasurementPlan(mode="reference"),
    )

    def pairs(level: float, count: int):
        made = []
        for number in range(count):
            for arm, hit in ((Arm.CANDIDATE, level + LEVELS[number]), (Arm.REFERENCE, 0.0)):
                rounds = [
                    build.round(
                        index,
                        {"prefix_hit_ratio": hit + index * 1e-4 * (arm is Arm.CANDIDATE)},
                        pair=index,
                    )
                    for index in range(12)
                ]
                made.append(
                    replace(build.session(f"{arm}{number}", rounds), arm=arm, pair_id=f"p{number}")
                )
        return build.cell(made, "reference")

    baseline = build.baseline(pairs(0.6, 6), policy)
    assert baseline.workloads[0].metrics[0].basis == "difference"
    assert compare(baseline, pairs(0.6, 3), policy).outcome is Outcome.PASS
    lost = compare(baseline, pairs(0.4, 3), policy)
    assert lost.outcome is Outcome.REGRESSED
    assert only(lost).loss_ratio == pytest.approx(1 / 3, abs=0.02)


def test_a_metric_that_never_varied_is_compared_exactly(build: Build) -> None:
    policy = build.policy(tolerances={"prefix_hit_ratio": Tolerance(loss_ratio=0.0)})

    def cell(value: float, count: int):
        return build.cell(
            [
                build.session(
                    f"s{n}", [build.round(i, {"prefix_hit_ratio": value}) for i in range(12)]
                )
                for n in range(count)
            ]
        )

    baseline = build.baseline(cell(0.75, 6), policy)
    assert compare(baseline, cell(0.75, 1), policy).outcome is Outcome.PASS
    found = only(compare(baseline, cell(0.75 - 1e-6, 1), policy))
    assert (found.outcome, found.now_value) == (Outcome.REGRESSED, pytest.approx(0.749999))
    assert "without any spread" in found.reason


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -5.0])
def test_values_without_a_logarithm_are_invalid(build: Build, bad: float) -> None:
    session = build.sessions(1000.0, 1)[0]
    broken = replace(
        session, rounds=(*session.rounds[:5], build.round(5, {RATE: bad}), *session.rounds[6:])
    )
    verdict = compare(build.baseline(), build.cell([broken]), build.policy())
    assert verdict.outcome is Outcome.INVALID
    assert "c0" in only(verdict).reason


def test_equal_rounds_of_a_varying_metric_are_no_measurement(build: Build) -> None:
    stuck = build.session("s", [build.round(index, {RATE: 1000.0}) for index in range(12)])
    assert (
        compare(build.baseline(), build.cell([stuck, stuck]), build.policy()).outcome
        is Outcome.INVALID
    )


def test_absent_values_give_outcomes(build: Build) -> None:
    baseline, policy = build.baseline(), build.policy()
    empty = build.session("s", [build.round(index, {RATE: None}) for index in range(12)])
    assert compare(baseline, build.cell([empty]), policy).outcome is Outcome.INVALID
    assert compare(baseline, build.cell([build.session("s")]), policy).outcome is Outcome.INVALID
    assert compare(baseline, build.cell([]), policy).outcome is Outcome.INVALID
    both = build.policy(
        tolerances={**policy.tolerances, "energy_per_output_token_j": Tolerance(loss_ratio=0.1)}
    )
    verdict = compare(baseline, build.cell(build.sessions(1000.0)), both)
    assert verdict.outcome is Outcome.PASS
    assert any("energy" in note and "neither" in note for note in verdict.notes)
    more = build.policy(tolerances={**policy.tolerances, "ttft_mean_ms": Tolerance(loss_ratio=0.1)})
    rounds = [
        replace(r, values={**r.values, "ttft_mean_ms": MetricValue(5.0 + i, 1)})
        for i, r in enumerate(build.rounds(1000.0))
    ]
    assert (
        compare(baseline, build.cell([build.session("s", rounds)]), more).outcome
        is Outcome.NO_BASELINE
    )


numbers = st.none() | st.floats() | st.sampled_from([0.0, -1.0, math.nan, math.inf, 1000.0])


@settings(deadline=None)
@given(
    st.lists(st.lists(numbers, max_size=13), max_size=4),
    st.sampled_from(["baseline", "reference", "ab"]),
)
def test_whatever_was_measured_gives_an_outcome(
    series: list[list[float | None]], mode: str
) -> None:
    build = Build()
    sessions = []
    for index, values in enumerate(series):
        rounds = tuple(
            build.round(number, {RATE: value}, pair=number) for number, value in enumerate(values)
        )
        for arm in Arm:
            sessions.append(
                replace(build.session(f"{arm}{index}", rounds), arm=arm, pair_id=f"p{index}")
            )
    policy = build.policy(plan=MeasurementPlan(mode="reference"))
    baseline = {
        "baseline": build.baseline(),
        "reference": build.baseline(build.cell(build.pairs(1000.0, 900.0, 6), "reference"), policy),
        "ab": None,
    }[mode]
    verdict = compare(baseline, build.cell(sessions, mode), policy)
    assert verdict.outcome in Outcome
    held = [value for values in series for value in values if value is not None]
    if not held or any(not 0 < value < math.inf for value in held):
        assert verdict.outcome in NOT_A_PASS


recorded_numbers = st.sampled_from([0.0, -1.0, 1e-300, 1e300, 1000.0, 1000.0, 990.0]) | st.floats(
    allow_nan=False, allow_infinity=False
)
shapes = st.sampled_from(["as they are", "all equal", "one session", "one round", "no rounds"])


@settings(deadline=None)
@given(
    st.lists(st.lists(recorded_numbers, min_size=1, max_size=6), min_size=1, max_size=4),
    shapes,
    st.sampled_from([1000.0, 980.0, 500.0]),
)
def test_whatever_was_recorded_gives_an_outcome(
    series: list[list[float]], shape: str, level: float
) -> None:
    """Recorded series that are short, constant, not positive or enormous: an outcome,
    and no pass where a value has no logarithm.
    """
    from k3perf.baselines.target_policy import pool_noise
    from k3perf.baselines.testable import testable
    from k3perf.records.baseline import SessionValue

    build = Build()
    if shape == "all equal":
        series = [[1000.0] * len(values) for values in series]
    if shape in ("one session", "one round"):
        series = series[:1] if shape == "one session" else [values[:1] for values in series]
    sessions = tuple(
        SessionValue(
            session_id=f"s{n}",
            value=values[0],
            round_values=() if shape == "no rounds" else tuple(values),
        )
        for n, values in enumerate(series)
    )
    baseline = build.baseline()
    entry = baseline.workloads[0].metrics[0].model_copy(update={"sessions": sessions})
    baseline = baseline.model_copy(
        update={"workloads": (baseline.workloads[0].model_copy(update={"metrics": (entry,)}),)}
    )
    for others in ([], [build.baseline()]):
        policy = build.policy()
        policy = replace(policy, noise=pool_noise([baseline, *others], policy.tolerances))
        verdict = compare(baseline, build.cell(build.sessions(level, 2)), policy)
        assert verdict.outcome in Outcome
        judged = (
            [session.value for session in sessions]
            if shape == "no rounds"
            else [v for s in sessions for v in s.round_values]
        )
        if any(value <= 0 for value in judged):
            assert verdict.outcome is Outcome.INVALID
        testable(baseline, policy)


def test_one_round_in_ten_twice_as_slow_is_named_and_no_regression(build: Build) -> None:
    sessions = build.sessions(1000.0, 3)
    slowed = [
        replace(s, rounds=(*s.rounds[:6], build.round(6, {RATE: 500.0}), *s.rounds[7:]))
        for s in sessions
    ]
    verdict = compare(build.baseline(), build.cell(slowed), build.policy())
    assert verdict.outcome is Outcome.PASS
    assert any("round 6 of session c0" in note and "worse" in note for note in verdict.notes)


def test_rounds_out_of_line_ask_for_more_then_for_another_session_and_are_invalid(
    build: Build,
) -> None:
    wild = [
        build.round(index, {RATE: 1000.0 if index % 2 else 600.0 + index}) for index in range(12)
    ]
    session = build.session("wild", wild)
    early = compare(
        build.baseline(), build.cell([replace(session, rounds=session.rounds[:4])]), build.policy()
    )
    assert (early.outcome, early.buy, early.buy_until_rounds) == (
        Outcome.SUSPECT,
        Buy.ROUNDS,
        12,
    )
    late = compare(build.baseline(), build.cell([session]), build.policy())
    assert (late.outcome, late.buy, late.buy_until_sessions) == (Outcome.INVALID, Buy.SESSIONS, 2)
    assert "times as much as recorded, at most 3 (spread_over_noise_ratio)" in only(late).reason
    lenient = build.policy(spread_over_noise_ratio=1000.0)
    assert compare(build.baseline(), build.cell([session]), lenient).outcome is not Outcome.INVALID
    strict = build.policy(spread_over_noise_ratio=0.5)  # no more than recorded adds nothing
    assert (
        compare(
            build.baseline(), build.cell([build.session("usual", build.rounds(1000.0))]), strict
        ).outcome
        is Outcome.PASS
    )


@pytest.mark.parametrize(
    ("now", "tolerance", "outcome"),
    [
        (1001, Tolerance(loss_absolute=0), Outcome.REGRESSED),
        (1000, Tolerance(loss_absolute=0), Outcome.PASS),
        (999, Tolerance(loss_absolute=0), Outcome.IMPROVED),
        (
            995,
            Tolerance(loss_absolute=10),
            Outcome.PASS,
        ),  # a gain of half the tolerance is no reason for a new baseline
        (994, Tolerance(loss_absolute=10), Outcome.IMPROVED),
        (1010, Tolerance(loss_absolute=10), Outcome.PASS),
        (1011, Tolerance(loss_absolute=10), Outcome.REGRESSED),
        (1010, Tolerance(loss_ratio=0.01), Outcome.PASS),
        (1011, Tolerance(loss_ratio=0.01), Outcome.REGRESSED),
        (math.nan, Tolerance(loss_absolute=0), Outcome.INVALID),
    ],
)
def test_exact_metrics_see_one_byte(
    build: Build, now: float, tolerance: Tolerance, outcome: Outcome
) -> None:
    policy = build.policy(tolerances={"weights_bytes": tolerance})
    baseline = build.baseline(
        build.cell([build.session(f"s{n}", weights_bytes=1000.0) for n in range(6)]), policy
    )
    assert [entry.metric for entry in baseline.exact] == ["weights_bytes"]
    assert (
        compare(baseline, build.cell([build.session("now", weights_bytes=now)]), policy).outcome
        is outcome
    )


@pytest.mark.parametrize(
    ("now", "outcome"), [(995.0, Outcome.PASS), (990.0, Outcome.PASS), (989.0, Outcome.IMPROVED)]
)
def test_an_exact_metric_improves_when_it_beats_the_best_recorded_value(
    build: Build, now: float, outcome: Outcome
) -> None:
    policy = build.policy(tolerances={"weights_bytes": Tolerance(loss_absolute=0)})
    baseline = build.baseline(
        build.cell([build.session(f"s{n}", weights_bytes=1000.0 - 2 * n) for n in range(6)]), policy
    )
    assert (
        compare(baseline, build.cell([build.session("now", weights_bytes=now)]), policy).outcome
        is outcome
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("arm", [Arm.CANDIDATE, Arm.REFERENCE])
def test_a_reference_without_a_sound_number_makes_no_pass(
    build: Build, value: float, arm: Arm
) -> None:
    policy = build.policy(tolerances={"weights_bytes": Tolerance(loss_absolute=0)})
    base = replace(
        build.session("r", weights_bytes=value if arm is Arm.REFERENCE else 10.0),
        arm=Arm.REFERENCE,
        pair_id="p",
    )
    now = replace(
        build.session("c", weights_bytes=value if arm is Arm.CANDIDATE else 10.0), pair_id="p"
    )
    verdict = compare(None, build.cell([base, now], "ab"), policy)
    assert verdict.outcome is Outcome.INVALID
    json.dumps(asdict(verdict), allow_nan=False)  # as it is written down


@pytest.mark.parametrize("value", [1e308, 1e200, -1e200, 5e-324, 1e100])
def test_numbers_of_any_size_come_to_an_outcome_that_can_be_written_down(
    build: Build, value: float
) -> None:
    tolerances = {RATE: Tolerance(loss_absolute=5.0), "weights_bytes": Tolerance(loss_absolute=0)}
    policy = build.policy(tolerances=tolerances)
    recorded = [
        replace(session, values={"weights_bytes": MetricValue(5e-324, 1)})
        for session in build.sessions(1000.0, 6)
    ]
    baseline = build.baseline(build.cell(recorded), policy)
    wild = [build.session(f"w{n}", build.rounds(value), weights_bytes=value) for n in range(3)]
    json.dumps(asdict(compare(baseline, build.cell(wild), policy)), allow_nan=False)


@pytest.mark.parametrize(
    ("metric", "now", "tolerance", "outcome"),
    [
        ("kv_cache_bytes", 700.0, Tolerance(loss_absolute=0), Outcome.PASS),
        ("kv_cache_bytes", 700.0, Tolerance(loss_ratio=0.1), Outcome.PASS),
        ("engine_peak_rss_bytes", 997.0, Tolerance(loss_absolute=5), Outcome.PASS),
        ("engine_peak_rss_bytes", 994.0, Tolerance(loss_absolute=5), Outcome.IMPROVED),
        ("engine_peak_rss_bytes", 994.0, Tolerance(loss_absolute=0), Outcome.PASS),
        ("weights_bytes", 997.0, Tolerance(loss_absolute=5), Outcome.IMPROVED),
        ("weights_bytes", 999.0, Tolerance(loss_absolute=0), Outcome.IMPROVED),
    ],
)
def test_less_is_an_improvement_only_where_it_is_worth_something(
    build: Build, metric: str, now: float, tolerance: Tolerance, outcome: Outcome
) -> None:
    """A leak of 300 MiB leaves fewer bytes of KV cache, and a resident size wanders."""
    policy = build.policy(tolerances={metric: tolerance})
    recorded = [build.session(f"s{n}", **{metric: 1000.0}) for n in range(6)]
    baseline = build.baseline(build.cell(recorded), policy)
    cell = build.cell([build.session("now", **{metric: now})])
    assert compare(baseline, cell, policy).outcome is outcome


@pytest.mark.parametrize("metric", ["prefix_hit_ratio", "goodput_requests_per_s"])
@pytest.mark.parametrize("tolerance", [Tolerance(loss_ratio=0.1), Tolerance(loss_absolute=0.08)])
@pytest.mark.parametrize(
    ("now", "outcome"), [(0.0, Outcome.REGRESSED), (0.8, Outcome.PASS), (0.4, Outcome.REGRESSED)]
)
def test_a_counted_metric_may_read_the_same_in_every_round(
    build: Build, metric: str, tolerance: Tolerance, now: float, outcome: Outcome
) -> None:
    policy = build.policy(tolerances={metric: tolerance})

    def sessions(level: float, count: int, step: float = 0.0) -> list[SessionMetrics]:
        return [
            build.session(
                f"s{n}",
                [build.round(i, {metric: level + step * (i % 3 + n % 2)}) for i in range(12)],
            )
            for n in range(count)
        ]

    baseline = build.baseline(build.cell(sessions(0.8, 6, 0.004)), policy)
    found = only(compare(baseline, build.cell(sessions(now, 3)), policy))
    assert found.outcome is outcome, found.reason
    none = build.baseline(build.cell(sessions(0.0, 6)), policy)
    assert compare(none, build.cell(sessions(0.0, 3)), policy).outcome is Outcome.PASS


def test_one_token_less_capacity_is_seen_and_sessions_that_differ_are_named(build: Build) -> None:
    policy = build.policy(tolerances={"kv_capacity_tokens": Tolerance(loss_absolute=0)})
    baseline = build.baseline(
        build.cell([build.session(f"s{n}", kv_capacity_tokens=4096.0) for n in range(6)]), policy
    )
    measured = [
        build.session("a", kv_capacity_tokens=4096.0),
        build.session("b", kv_capacity_tokens=4095.0),
    ]
    found = only(compare(baseline, build.cell(measured), policy))
    assert (found.outcome, found.now_value) == (Outcome.REGRESSED, 4095.0)
    assert "4096 -> 4095 tokens" in found.reason
    assert "sessions differ" in found.reason
    missing = compare(baseline, build.cell([build.session("a")]), policy)
    assert missing.outcome is Outcome.INVALID


def test_exact_metrics_of_ab_are_compared_with_the_base_arm(build: Build) -> None:
    policy = build.policy(tolerances={"weights_bytes": Tolerance(loss_absolute=0)})
    base = replace(build.session("r", weights_bytes=10.0), arm=Arm.REFERENCE, pair_id="p")
    now = replace(build.session("c", weights_bytes=11.0), pair_id="p")
    assert compare(None, build.cell([now, base], "ab"), policy).outcome is Outcome.REGRESSED


def of_ranks(build: Build, name: str, value: float, count: int) -> SessionMetrics:
    values = {
        "weights_bytes": MetricValue(value, count),
        "engine_peak_rss_bytes": MetricValue(50.0, 1),
    }
    return replace(build.session(name), values=values)


RANK_TOLERANCES = {
    "weights_bytes": Tolerance(loss_absolute=0),
    "engine_peak_rss_bytes": Tolerance(loss_ratio=0.1),
}


@pytest.mark.parametrize(
    ("recorded", "measured", "told"),
    [
        (
            2,
            (1,),
            (
                "the worst of 1 rank was measured, the worst of 2 ranks is in the baseline; have"
                " every rank read"
            ),
        ),
        (1, (2, 2), "the worst of 2 ranks was measured, the worst of 1 rank is in the baseline"),
        (
            2,
            (2, 1),
            "the worst of 1 or 2 ranks was measured, the worst of 2 ranks is in the baseline",
        ),
    ],
)
# it would be better, equal, or a loss
@pytest.mark.parametrize("value", [900.0, 1000.0, 1100.0])
def test_the_worst_of_another_number_of_ranks_is_not_compared(
    build: Build, recorded: int, measured: tuple[int, ...], told: str, value: float
) -> None:
    policy = build.policy(tolerances=RANK_TOLERANCES)
    baseline = build.baseline(
        build.cell([of_ranks(build, f"s{n}", 1000.0, recorded) for n in range(6)]), policy
    )
    verdict = compare(
        baseline,
        build.cell([of_ranks(build, f"n{n}", value, count) for n, count in enumerate(measured)]),
        policy,
    )
    by_name = {metric.metric: metric for metric in verdict.metrics}
    assert verdict.outcome is Outcome.NO_BASELINE
    assert told in by_name["weights_bytes"].reason
    assert "k3perf baseline propose" in by_name["weights_bytes"].reason
    assert (
        by_name["engine_peak_rss_bytes"].outcome is Outcome.PASS
    )  # of no rank: it is judged all the same


@pytest.mark.parametrize(("count", "noted"), [(1, False), (2, True)])
def test_a_baseline_that_does_not_know_its_ranks_is_compared_and_that_is_told(
    build: Build, count: int, noted: bool
) -> None:
    policy = build.policy(tolerances=RANK_TOLERANCES)
    known = build.baseline(
        build.cell([of_ranks(build, f"s{n}", 1000.0, 2) for n in range(6)]), policy
    )
    bare = [session.model_copy(update={"rank_count": None}) for session in known.exact[0].sessions]
    older = known.model_copy(
        update={"exact": (known.exact[0].model_copy(update={"sessions": tuple(bare)}),)}
    )
    verdict = compare(older, build.cell([of_ranks(build, "now", 1001.0, count)]), policy)
    assert verdict.outcome is Outcome.REGRESSED
    text = (
        "number of ranks not recorded in the baseline of weights_bytes, so not compared; k3perf"
        " baseline propose records it"
    )
    assert (text in verdict.notes) is noted
    both = compare(known, build.cell([of_ranks(build, "now", 1001.0, 2)]), policy)
    assert (both.outcome, both.notes) == (Outcome.REGRESSED, ())


def test_arms_of_ab_with_another_number_of_ranks_are_invalid(build: Build) -> None:
    policy = build.policy(tolerances={"weights_bytes": Tolerance(loss_absolute=0)})
    base = replace(of_ranks(build, "r", 10.0, 2), arm=Arm.REFERENCE, pair_id="p")
    now = replace(of_ranks(build, "c", 11.0, 1), pair_id="p")
    verdict = compare(None, build.cell([now, base], "ab"), policy)
    assert verdict.outcome is Outcome.INVALID
    assert (
        "the worst of 1 rank was measured, the worst of 2 ranks in the base arm"
        in only(verdict).reason
    )


def test_missing_renamed_and_foreign_baselines_are_outcomes_with_the_name(build: Build) -> None:
    baseline, policy = build.baseline(), build.policy()
    cell = build.cell(build.sessions(1000.0))
    for measured, committed, named in (
        (cell, None, "gpu/default"),
        (replace(cell, config="other"), baseline, "gpu/other"),
        (replace(cell, workload="burst"), baseline, "burst"),
        (replace(cell, plan_digest="plan-2"), baseline, "plan-2"),
        (replace(cell, hardware_class="b200"), baseline, "b200"),
    ):
        verdict = compare(committed, measured, policy)
        assert verdict.outcome is Outcome.NO_BASELINE
        assert named in verdict.missing
        assert "k3perf baseline propose" in verdict.missing


def test_ratios_travel_to_other_hardware_and_bytes_do_not(build: Build) -> None:
    tolerances = {RATE: Tolerance(loss_ratio=0.05), "weights_bytes": Tolerance(loss_absolute=0)}
    policy = build.policy(tolerances=tolerances, plan=MeasurementPlan(mode="reference"))
    recorded = [
        replace(s, values={"weights_bytes": MetricValue(10.0, 1)})
        for s in build.pairs(1200.0, 1000.0, 6)
    ]
    baseline = build.baseline(build.cell(recorded, "reference"), policy)
    measured = build.cell(
        [
            replace(s, values={"weights_bytes": MetricValue(99.0, 1)})
            for s in build.pairs(1200.0, 1000.0, 2)
        ],
        "reference",
    )
    assert compare(baseline, measured, policy).outcome is Outcome.REGRESSED
    verdict = compare(baseline, replace(measured, hardware_class="laptop"), policy)
    assert verdict.outcome is Outcome.PASS
    assert any("laptop" in note for note in verdict.notes)
    assert any("weights_bytes" in note for note in verdict.notes)


def test_a_changed_setting_is_config_drift_and_stops_the_buying(build: Build) -> None:
    session = build.sessions(1000.0, 1, rounds=3)[0]
    drifted = replace(
        session, resolved_config={"block_size": 32, "cache.dtype": "auto", "new": None}
    )
    verdict = compare(build.baseline(), build.cell([drifted]), build.policy())
    assert (verdict.outcome, verdict.buy) == (Outcome.CONFIG_DRIFT, Buy.NOTHING)
    assert [(found.key, found.was, found.now) for found in verdict.differences] == [
        ("block_size", 16, 32),
        ("new", "(absent)", None),
    ]
    unread = compare(
        build.baseline(), build.cell([replace(session, resolved_config={})]), build.policy()
    )
    assert unread.outcome is Outcome.INVALID
    candidate, base = build.pairs(1000.0, 1000.0, 1)
    ab = compare(
        None,
        build.cell([replace(candidate, resolved_config={"block_size": 1}), base], "ab"),
        build.policy(),
    )
    assert {found.key for found in ab.differences} == {"block_size", "cache.dtype"}


def test_a_reference_that_did_not_alternate_and_has_no_logarithm_is_invalid(build: Build) -> None:
    policy = build.policy(plan=MeasurementPlan(mode="reference"))
    baseline = build.baseline(
        build.cell(build.pairs(1200.0, 1000.0, 6, alternating=False), "reference"), policy
    )
    candidate, reference = build.pairs(1200.0, 1000.0, 1, alternating=False)
    broken = replace(reference, rounds=(build.round(0, {RATE: 0.0}), *reference.rounds[1:]))
    verdict = compare(baseline, build.cell([candidate, broken], "reference"), policy)
    assert verdict.outcome is Outcome.INVALID
    assert "not a positive finite number" in only(verdict).reason
    silent = replace(reference, rounds=tuple(build.round(n, {RATE: None}) for n in range(12)))
    assert (
        compare(baseline, build.cell([candidate, silent], "reference"), policy).outcome
        is Outcome.INVALID
    )


@pytest.mark.parametrize("mode", ["baseline", "reference"])
def test_rounds_left_out_are_told_by_rule_the_commonest_first(build: Build, mode: str) -> None:
    lag = [InvalidReason("lag", "1 ms"), InvalidReason("lag", "2 ms")]
    reasons = [
        (InvalidReason("clock", "900 MHz"),),
        (lag[0],),
        (lag[1], InvalidReason("clock", "800 MHz")),
        (InvalidReason("lag", "3 ms"),),
    ]
    paired = mode == "reference"
    good, *rest = build.pairs(1000.0, 1000.0, 1) if paired else build.sessions(1000.0, 1)
    bad = tuple(replace(build.round(99, {RATE: 100.0}), invalid_reasons=own) for own in reasons)
    verdict = compare(
        build.baseline(),
        build.cell([replace(good, rounds=(*bad, *good.rounds)), *rest], mode),
        build.policy(),
    )
    assert (
        "4 rounds excluded as invalid: 3 by lag, first 1 ms; 2 by clock, first 900 MHz"
        in verdict.notes
    )


def test_invalid_rounds_sessions_and_cells_are_never_judged(build: Build) -> None:
    baseline, policy = build.baseline(), build.policy()
    good = build.sessions(1000.0, 1)[0]
    broken = replace(
        good,
        rounds=(*(build.round(n, {RATE: 100.0}, invalid=True) for n in range(3)), *good.rounds),
    )
    verdict = compare(baseline, build.cell([broken]), policy)
    assert verdict.outcome is Outcome.PASS
    assert (
        f"3 rounds excluded as invalid: 3 by {build.reason.rule}, first {build.reason.text}"
        in verdict.notes
    )
    lost = replace(broken, session_id="x", invalid_reasons=(build.reason,))
    notes = compare(baseline, build.cell([lost, good]), policy).notes
    assert (
        f"1 of 2 sessions excluded as invalid: 1 by {build.reason.rule}, first {build.reason.text}"
        in notes
    )
    # they went with their session
    assert not any("rounds excluded" in note for note in notes)
    said = replace(build.reason, text=f"candidate session: {build.reason.text}")
    assert compare(baseline, build.cell([lost]), policy).invalid_reasons == (said,), (
        "whose session it was is told"
    )
    cell = build.cell([good], invalid_reasons=(InvalidReason("preflight", "dirty"),))
    assert compare(baseline, cell, policy).outcome is Outcome.INVALID
    unpaired = compare(baseline, build.cell([good], "reference"), policy)
    assert unpaired.invalid_reasons[0].rule == "unpaired_session"
    half = build.pairs(1200.0, 1000.0, 2)
    policy = build.policy(plan=MeasurementPlan(mode="reference"))
    ratios = build.baseline(build.cell(build.pairs(1200.0, 1000.0, 6), "reference"), policy)
    left = "1 of 2 sessions excluded without a valid reference session beside them"
    assert left in compare(ratios, build.cell(half[:3], "reference"), policy).notes
    spoiled = [*half[:3], replace(half[3], invalid_reasons=(InvalidReason("lag", "9 ms"),))]
    assert (
        f"{left}: 1 by lag, first 9 ms"
        in compare(ratios, build.cell(spoiled, "reference"), policy).notes
    )


def test_a_slow_slide_is_caught_against_the_anchor(build: Build) -> None:
    policy = build.policy(cumulative_loss_cap_ratio=0.1)
    first = build.baseline()
    slid = build.baseline(build.cell(build.sessions(930.0, 6)), policy, previous=first)
    assert slid.workloads[0].metrics[0].anchor_value == first.workloads[0].metrics[0].anchor_value
    now = only(
        compare(
            slid,
            build.cell(build.sessions(840.0, 3)),
            build.policy(tolerances={RATE: Tolerance(loss_ratio=0.15)}),
        )
    )
    assert now.outcome is Outcome.REGRESSED
    assert "anchor" in now.reason
    assert now.cumulative_loss_ratio == pytest.approx(0.16, abs=0.01)
    same = only(compare(slid, build.cell(build.sessions(930.0, 3)), policy))
    assert (same.outcome, same.cumulative_loss_ratio) == (
        Outcome.PASS,
        pytest.approx(0.07, abs=0.01),
    )


def test_one_bad_session_is_no_regression_whatever_the_anchor_says(build: Build) -> None:
    """The cap was no test of its own: one analysis, one session."""
    policy = build.policy(tolerances={RATE: Tolerance(loss_ratio=0.15)})
    slid = build.baseline(build.cell(build.sessions(930.0, 6)), policy, previous=build.baseline())
    bad = build.session("bad", build.rounds(700.0))
    assert compare(slid, build.cell([bad]), policy).outcome is Outcome.SUSPECT
    mixed = build.cell([bad, *build.sessions(930.0, 2)])
    assert compare(slid, mixed, policy).outcome is not Outcome.REGRESSED


@pytest.mark.parametrize(
    ("moved", "outcome"),
    [(1000.5, Outcome.PASS), (999.5, Outcome.PASS), (870.0, Outcome.REGRESSED)],
)
def test_the_anchor_takes_from_the_tolerance_as_much_as_the_baseline_moved(
    build: Build, moved: float, outcome: Outcome
) -> None:
    """A move of 0.05 % turned a tolerance of 25 % into the cap of 10 %."""
    policy = build.policy(tolerances={RATE: Tolerance(loss_ratio=0.25)})
    first = build.baseline()
    near = build.baseline(build.cell(build.sessions(moved, 6)), policy, previous=first)
    now = build.cell(build.sessions(moved * 0.83, 3))
    assert compare(near, now, policy).outcome is outcome


@given(st.floats(0, 1), st.floats(1e-6, 1), st.floats(1e-6, 1))
def test_what_an_anchor_leaves_of_a_tolerance_is_continuous(
    moved: float, cap: float, tolerance: float
) -> None:
    left = remaining_tolerance(moved, cap, tolerance)
    assert tolerance / 2 <= left <= tolerance
    assert abs(remaining_tolerance(moved + 1e-9, cap, tolerance) - left) <= 2e-9
    assert remaining_tolerance(-moved, cap, tolerance) == tolerance


def test_the_candidates_own_noise_is_named(build: Build) -> None:
    wild = [build.session(f"w{n}", build.rounds(level)) for n, level in enumerate((1000.0, 830.0))]
    found = only(compare(build.baseline(), build.cell(wild), build.policy()))
    assert "the candidate's sessions vary" in found.reason
    assert found.noise_ratio is not None
    assert found.noise_ratio > 100
    assert (found.noise_df, found.holds_by_own_noise) == (1, False)
    usual = only(compare(build.baseline(), build.cell(build.sessions(960.0, 2)), build.policy()))
    assert "vary" not in usual.reason
    assert only(compare(build.baseline(), build.cell(wild[:1]), build.policy())).noise_ratio is None


def waiver(**changes: object) -> dict[str, object]:
    given = {
        "target": "gpu",
        "config": "default",
        "workload": "chat",
        "metric": RATE,
        "owner": "ann",
        "build": "0.32",
    }
    return {**given, "reason": "vLLM issue 1", "expires_on": "2026-06-02", **changes}


@pytest.mark.parametrize(
    ("changes", "outcome", "said"),
    [
        ({}, Outcome.PASS, "waived by ann until 2026-06-02"),
        ({"expires_on": "2026-06-01"}, Outcome.REGRESSED, "expired on 2026-06-01"),
        ({"build": "0.3"}, Outcome.REGRESSED, "it covers build 0.3"),
        ({"largest_loss_ratio": 0.03}, Outcome.REGRESSED, "grew beyond"),
        ({"largest_loss_ratio": 0.3}, Outcome.PASS, "waived"),
        (
            {"metric": "ttft_mean_ms"},
            Outcome.REGRESSED,
            "ttft_mean_ms: the waiver of ann until 2026-06-02 matches nothing: the metric was not",
        ),
        ({"workload": "burst"}, Outcome.REGRESSED, ""),
    ],
)
def test_a_waiver_has_owner_build_and_end(
    build: Build, changes: dict[str, object], outcome: Outcome, said: str
) -> None:
    from k3perf.records.baseline import Waiver

    waivers = (Waiver.model_validate(waiver(**changes)),)

    def judged(level: float) -> CellVerdict:
        found = compare(build.baseline(), build.cell(build.sessions(level, 3)), build.policy())
        return apply_waivers(found, waivers, today=date(2026, 6, 1), build="0.32.0")

    verdict = judged(880.0)
    assert verdict.outcome is outcome
    assert any(said in note for note in verdict.notes) if said else not verdict.notes
    assert only(verdict).waived_by == ("ann" if outcome is Outcome.PASS else "")
    unused = [note for note in judged(1000.0).notes if "matches nothing" in note]
    assert len(unused) == (0 if "workload" in changes else 1)


def test_session_metrics_are_judged_without_rounds(build: Build) -> None:
    policy = build.policy(tolerances={"startup_warm_s": Tolerance(loss_ratio=0.2)})
    recorded = [build.session(f"s{n}", startup_warm_s=30 * (1 + LEVELS[n])) for n in range(6)]
    baseline = build.baseline(build.cell(recorded), policy)

    def judged(*seconds: float | None) -> Outcome:
        return compare(
            baseline,
            build.cell([build.session(f"c{n}", startup_warm_s=s) for n, s in enumerate(seconds)]),
            policy,
        ).outcome

    assert judged(30.1) is Outcome.PASS
    assert judged(45.0) is Outcome.SUSPECT
    assert judged(45.0, 45.3) is Outcome.REGRESSED
    assert judged(None, 30.0) is Outcome.PASS
    assert judged(None) is Outcome.INVALID


def test_references_that_a_run_keeps_change_no_verdict(build: Build) -> None:
    baseline, policy, references = build.baseline(), build.policy(), References()
    for level, count in ((1000.0, 1), (880.0, 3), (1000.0, 1)):
        cell = build.cell(build.sessions(level, count))
        assert compare(baseline, cell, policy, references) == compare(baseline, cell, policy)
    quieter = build.baseline(build.cell(build.sessions(880.0, 6)))
    cell = build.cell(build.sessions(880.0, 3))
    assert compare(quieter, cell, policy, references).outcome is Outcome.PASS


def test_more_rounds_than_worth_having_are_not_waited_for(build: Build) -> None:
    verdict = compare(
        build.baseline(), build.cell(build.sessions(1000.0, 1, rounds=4)), build.policy()
    )
    assert (verdict.outcome, only(verdict).round_count, only(verdict).look) == (Outcome.PASS, 4, 1)


def test_the_report_states_what_this_run_could_have_seen(build: Build) -> None:
    found = only(compare(build.baseline(), build.cell(build.sessions(1000.0)), build.policy()))
    assert 0.05 < found.smallest_detectable_loss_ratio < 0.1


def test_a_baseline_without_logarithms_is_invalid(build: Build) -> None:
    baseline = build.baseline()
    entry = baseline.workloads[0].metrics[0]
    bad = entry.model_copy(
        update={
            "sessions": (entry.sessions[0].model_copy(update={"value": 0.0}), *entry.sessions[1:])
        }
    )
    workload = baseline.workloads[0].model_copy(update={"metrics": (bad,)})
    verdict = compare(
        baseline.model_copy(update={"workloads": (workload,)}),
        build.cell(build.sessions(1000.0)),
        build.policy(),
    )
    assert verdict.outcome is Outcome.INVALID


def test_a_workloads_own_tolerance_holds_for_its_cells_alone(build: Build) -> None:
    own = {"sharing": {"prefix_hit_ratio": Tolerance(loss_absolute=0.01)}}
    policy = build.policy(tolerances={RATE: Tolerance(loss_ratio=0.05)}, workload_tolerances=own)

    def cell(workload: str, hit: float, count: int):
        made = []
        for number in range(count):
            level = 1000 * (1 + LEVELS[number])
            rounds = [
                build.round(index, {RATE: level * (1 + SPREAD[index]), "prefix_hit_ratio": hit})
                for index in range(12)
            ]
            made.append(build.session(f"s{number}", rounds))
        return build.cell(made, workload=workload)

    sharing = build.baseline(cell("sharing", 0.75, 6), policy)
    assert {entry.metric for entry in sharing.workloads[0].metrics} == {RATE, "prefix_hit_ratio"}
    assert compare(sharing, cell("sharing", 0.745, 2), policy).outcome is Outcome.PASS
    lost = compare(sharing, cell("sharing", 0.70, 2), policy)
    assert {metric.metric for metric in lost.metrics if metric.outcome is Outcome.REGRESSED} == {
        "prefix_hit_ratio"
    }

    chat = build.baseline(cell("chat", 0.0, 6), policy)
    assert {entry.metric for entry in chat.workloads[0].metrics} == {RATE}
    assert {metric.metric for metric in compare(chat, cell("chat", 0.0, 2), policy).metrics} == {
        RATE
    }


def test_every_metric_that_is_gated_anywhere_is_known(build: Build) -> None:
    rate, hits = Tolerance(loss_ratio=0.05), Tolerance(loss_absolute=0.01)
    policy = build.policy(
        tolerances={RATE: rate},
        workload_tolerances={
            "sharing": {"prefix_hit_ratio": hits},
            "chat": {RATE: None, "ttft_p50_ms": None},
        },
    )
    assert policy.known_tolerances == {RATE: rate, "prefix_hit_ratio": hits}


def test_an_unknown_metric_among_a_workloads_tolerances_is_refused(build: Build) -> None:
    with pytest.raises(UnknownNameError, match="hit_rate"):
        build.policy(workload_tolerances={"sharing": {"hit_rate": Tolerance(loss_absolute=0.01)}})


def test_a_configs_own_tolerance_is_the_one_its_verdict_is_given_by(build: Build) -> None:
    policy = build.policy(
        config_tolerances={"loud": {RATE: Tolerance(loss_ratio=0.2)}, "untold": {RATE: None}}
    )

    def judged(config: str):
        baseline = build.baseline(build.cell(build.sessions(1000.0, 6), config=config), policy)
        return compare(
            baseline,
            build.cell(build.sessions(900.0, 4), config=config),
            with_noise_of(policy, [baseline]),
        )

    strict, wide = judged("default"), judged("loud")
    assert (strict.outcome, only(strict).tolerance_ratio) == (Outcome.REGRESSED, 0.05)
    assert (wide.outcome, only(wide).tolerance_ratio) == (Outcome.PASS, 0.2)
    unjudged = compare(
        build.baseline(), build.cell(build.sessions(900.0, 4), config="untold"), policy
    )
    assert unjudged.metrics == ()


def test_a_config_overlays_a_workloads_tolerance_and_other_cells_keep_theirs(build: Build) -> None:
    wide, strict, widest = (Tolerance(loss_ratio=ratio) for ratio in (0.1, 0.05, 0.4))
    policy = build.policy(
        tolerances={RATE: strict, "tpot_mean_ms": strict},
        workload_tolerances={"chat": {RATE: wide}},
        config_tolerances={
            "loud": {RATE: widest, "tpot_mean_ms": None, "energy_per_output_token_j": wide}
        },
    )
    assert policy.for_cell("loud", "chat").tolerances == {
        RATE: widest,
        "energy_per_output_token_j": wide,
    }
    assert policy.for_cell("loud", "chat").for_cell("loud", "chat") == policy.for_cell(
        "loud", "chat"
    )
    assert policy.for_cell("default", "chat").tolerances == {RATE: wide, "tpot_mean_ms": strict}
    assert policy.for_cell("default", "burst") is policy
    assert policy.known_tolerances == {
        RATE: strict,
        "tpot_mean_ms": strict,
        "energy_per_output_token_j": wide,
    }
    with pytest.raises(UnknownNameError, match="hit_rate"):
        build.policy(config_tolerances={"loud": {"hit_rate": wide}})


def test_the_suites_own_tolerances_and_counts_reach_the_policy(suite_copy) -> None:
    import yaml

    from k3perf.baselines.target_policy import target_policy
    from k3perf.config.gated import statistical_metric_count
    from k3perf.config.suite import load_suite
    from k3perf.errors import ConfigFileError

    path = suite_copy / "tolerances.yaml"
    declared = {
        key: value
        for key, value in yaml.safe_load(path.read_text()).items()
        if key not in ("configs", "memory_and_lock")
    }
    path.write_text(yaml.safe_dump(declared))
    before = load_suite(suite_copy)
    own = {"output_tokens_per_s": {"loss_ratio": 0.4}, "tpot_mean_ms": None}
    path.write_text(
        yaml.safe_dump({**declared, "configs": {"h200-k3": {"batched_tokens_down": own}}})
    )
    suite = load_suite(suite_copy)
    target = suite.target("h200-k3")
    policy = target_policy(suite, target, gated_metric_count=1)
    assert (
        policy.for_cell("batched_tokens_down", "serve_1k")
        .tolerances["output_tokens_per_s"]
        .loss_ratio
        == 0.4
    )
    assert "tpot_mean_ms" not in policy.for_cell("batched_tokens_down", "serve_1k").tolerances
    cells = suite.cells(("h200-k3",))
    lost = statistical_metric_count(before, cells) - statistical_metric_count(suite, cells)
    assert lost == len(target.workloads), (
        "a metric that is not gated in a cell takes no share of the budget there"
    )

    path.write_text(
        yaml.safe_dump(
            {
                **declared,
                "configs": {"h200-k3": {"batched_tokens_down": {"tpot_mean": {"loss_ratio": 0.4}}}},
            }
        )
    )
    with pytest.raises(ConfigFileError) as caught:
        target_policy(load_suite(suite_copy), target, gated_metric_count=1)
    assert (caught.value.path, caught.value.key) == (
        path,
        "configs.h200-k3.batched_tokens_down.tpot_mean",
    )
    assert str(caught.value).endswith(
        "no metric has this name (value: {'loss_ratio': 0.4}). Use a name of docs/metrics.md, such"
        " as tpot_mean_ms."
    )
