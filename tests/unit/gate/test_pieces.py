from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3perf.baselines.scaling import USUAL_SPREAD
from k3perf.config.models import Tolerance
from k3perf.errors import ExitStatus
from k3perf.gate.compare import compare, next_purchase
from k3perf.gate.decision import Cause, judge
from k3perf.metrics.drift import config_differences
from k3perf.metrics.loss_scale import scale_for
from k3perf.records.metric_definitions import METRICS
from k3perf.records.outcome import Outcome, exit_status
from k3perf.records.verdict import SuiteVerdict
from k3perf.stats.bounds import Limits, minimum_detectable
from k3perf.stats.estimators import Location
from k3perf.stats.noise import NO_NOISE
from k3perf.stats.reference import Level, Reference, cell_reference
from k3perf.stats.sequential import last_planned, schedule
from tests.unit.gate.conftest import RATE, Build

LIMITS = Limits(tolerance=1.0, alpha=1e-4, half_alpha=3e-4, beta=0.05, maximum_rounds=12)


def recorded(
    variance: float,
    *,
    sessions: int = 6,
    df: int = 100,
    round_variance: float | None = None,
    rounds: int = 0,
    skewness: float = 0.0,
) -> Reference:
    level = Level(0.0, variance, df, skewness)
    return Reference(
        sessions,
        lambda _: level,
        Location.MEDIAN,
        1,
        round_count=rounds,
        round_variance=round_variance,
        spread_over_noise_ratio=USUAL_SPREAD,
    )


QUIET = recorded(0.0004)


def test_a_mean_inside_the_tolerance_is_no_regression_whatever_two_sessions_say() -> None:
    looks = schedule(range(3, 4), 1, 1, 1, 6)
    assert judge([[0.2], [1.2], [1.2]], QUIET, LIMITS, looks).outcome is not Outcome.REGRESSED
    assert judge([[0.9], [1.2], [1.2]], QUIET, LIMITS, looks).outcome is Outcome.REGRESSED


def test_a_loss_must_be_clear_of_half_the_tolerance() -> None:
    """Standard error 0.2: no loss is excluded at 1.2 tolerances, half a tolerance only
    at 1.25.
    """
    noisy = recorded(0.06)
    looks = schedule(range(2, 3), 1, 1, 1, 6)
    doubtful = judge([[1.2], [1.2]], noisy, LIMITS, looks)
    assert (doubtful.outcome, doubtful.relevant, doubtful.significant) == (
        Outcome.SUSPECT,
        True,
        True,
    )
    assert judge([[1.25], [1.25]], noisy, LIMITS, looks).outcome is Outcome.REGRESSED


def test_three_slow_rounds_of_four_in_two_sessions_make_no_regression() -> None:
    quiet = recorded(0.0004, round_variance=0.0001, rounds=12)
    looks = schedule(range(2, 3), 4, 4, 12, 6)
    assert judge([[0.01, 3.0, 3.01, 3.02]] * 2, quiet, LIMITS, looks).outcome is Outcome.SUSPECT
    few = LIMITS._replace(maximum_rounds=4)  # no more to have
    assert judge([[0.01, 3.0, 3.01, 3.02]] * 2, quiet, few, looks).outcome is Outcome.SUSPECT
    assert judge([[2.99, 3.0, 3.01, 3.02]] * 2, quiet, LIMITS, looks).outcome is Outcome.REGRESSED


def test_without_noise_nothing_is_decided() -> None:
    looks = schedule(range(1, 4), 1, 1, 1, 0)
    unknown = recorded(0.0, sessions=0, df=0)
    assert minimum_detectable(unknown, LIMITS, looks[-1]) is None
    first = judge([[5.0]], unknown, LIMITS, looks)
    assert (first.cause, first.need_sessions) == (Cause.NO_NOISE, 2)
    lone = judge([[5.0]], recorded(0.0, sessions=1, df=0), LIMITS, looks)
    assert (lone.outcome, lone.need_sessions) == (Outcome.SUSPECT, None)


def test_a_spread_that_more_rounds_cure_is_judged_on_all_of_them() -> None:
    noisy = recorded(0.01, round_variance=0.0001, rounds=12)
    looks = schedule(range(1, 3), 4, 4, 12, 6)
    rounds = [0.0, 1.6, 1.6, 0.01, *[0.0, 0.005, -0.01, 0.01, 0.0, -0.005, 0.01, 0.0]]
    decided = judge([rounds], noisy, LIMITS, looks)
    assert (decided.outcome, decided.rounds, decided.analysis) == (Outcome.PASS, 12, 1)


