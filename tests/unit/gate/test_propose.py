from __future__ import annotations

import math
from dataclasses import replace

import pytest

from k3perf.baselines.accept import beyond_cap, changes
from k3perf.baselines.target_policy import pool_noise
from k3perf.baselines.testable import testable
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.errors import UnknownNameError, UsageError
from k3perf.records.baseline import digest_of
from k3perf.records.measurement import CellMeasurement, MetricValue
from tests.unit.gate.conftest import LEVELS, RATE, Build


def test_sessions_rounds_provenance_and_digest_are_kept(build: Build) -> None:
    baseline = build.baseline()
    entry = baseline.workloads[0].metrics[0]
    assert [session.session_id for session in entry.sessions] == [f"c{n}" for n in range(6)]
    assert all(len(session.round_values) == 12 for session in entry.sessions)
    assert entry.anchor_value == pytest.approx(1000, rel=0.01)
    assert baseline.acceptance == baseline.anchor_acceptance
    assert baseline.digest == digest_of(baseline)
    assert digest_of(baseline.model_copy(update={"target": "x"})) != baseline.digest


def test_several_runs_add_their_sessions_up(build: Build) -> None:
    one = build.cell(build.sessions(1000.0, 3))
    other = build.cell(
        [
            replace(session, session_id=f"d{n}")
            for n, session in enumerate(build.sessions(1000.0, 3))
        ]
    )
    from k3perf.baselines.propose import propose

    baseline = propose(
        [one, other],
        versions={},
        policy=build.policy(),
        previous=None,
        acceptance=build.acceptance(),
    )
    assert len(baseline.workloads[0].metrics[0].sessions) == 6


def test_sessions_are_taken_in_order_of_time_whatever_the_order_of_the_files(build: Build) -> None:
    from k3perf.baselines.propose import propose

    def order(*cells: CellMeasurement) -> list[str]:
        baseline = propose(
            cells, versions={}, policy=build.policy(), previous=None, acceptance=build.acceptance()
        )
        return [session.session_id for session in baseline.workloads[0].metrics[0].sessions]

    def recorded(name: str, hour: int) -> CellMeasurement:
        sessions = build.sessions(1000.0, 3)
        return build.cell(
            [
                replace(s, session_id=f"{name}{n}", started_at_utc=f"2026-11-30T{hour:02}:0{n}:00Z")
                for n, s in enumerate(sessions)
            ]
        )

    early, late = recorded("e", 3), recorded("l", 4)
    assert order(late, early) == order(early, late) == ["e0", "e1", "e2", "l0", "l1", "l2"]
    untold = replace(
        early, sessions=(replace(early.sessions[0], started_at_utc=""), *early.sessions[1:])
    )
    assert order(late, untold) == ["l0", "l1", "l2", "e0", "e1", "e2"]


def test_only_sound_measurements_that_belong_together_are_recorded(build: Build) -> None:
    from k3perf.baselines.propose import propose

    good = build.cell(build.sessions(1000.0, 6))
    bad_value = replace(
        good.sessions[0], session_id="bad", rounds=(build.round(0, {RATE: math.nan}),)
    )
    drifted = replace(good.sessions[0], resolved_config={"block_size": 32})
    invalid = replace(good.sessions[0], invalid_reasons=(build.reason,))
    cases = [
        ([], "nothing to propose"),
        ([good, replace(good, config="other")], "one target"),
        ([good, replace(good, hardware_class="b200")], "hardware class"),
        ([replace(good, mode="ab")], "ab run"),
        ([replace(good, sessions=good.sessions[:5])], "5 valid sessions, a baseline needs 6"),
        ([replace(good, sessions=(invalid, *good.sessions[1:]))], "5 valid sessions"),
        ([replace(good, invalid_reasons=(build.reason,))], "0 valid sessions"),
        ([good, replace(good, plan_digest="plan-2")], "different plans"),
        ([good, replace(good, sessions=good.sessions[:1])], "is given twice"),
        ([replace(good, sessions=(*good.sessions, drifted))], "block_size"),
        ([replace(good, sessions=(*good.sessions, bad_value))], "not a positive"),
    ]
    for measurements, said in cases:
        with pytest.raises(UsageError, match=said):
            propose(
                measurements,
                versions={},
                policy=build.policy(),
                previous=None,
                acceptance=build.acceptance(),
            )


def test_the_anchor_stays_on_a_loss_and_is_lifted_by_a_gain(build: Build) -> None:
    first = build.baseline()
    value = first.workloads[0].metrics[0].anchor_value
    later = build.acceptance(accepted_by="bob")
    slower = build.baseline(build.cell(build.sessions(950.0, 6)), previous=first, acceptance=later)
    assert slower.workloads[0].metrics[0].anchor_value == value
    assert slower.anchor_acceptance.accepted_by == "ann"
    faster = build.baseline(build.cell(build.sessions(1100.0, 6)), previous=first)
    assert faster.workloads[0].metrics[0].anchor_value > value * 1.05
    fresh = build.baseline(
        build.cell(build.sessions(950.0, 6)), previous=first, new_anchor=True, acceptance=later
    )
    assert fresh.workloads[0].metrics[0].anchor_value < value
    assert fresh.anchor_acceptance.accepted_by == "bob"


