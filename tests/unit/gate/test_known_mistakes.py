"""The ways in which other suites' gates are known to go wrong, one test each. Every
test fails for a gate that makes the mistake.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest
from pydantic import ValidationError

from k3perf.baselines.accept import beyond_cap, changes
from k3perf.baselines.changes import BaselineChange, check
from k3perf.baselines.target_policy import pool_noise
from k3perf.baselines.testable import testable
from k3perf.baselines.waivers import apply_waivers
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.errors import UsageError
from k3perf.gate.compare import compare
from k3perf.gate.policy import Policy
from k3perf.records.baseline import Baseline, Waiver
from k3perf.records.measurement import CellMeasurement
from k3perf.records.outcome import Outcome
from tests.unit.gate.conftest import LEVELS, RATE, Build

TTFT = "ttft_mean_ms"
COLLECTED = frozenset({("gpu", "default")})


def outcome(baseline: Baseline | None, cell: CellMeasurement, policy: Policy) -> Outcome:
    return compare(baseline, cell, policy).outcome


def file_of(baseline: Baseline) -> bytes:
    return baseline.model_dump_json().encode()


def test_a_baseline_does_not_follow_a_slow_slide_down(build: Build) -> None:
    """A rolling baseline re-arms against the lowered bar within days: here twenty
    losses of 2 % in a row end at the anchor's cap.
    """
    policy, first = build.policy(), build.baseline()
    current, level = first, 1000.0
    for _ in range(20):
        level *= 0.98
        proposed = build.baseline(build.cell(build.sessions(level, 6)), policy, previous=current)
        if beyond_cap(
            changes(proposed, current, policy.tolerances), policy.cumulative_loss_cap_ratio
        ):
            break
        current = proposed
    assert 0.88 < level / 1000 < 0.92
    kept = current.workloads[0].metrics[0].anchor_value
    assert kept == first.workloads[0].metrics[0].anchor_value


def test_one_bad_run_is_no_regression(build: Build) -> None:
    """One run a point: a session that is 20 % slow alone asks for a second one."""
    verdict = compare(build.baseline(), build.cell(build.sessions(800.0, 1)), build.policy())
    assert (verdict.outcome, verdict.buy_until_sessions) == (Outcome.SUSPECT, 2)


def test_two_equal_engines_with_luck_of_their_own_are_not_told_apart(build: Build) -> None:
    """14 alternating pairs of rounds differed by 9.6 % between two equal engines:
    rounds alone call that certain; sessions do not.
    """
    lucky = (0.096, -0.03, 0.05, -0.07, 0.02, -0.05, 0.06, -0.04)
    policy = build.policy(plan=MeasurementPlan(mode="reference"))

    def cell(shifts: tuple[float, ...]) -> CellMeasurement:
        pairs = [
            replace(session, session_id=f"{session.session_id}-{n}", pair_id=f"p{n}")
            for n, shift in enumerate(shifts)
            for session in build.pairs(1000.0 * (1 - shift), 1000.0, 1, rounds=14)
        ]
        return build.cell(pairs, "reference")

    baseline = build.baseline(cell(lucky[1:7]), policy)
    assert outcome(baseline, cell(lucky[:1]), policy) is not Outcome.REGRESSED
    assert outcome(None, replace(cell(lucky[:1]), mode="ab"), policy) is not Outcome.REGRESSED


def test_absolute_and_relative_slack_do_not_add_up() -> None:
    """A tolerance with both lets a KV-cache row lose 90 %."""
    with pytest.raises(ValidationError):
        Tolerance(loss_ratio=0.1, loss_absolute=1e9)
    with pytest.raises(ValidationError):
        Tolerance()


def test_broken_sessions_never_enter_a_baseline(build: Build) -> None:
    """Baselines averaged over broken nights."""
    good = build.sessions(1000.0, 6)
    broken = replace(build.session("broken", build.rounds(100.0)), invalid_reasons=(build.reason,))
    entry = build.baseline(build.cell([broken, *good])).workloads[0].metrics[0]
    assert "broken" not in [session.session_id for session in entry.sessions]
    assert entry.anchor_value == pytest.approx(1000, rel=0.01)
    throttled = [
        replace(good[0], rounds=(*good[0].rounds, build.round(99, {RATE: 1.0}, invalid=True))),
        *good[1:],
    ]
    entry = build.baseline(build.cell(throttled)).workloads[0].metrics[0]
    assert min(value for session in entry.sessions for value in session.round_values) > 900


def test_a_bar_cannot_be_moved_without_a_reason(build: Build) -> None:
    """Tightened by 0.95 without a reason; a worse one needs a new reason, and an edit
    by hand is seen.
    """
    before = build.baseline()
    worse = build.baseline(build.cell(build.sessions(960.0, 6)), previous=before)
    path = "baselines/gpu/default.json"
    assert (
        "keeps the old reason"
        in check(
            [BaselineChange(path, file_of(before), file_of(worse))],
            collected=COLLECTED,
        )[0].problem
    )
    edited = before.model_copy(update={"hardware_class": "h100"})
    assert (
        "by hand"
        in check(
            [BaselineChange(path, file_of(before), file_of(edited))],
            collected=COLLECTED,
        )[0].problem
    )
    with pytest.raises(ValidationError):
        build.acceptance(reason="")


def test_a_metric_that_follows_something_else_is_refused_a_tolerance(build: Build) -> None:
    """A gated metric with a spread of 27.6 % that followed the output length."""
    levels = [1000.0 * (1 + 0.276 * shift) for shift in (1.2, -0.7, 0.4, -1.3, 0.8, -0.4)]
    noisy = [build.session(f"s{n}", build.rounds(level)) for n, level in enumerate(levels)]
    baselines = [build.baseline(build.cell(noisy, workload=name)) for name in ("chat", "burst")]
    policy = build.policy()
    policy = replace(policy, noise=pool_noise(baselines, policy.tolerances))
    assert [problem.metric for problem in testable(baselines[0], policy)] == [RATE]


def test_numbers_of_other_hardware_are_no_baseline(build: Build) -> None:
    """NPU runs carried H100 baselines; a machine id that knows no GPU compares
    anything.
    """
    measured = build.cell(build.sessions(1000.0), hardware_class="b200")
    assert outcome(build.baseline(), measured, build.policy()) is Outcome.NO_BASELINE


def test_a_metric_cannot_vanish(build: Build) -> None:
    """TTFT was deleted in the end: dropping it from the baseline needs a reason, and
    not measuring it is no pass.
    """
    policy = build.policy(
        tolerances={RATE: Tolerance(loss_ratio=0.05), TTFT: Tolerance(loss_ratio=0.1)}
    )

    def sessions(count: int, *, latency: bool):
        return [
            build.session(
                f"s{n}",
                [
                    build.round(i, {RATE: value, **({TTFT: 60000 / value} if latency else {})})
                    for i, value in enumerate(
                        r.values[RATE].value * (1 + LEVELS[n]) for r in build.rounds(1000.0)
                    )
                ],
            )
            for n in range(count)
        ]

    both = build.baseline(build.cell(sessions(6, latency=True)), policy)
    fewer = build.baseline(build.cell(sessions(6, latency=False)), policy)
    path = "baselines/gpu/default.json"
    assert (
        f"{TTFT} gone"
        in check(
            [BaselineChange(path, file_of(both), file_of(fewer))],
            collected=COLLECTED,
        )[0].problem
    )
    assert outcome(both, build.cell(sessions(2, latency=False)), policy) is Outcome.INVALID
    assert outcome(fewer, build.cell(sessions(2, latency=True)), policy) is Outcome.NO_BASELINE


@pytest.mark.parametrize(
    ("metric", "worse", "better"), [(RATE, 850.0, 1150.0), (TTFT, 1150.0, 850.0)]
)
def test_larger_is_not_always_worse(build: Build, metric: str, worse: float, better: float) -> None:
    policy = build.policy(tolerances={metric: Tolerance(loss_ratio=0.05)})

    def cell(level: float, count: int) -> CellMeasurement:
        return build.cell(
            [
                build.session(f"s{n}", build.rounds(level * (1 + LEVELS[n]), metric=metric))
                for n in range(count)
            ]
        )

    baseline = build.baseline(cell(1000.0, 6), policy)
    assert outcome(baseline, cell(worse, 3), policy) is Outcome.REGRESSED
    assert outcome(baseline, cell(better, 3), policy) is Outcome.IMPROVED


def test_a_missing_or_renamed_baseline_is_no_pass(build: Build) -> None:
    measured = build.cell(build.sessions(1000.0))
    assert outcome(None, measured, build.policy()) is Outcome.NO_BASELINE
    assert (
        outcome(build.baseline(), replace(measured, config="renamed"), build.policy())
        is Outcome.NO_BASELINE
    )
    assert (
        outcome(build.baseline(), replace(measured, workload="renamed"), build.policy())
        is Outcome.NO_BASELINE
    )
    gone = check(
        [BaselineChange("baselines/gpu/default.json", file_of(build.baseline()), None)],
        collected=COLLECTED,
    )
    assert "was deleted" in gone[0].problem


def test_changed_work_is_not_compared_with_the_old(build: Build) -> None:
    """A figure that moved because the requests did."""
    measured = build.cell(build.sessions(1000.0), plan_digest="plan-2")
    assert outcome(build.baseline(), measured, build.policy()) is Outcome.NO_BASELINE


def test_a_bad_last_point_does_not_set_the_bar(build: Build) -> None:
    """A ratio to the last point is the weakest rule: one lucky last session must not
    make equal ones red.
    """
    recorded = [*build.sessions(1000.0, 5), build.session("lucky", build.rounds(1080.0))]
    baseline = build.baseline(build.cell(recorded))
    assert (
        outcome(baseline, build.cell(build.sessions(1000.0, 3)), build.policy())
        is not Outcome.REGRESSED
    )


def test_sixty_cells_share_one_budget() -> None:
    """60 cells at 1 % each turn 45 % of clean runs red."""
    policy = Policy(
        tolerances={RATE: Tolerance(loss_ratio=0.05)},
        plan=MeasurementPlan(mode="baseline"),
        gated_metric_count=60,
    )
    assert 1 - (1 - policy.alpha) ** 60 <= policy.false_alarm_budget
    assert 60 * policy.half_tolerance_alpha == pytest.approx(policy.half_tolerance_budget)


def test_a_rerun_of_the_same_session_confirms_nothing(build: Build) -> None:
    """Confirming by a rerun helps only if the noise is independent: more rounds of the
    slow session leave it undecided.
    """
    slow = build.session("slow", build.rounds(850.0, count=36))
    verdict = compare(build.baseline(), build.cell([slow]), build.policy())
    assert (verdict.outcome, verdict.buy_until_sessions) == (Outcome.SUSPECT, 2)


def test_a_bad_machine_is_not_a_bad_build(build: Build) -> None:
    """Throttled clocks (1965 to 1580 MHz): rounds that the validity rules refuse are
    INVALID, not REGRESSED.
    """
    throttled = [
        build.round(r.round_index, {RATE: r.values[RATE].value}, invalid=True)
        for r in build.rounds(800.0)
    ]
    assert (
        outcome(build.baseline(), build.cell([build.session("hot", throttled)] * 2), build.policy())
        is Outcome.INVALID
    )


def test_a_known_loss_does_not_stay_silenced(build: Build) -> None:
    lost = build.cell(build.sessions(850.0, 3))
    given = {
        "target": "gpu",
        "config": "default",
        "workload": "chat",
        "metric": RATE,
        "owner": "ann",
        "build": "0.32",
        "reason": "known loss",
    }
    waiver = Waiver.model_validate({**given, "expires_on": "2026-06-02"})
    verdict = compare(build.baseline(), lost, build.policy())

    def waived(day: int, version: str) -> Outcome:
        today = date(2026, 6, day)
        return apply_waivers(verdict, (waiver,), today=today, build=version).outcome

    assert waived(1, "0.32.0") is Outcome.PASS
    assert waived(2, "0.32.0") is Outcome.REGRESSED
    assert waived(1, "0.33.0") is Outcome.REGRESSED


def test_too_few_sessions_make_no_baseline(build: Build) -> None:
    with pytest.raises(UsageError, match="a baseline needs 6"):
        build.baseline(build.cell(build.sessions(1000.0, 1)))