@pytest.mark.parametrize("baseline_sessions", [0, 2, 6, 12])
@pytest.mark.parametrize("last", [1, 2, 3, 4])
def test_the_budgets_are_spent_once_and_one_session_spends_no_alpha(
    last: int, baseline_sessions: int
) -> None:
    looks = schedule(range(1, last + 1), 4, 8, 12, baseline_sessions)
    assert [look.sessions for look in looks] == [1, *range(1, last + 1)]
    assert sum(look.beta_share for look in looks) == pytest.approx(1)
    assert sum(look.alpha_share for look in looks if look.may_regress) == pytest.approx(1)
    assert all(look.may_regress == (look.sessions > 1) for look in looks) or last == 1
    assert [look.may_regress for look in looks if last == 1] in ([], [False, True])
    assert looks[-1].rounds == (12 if last == 1 else 8)
    assert len(schedule(range(2, 3), 4, 4, 12, 6)) == 1


def test_a_first_look_at_noisier_rounds_counts_for_less() -> None:
    shares = [
        schedule(range(1, 4), 4, 8, 12, 6, share)[0].beta_share for share in (0.2, 0.5, 0.9, 1.0)
    ]
    assert shares == sorted(shares)
    assert shares[0] < shares[1] < shares[2] == shares[3]
    assert schedule(range(1, 4), 4, 8, 12, 6, 1.0)[1].beta_share > 0


def test_skewed_noise_needs_a_larger_loss_while_sessions_are_few() -> None:
    """At two of five sessions the bound moves outwards; at five against six hardly."""
    looks = schedule(range(2, 6), 1, 1, 1, 6)
    few, many = ([[1.3]] * 2, [[1.3]] * 5)
    straight, skewed = recorded(0.04), recorded(0.04, skewness=1.75)
    assert judge(few, straight, LIMITS, looks).outcome is Outcome.REGRESSED
    assert judge(few, skewed, LIMITS, looks).outcome is Outcome.SUSPECT
    assert judge(many, skewed, LIMITS, looks).outcome is Outcome.REGRESSED
    assert judge(few, recorded(0.04, skewness=-1.75), LIMITS, looks).outcome is Outcome.REGRESSED
    lower = judge(few, skewed, LIMITS, looks).lower
    assert lower is not None
    assert lower < judge(few, straight, LIMITS, looks).lower


def test_how_far_rounds_may_spread_is_never_left_to_a_default() -> None:
    """A caller that forgot the target's own limit would judge by the usual one in
    silence.
    """
    with pytest.raises(TypeError, match="spread_over_noise_ratio"):
        Reference(6, lambda _: Level(0.0, 0.0, 0), Location.MEDIAN, 4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="spread_over_noise_ratio"):
        cell_reference(((1.0, 2.0),), NO_NOISE, 2, (1, 2))  # type: ignore[call-arg]


def test_a_session_is_compared_with_as_many_recorded_rounds() -> None:
    """A slide that every session shows is no difference, however few rounds were
    measured.
    """
    levels = {4: Level(0.0, 0.0004, 100), 12: Level(2.0, 0.0004, 100)}
    reference = Reference(
        6,
        levels.__getitem__,
        Location.MEDIAN,
        4,
        round_count=12,
        round_variance=0.0001,
        spread_over_noise_ratio=USUAL_SPREAD,
    )
    looks = schedule(range(1, 3), 4, 4, 12, 6)
    assert judge([[0.01, 0.0, 0.02, 0.01]], reference, LIMITS, looks).outcome is Outcome.PASS
    stretched = judge(
        [[0.0, 3.9, 0.0, 4.0, *[2.0, 2.01, 1.99, 2.0, 2.01, 1.99, 2.0, 2.0]]],
        reference,
        LIMITS,
        looks,
    )
    assert (stretched.outcome, stretched.estimate) == (Outcome.PASS, pytest.approx(0.0, abs=0.01))


@pytest.mark.parametrize("sessions", [range(1, 2), range(1, 4), range(2, 6)])
def test_analyses_of_a_suspected_loss_share_the_error_rates(sessions: range) -> None:
    looks = schedule(sessions, 4, 8, 12, 6, extra=2)
    assert [look.sessions for look in looks if look.extra] == [sessions[-1] + 1, sessions[-1] + 2]
    assert last_planned(looks) == looks[-3]
    assert sum(look.alpha_share for look in looks if look.may_regress) == pytest.approx(1)
    assert sum(look.beta_share for look in looks) == pytest.approx(1)