def test_the_table_and_the_cap(build: Build) -> None:
    first = build.baseline()
    slid = build.baseline(build.cell(build.sessions(880.0, 6)), previous=first)
    policy = build.policy()
    row = changes(slid, first, policy.tolerances)[0]
    assert (row.workload, row.metric, row.of_sessions) == ("chat", RATE, "mean of 6")
    assert row.loss_ratio == pytest.approx(0.12, abs=0.01)
    assert row.cumulative_loss_ratio == pytest.approx(0.12, abs=0.01)
    assert "has lost 12" in beyond_cap([row], 0.1)[0]
    assert beyond_cap([row], 0.2) == ()
    new = changes(first, None, policy.tolerances)[0]
    assert (new.old_value, new.loss_ratio) == (None, None)


def test_a_loss_from_nothing_has_no_ratio(build: Build) -> None:
    policy = build.policy(tolerances={"prefix_hit_ratio": Tolerance(loss_absolute=0.05)})

    def cell(level: float):
        return build.cell(
            [
                build.session(
                    f"s{n}", [build.round(i, {"prefix_hit_ratio": level}) for i in range(4)]
                )
                for n in range(6)
            ]
        )

    nothing = build.baseline(cell(0.0), policy)
    row = changes(build.baseline(cell(0.5), policy, previous=nothing), nothing, policy.tolerances)[
        0
    ]
    assert (row.old_value, row.new_value, row.loss_ratio) == (0.0, 0.5, None)


def test_only_gated_statistical_metrics_must_be_testable(build: Build) -> None:
    policy = build.policy(
        tolerances={
            RATE: Tolerance(loss_ratio=0.0001),
            "engine_peak_rss_bytes": Tolerance(loss_ratio=0.1),
        },
        plan=MeasurementPlan(mode="baseline", baseline_sessions=2),
    )
    sessions = [
        replace(s, values={"engine_peak_rss_bytes": MetricValue(50.0 + n, 1)})
        for n, s in enumerate(build.sessions(1000.0, 6))
    ]
    baseline = build.baseline(build.cell(sessions), policy)
    assert {entry.metric for entry in baseline.workloads[0].metrics} == {
        RATE,
        "engine_peak_rss_bytes",
    }
    assert [problem.metric for problem in testable(baseline, policy)] == [RATE]
    assert testable(baseline, replace(policy, tolerances={})) == ()


def test_a_proposal_keeps_how_many_ranks_were_read_and_refuses_a_mixture(build: Build) -> None:
    policy = build.policy(
        tolerances={
            "weights_bytes": Tolerance(loss_absolute=0),
            "engine_peak_rss_bytes": Tolerance(loss_ratio=0.1),
        }
    )

    def cell(*counts: int):
        values = [
            {"weights_bytes": MetricValue(9.0, count), "engine_peak_rss_bytes": MetricValue(5.0, 1)}
            for count in counts
        ]
        return build.cell(
            [replace(build.session(f"s{n}"), values=own) for n, own in enumerate(values)]
        )

    kept = build.baseline(cell(2, 2, 2, 2, 2, 2), policy)
    assert kept.exact[0].rank_counts == {2}
    assert (
        kept.workloads[0].metrics[0].rank_counts == frozenset()
    )  # resident memory is that of the whole tree
    assert [row.of_sessions for row in changes(kept, None, policy.tolerances)] == [
        "equal in 6; of 2 ranks",
        "equal in 6",
    ]
    with pytest.raises(
        UsageError, match="weights_bytes was read from 1 and from 2 ranks in different sessions"
    ):
        build.baseline(cell(2, 2, 1, 2, 2, 2), policy)
    unread = build.baseline(cell(0, 0, 0, 0, 0, 0), policy)
    assert (
        changes(unread, None, policy.tolerances)[0].of_sessions == "equal in 6; ranks not recorded"
    )


def test_exact_metrics_of_the_start_are_shared_and_those_of_serving_are_not(build: Build) -> None:
    policy = build.policy(
        tolerances={
            "weights_bytes": Tolerance(loss_absolute=0),
            "engine_peak_rss_bytes": Tolerance(loss_ratio=0.1),
        },
        plan=MeasurementPlan(mode="baseline", baseline_sessions=2),
    )

    def cell(workload: str, weights: float):
        sessions = [
            build.session(f"{workload}{n}", weights_bytes=weights, engine_peak_rss_bytes=50.0 + n)
            for n in range(2)
        ]
        return build.cell(sessions, workload=workload)

    from k3perf.baselines.propose import propose

    both = [cell("chat", 10.0), cell("burst", 11.0)]
    baseline = propose(
        both, versions={}, policy=policy, previous=None, acceptance=build.acceptance()
    )
    assert [
        (entry.metric, entry.anchor_value, len(entry.sessions)) for entry in baseline.exact
    ] == [("weights_bytes", 11.0, 4)]
    assert [entry.metric for entry in baseline.workloads[0].metrics] == ["engine_peak_rss_bytes"]
    rows = changes(baseline, baseline, policy.tolerances)
    assert [(row.workload, row.metric) for row in rows] == [
        ("", "weights_bytes"),
        ("burst", "engine_peak_rss_bytes"),
        ("chat", "engine_peak_rss_bytes"),
    ]
    again = propose(
        [cell("chat", 10.0)],
        versions={},
        policy=policy,
        previous=baseline,
        acceptance=build.acceptance(),
    )
    assert [entry.workload for entry in again.workloads] == ["burst", "chat"]
    elsewhere = replace(cell("chat", 10.0), hardware_class="b200")
    moved = propose(
        [elsewhere], versions={}, policy=policy, previous=baseline, acceptance=build.acceptance()
    )
    assert [entry.workload for entry in moved.workloads] == ["chat"]