def test_a_loss_beyond_the_tolerance_is_suspect_until_it_is_decided() -> None:
    noisy = recorded(0.06)
    looks = schedule(range(2, 3), 1, 1, 1, 6, extra=2)
    first = judge([[1.1], [1.1]], noisy, LIMITS, looks)
    assert (first.outcome, first.need_sessions) == (Outcome.SUSPECT, 3)
    inside = judge([[1.1], [1.1], [0.7], [9.0]], noisy, LIMITS, looks)
    assert (inside.outcome, inside.need_sessions) == (Outcome.INCONCLUSIVE, None)
    spent = judge([[1.1]] * 5, noisy, LIMITS, looks)
    assert (spent.outcome, spent.sessions, spent.need_sessions) == (Outcome.SUSPECT, 4, None)
    proven = judge([[1.1], [1.1], [1.9]], noisy, LIMITS, looks)
    assert (proven.outcome, proven.analysis) == (Outcome.REGRESSED, 2)
    assert judge([[0.9], [0.9], [9.0]], noisy, LIMITS, looks).outcome is Outcome.INCONCLUSIVE


def test_one_session_far_out_does_not_carry_the_others() -> None:
    """Two sessions lose more than the tolerance and the mean does clearly, but without
    the worst the others do not.
    """
    looks = schedule(range(3, 4), 1, 1, 1, 6)
    assert judge([[6.0], [1.05], [0.6]], QUIET, LIMITS, looks).outcome is Outcome.SUSPECT
    assert judge([[6.0], [1.05], [1.0]], QUIET, LIMITS, looks).outcome is Outcome.REGRESSED


def test_a_session_whose_loss_may_be_a_few_slow_rounds_is_measured_on() -> None:
    """Three of four rounds slow: the spread is in line, the session seems to lose, and
    the odd round says why to doubt it.
    """
    reference = recorded(0.0004, round_variance=0.0001, rounds=12)
    looks = schedule(range(1, 3), 4, 4, 12, 6)
    slow = [0.0, 3.0, 3.01, 3.02]
    early = judge([slow], reference, LIMITS, looks)
    assert (early.outcome, early.cause, early.need_sessions, early.need_rounds) == (
        Outcome.SUSPECT,
        Cause.OUTLIERS,
        1,
        12,
    )
    later = judge([[*slow, *[0.0, 0.01] * 4]], reference, LIMITS, looks)
    assert (later.outcome, later.rounds) == (Outcome.PASS, 12)
    assert judge([[0.0, 0.01, 0.02, 3.0]], reference, LIMITS, looks).rounds == 4
    lost = judge([[*slow, *[3.0, 3.01] * 4]] * 2, reference, LIMITS, looks)
    assert (lost.outcome, lost.rounds) == (Outcome.REGRESSED, 24)


round_losses = st.sampled_from([0.0, 0.01, -0.01, 0.02, -0.02, 0.5, 1.2, 1.5, 3.0])


@given(
    st.lists(st.lists(round_losses, min_size=12, max_size=12), min_size=3, max_size=3),
    st.integers(4, 11),
    st.sampled_from([4, 6]),
)
def test_what_else_was_measured_never_changes_a_decision(
    sessions: list[list[float]], more: int, rounds: int
) -> None:
    """Bought look by look, or with rounds that another metric asked for, or all at
    once: the same decision on the same look.
    """
    reference = recorded(0.01, round_variance=0.0001, rounds=12)
    looks = schedule(range(1, 4), 4, rounds, 12, 6)
    at_once = judge(sessions, reference, LIMITS, looks)
    for extra in (0, more):
        bought = [max(4, extra)]
        while True:
            found = judge(
                [losses[:count] for losses, count in zip(sessions, bought, strict=False)],
                reference,
                LIMITS,
                looks,
            )
            if found.need_sessions is None or found.need_rounds is None:
                break
            wanted = [max(had, found.need_rounds) for had in bought] + [found.need_rounds] * (
                found.need_sessions - len(bought)
            )
            assert wanted != bought
            bought = wanted
        assert (found.outcome, found.estimate, found.analysis) == (
            at_once.outcome,
            at_once.estimate,
            at_once.analysis,
        )
        assert (
            found.rounds == at_once.rounds or not found.analysis
        )  # before any look, what was measured is told


def test_a_cell_buys_what_its_nearest_undecided_metric_needs() -> None:
    assert next_purchase([]) == (0, 0)
    assert next_purchase([(None, None), (3, 4), (2, 4), (2, 8), (None, 5)]) == (2, 8)