def noisy(build: Build, factor: float):
    return build.cell(
        [
            build.session(
                f"s{n}", build.rounds(1000.0 * (1 + factor * LEVELS[n])), weights_bytes=1.0
            )
            for n in range(6)
        ],
    )


def test_a_tolerance_that_the_noise_cannot_test_is_refused_with_what_would_do(build: Build) -> None:
    policy = build.policy(
        tolerances={RATE: Tolerance(loss_ratio=0.05), "weights_bytes": Tolerance(loss_absolute=0)}
    )
    assert testable(build.baseline(noisy(build, 1), policy), policy) == ()
    loud = build.baseline(noisy(build, 4.5), policy)
    alone = testable(loud, policy)[0]
    assert alone.tolerance_that_does > 0.05
    assert alone.detectable_ratio > alone.needed_ratio > 0.07
    assert (
        f"which does not test a tolerance of 5.0%, for which {alone.needed_ratio:.1%} must be detectable"
        in alone.text()
    )
    pooled = replace(policy, noise=pool_noise([loud] * 10, policy.tolerances))
    found = testable(loud, pooled)
    assert len(found) == 1
    remedy = found[0]
    assert remedy.sessions_that_do is not None
    plan = MeasurementPlan(mode="baseline", maximum_sessions=remedy.sessions_that_do)
    assert testable(loud, replace(pooled, plan=plan)) == ()
    fewer = MeasurementPlan(mode="baseline", maximum_sessions=remedy.sessions_that_do - 1)
    assert testable(loud, replace(pooled, plan=fewer)) != ()
    wider = Tolerance(loss_ratio=remedy.tolerance_that_does * 1.001)
    assert testable(loud, replace(pooled, tolerances={RATE: wider})) == ()
    assert f"maximum_sessions: {remedy.sessions_that_do}" in remedy.text()


def test_hopeless_noise_says_to_measure_more_quietly(build: Build) -> None:
    hopeless = build.baseline(noisy(build, 150), build.policy())
    found = testable(hopeless, build.policy(gated_metric_count=1000))[0]
    assert (found.sessions_that_do, found.tolerance_that_does) == (None, None)
    assert "quieter" in found.text()
    nothing = replace(
        found, needed_ratio=None
    )  # an amount of a metric whose level is 0 has no ratio
    assert "must be detectable" in found.text()
    assert "must be detectable" not in nothing.text()


def test_absolute_tolerances_and_constant_metrics_are_asked_too(build: Build) -> None:
    policy = build.policy(tolerances={"prefix_hit_ratio": Tolerance(loss_absolute=0.0001)})

    def cell(step: float):
        rounds = [
            [
                build.round(i, {"prefix_hit_ratio": 0.5 + step * (LEVELS[n] + i * 1e-3)})
                for i in range(12)
            ]
            for n in range(6)
        ]
        return build.cell([build.session(f"s{n}", r) for n, r in enumerate(rounds)])

    found = testable(build.baseline(cell(1.0), policy), policy)[0]
    assert found.tolerance_ratio is None
    assert found.tolerance_that_does > 0.0001
    assert "its tolerance" in found.text()
    assert testable(build.baseline(cell(0.0), policy), policy) == ()


def test_two_recorded_sessions_of_one_cell_alone_cannot_say_much(build: Build) -> None:
    policy = build.policy(plan=MeasurementPlan(mode="baseline", baseline_sessions=2))
    baseline = build.baseline(build.cell(build.sessions(1000.0, 2)), policy)
    found = testable(baseline, policy)
    assert found[0].baseline_sessions_that_do is not None


def test_a_policy_names_what_nobody_declared(build: Build) -> None:
    with pytest.raises(UnknownNameError, match="speed"):
        build.policy(tolerances={"speed": Tolerance(loss_ratio=0.1)})
    with pytest.raises(UsageError, match="gated_metric_count"):
        build.policy(gated_metric_count=0)


def test_metrics_that_a_session_lacks_are_left_out(build: Build) -> None:
    policy = build.policy(
        tolerances={"weights_bytes": Tolerance(loss_absolute=0), RATE: Tolerance(loss_ratio=0.1)}
    )
    sessions = [
        replace(s, values={"weights_bytes": MetricValue(None, 0)})
        for s in build.sessions(1000.0, 6)
    ]
    baseline = build.baseline(build.cell(sessions), policy)
    assert baseline.exact == ()