def test_settings_are_compared_by_value_and_type() -> None:
    was = {
        "a": 1,
        "b": True,
        "c": [1, (2, 3)],
        "d": {},
        "e": math.nan,
        "f": {"g": None},
        "h": [1],
        "i": [{"j": 1}],
    }
    assert config_differences(was, dict(was)) == ()
    assert config_differences(was, was) == ()
    assert config_differences({"f": {"g": None}}, {"f.g": None}) == ()
    for key, value in (
        ("a", 1.0),
        ("a", True),
        ("b", 1),
        ("c", [1, [2, 4]]),
        ("d", {"x": 1}),
        ("h", [1, 2]),
        ("h", [1.0]),
        ("i", [{"j": 2}]),
    ):
        assert config_differences(was, {**was, key: value}), (key, value)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_each_outcome_has_its_exit_status(outcome: Outcome) -> None:
    expected = {
        Outcome.REGRESSED: 1,
        Outcome.INVALID: 10,
        Outcome.NO_BASELINE: 11,
        Outcome.CONFIG_DRIFT: 12,
        Outcome.SUSPECT: 14,
    }.get(outcome, 0)
    assert exit_status(outcome, strict=False) == expected
    strict = ExitStatus.INCONCLUSIVE if outcome is Outcome.INCONCLUSIVE else expected
    assert exit_status(outcome, strict=True) == strict
    assert SuiteVerdict((), 0.01, 1).outcome is Outcome.PASS


def test_scales_turn_values_into_losses_and_back() -> None:
    ratio, absolute = Tolerance(loss_ratio=0.1), Tolerance(loss_absolute=0.1)
    rate, latency = METRICS[RATE], METRICS["ttft_mean_ms"]
    for metric, tolerance in (
        (rate, ratio),
        (latency, ratio),
        (rate, absolute),
        (latency, absolute),
    ):
        scale = scale_for(metric, tolerance)
        assert scale.value(scale.loss(7.0)) == pytest.approx(7.0)
        worse = 7.0 * 0.9 if metric is rate else 7.0 * 1.1
        assert scale.loss_ratio(scale.loss(worse) - scale.loss(7.0), 7.0) == pytest.approx(0.1)
    assert scale_for(rate, ratio).allowed == pytest.approx(-math.log(0.9))
    assert scale_for(latency, ratio).allowed == pytest.approx(math.log(1.1))
    assert scale_for(rate, absolute).loss_ratio(1.0, 0.0) is None
    assert scale_for(rate, ratio).loss_ratio(1e6, 1.0) is None


def test_the_anchor_of_a_latency_is_its_lowest(build: Build) -> None:
    policy = build.policy(tolerances={"ttft_mean_ms": Tolerance(loss_ratio=0.1)})

    def cell(level: float):
        return build.cell(
            [
                build.session(f"s{n}", build.rounds(level * (1 + n * 1e-3), metric="ttft_mean_ms"))
                for n in range(6)
            ]
        )

    first = build.baseline(cell(50.0), policy)
    slower = build.baseline(cell(53.0), policy, previous=first)
    assert slower.workloads[0].metrics[0].anchor_value == pytest.approx(50.0, rel=0.01)
    faster = build.baseline(cell(45.0), policy, previous=first)
    assert faster.workloads[0].metrics[0].anchor_value == pytest.approx(45.0, rel=0.01)


def test_a_policy_that_gates_nothing_judges_nothing(build: Build) -> None:
    verdict = compare(
        build.baseline(), build.cell(build.sessions(1000.0)), build.policy(tolerances={})
    )
    assert verdict.outcome is Outcome.INVALID
    assert "no metric has a tolerance" in verdict.invalid_reasons[0].text


def test_an_outlier_of_an_absolute_metric_is_named_in_its_unit(build: Build) -> None:
    policy = build.policy(tolerances={"prefix_hit_ratio": Tolerance(loss_absolute=0.05)})

    def rounds(level: float, odd: float = 0.0):
        return [
            build.round(i, {"prefix_hit_ratio": level + i * 1e-3 - (odd if i == 5 else 0)})
            for i in range(12)
        ]

    baseline = build.baseline(
        build.cell([build.session(f"s{n}", rounds(0.6 + n * 1e-3)) for n in range(6)]), policy
    )
    verdict = compare(baseline, build.cell([build.session("s", rounds(0.6, 0.4))]), policy)
    assert any("round 5" in note and "ratio worse" in note for note in verdict.notes)
