"""A session whose rounds spread out of line is excluded: what may be, what may not,
and what the verdict says of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3perf.baselines.scaling import USUAL_SPREAD
from k3perf.baselines.target_policy import with_noise_of
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.documents import validated
from k3perf.gate.compare import compare
from k3perf.gate.decision import Cause, Decision, judge
from k3perf.gate.losses import Series
from k3perf.gate.policy import Policy
from k3perf.gate.reference import base_arm_reference
from k3perf.metrics.loss_scale import scale_for
from k3perf.records.measurement import CellMeasurement, SessionMetrics
from k3perf.records.metric_definitions import METRICS
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm
from k3perf.records.verdict import Buy, CellVerdict
from k3perf.stats.bounds import Limits
from k3perf.stats.estimators import Location
from k3perf.stats.noise import MetricNoise
from k3perf.stats.reference import Level, Reference
from k3perf.stats.sequential import schedule
from tests.calibration.lab.replay import Session, quick_runs, suite_run
from tests.calibration.lab.selftest import simulated_setting
from tests.unit.gate.conftest import LEVELS, RATE, SPREAD, Build

LIMITS = Limits(tolerance=1.0, alpha=1e-4, half_alpha=3e-4, beta=0.05, maximum_rounds=6)
STEADY = (0.0, 0.01, -0.01, 0.005, -0.005, 0.0)
WILD = (0.0, 2.4, 0.01, 2.4, -0.01, 2.4)
EARLY = STEADY[:4]


def reference(sessions: int = 6, variance: float = 0.0004) -> Reference:
    level = Level(0.0, variance, 100)
    return Reference(
        sessions,
        lambda _: level,
        Location.MEDIAN,
        4,
        round_count=6,
        round_variance=0.0001,
        spread_over_noise_ratio=USUAL_SPREAD,
    )


def decide(sessions: Sequence[Sequence[float]], most: int, **changes: float) -> Decision:
    return judge(sessions, reference(**changes), LIMITS, schedule(range(1, most + 1), 4, 4, 6, 6))


def lost(loss: float) -> tuple[float, ...]:
    return tuple(value + loss for value in STEADY)


def test_the_sessions_after_one_out_of_line_decide_and_each_is_bought_on_its_own() -> None:
    for measured, needed in (([WILD], 2), ([WILD, EARLY], 3)):
        waiting = decide(measured, 3)
        assert (waiting.outcome, waiting.cause) == (Outcome.INVALID, Cause.SPREAD)
        assert (waiting.need_sessions, waiting.need_rounds) == (needed, 4)
    found = decide([WILD, EARLY, EARLY], 3)
    assert (found.outcome, found.sessions, found.rounds, found.need_sessions) == (
        Outcome.PASS,
        2,
        8,
        None,
    )
    assert [(one.place, one.loss) for one in found.excluded] == [(0, pytest.approx(1.205))]
    assert found.excluded[0].spread > USUAL_SPREAD


def test_a_spread_that_cannot_matter_widens_the_interval_and_excludes_nothing() -> None:
    """Rounds 30 times as far apart as recorded, and still a tenth of the tolerance."""
    shaken = tuple(0.1 * value for value in WILD)
    found, steady = decide([shaken], 3), decide([STEADY], 3)
    assert (found.outcome, list(found.excluded)) == (Outcome.PASS, [])
    assert found.upper is not None
    assert found.estimate is not None
    assert steady.upper is not None
    wider = found.upper - found.estimate
    assert wider > 2 * (steady.upper - (steady.estimate or 0.0))
    assert found.lower is not None
    assert steady.lower is not None
    assert found.estimate - found.lower > 2 * ((steady.estimate or 0.0) - steady.lower)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12))
def test_what_a_spread_adds_is_never_negative_and_falls_with_the_rounds(
    rounds: list[float],
) -> None:
    known = reference()
    once, twice = (known.extra_variance(sorted(rounds * count)) for count in (1, 2))
    assert 0 <= twice <= once
    if not known.out_of_line(sorted(rounds)):
        assert once == 0


def test_a_session_out_of_line_gets_its_rounds_before_it_is_excluded() -> None:
    early = decide([WILD[:4]], 3)
    assert (early.outcome, list(early.excluded), early.need_sessions, early.need_rounds) == (
        Outcome.SUSPECT,
        [],
        1,
        6,
    )
    second = decide([WILD, WILD[:4]], 5)
    assert (second.outcome, len(second.excluded), second.need_rounds) == (Outcome.INVALID, 1, 6)


@pytest.mark.parametrize(
    ("measured", "most"),
    [
        ([WILD], 1),
        ([WILD], 2),
        ([WILD, WILD], 3),
        ([WILD, EARLY, WILD], 3),
        ([WILD, WILD, EARLY], 4),
        ([WILD, WILD, EARLY, EARLY, WILD], 5),
        ([WILD] * 5, 5),
    ],
)
def test_half_of_the_sessions_out_of_line_is_invalid_and_buys_nothing_more(
    measured: list[Sequence[float]], most: int
) -> None:
    found = decide(measured, most)
    assert (found.outcome, found.cause, found.need_sessions) == (
        Outcome.INVALID,
        Cause.SPREAD,
        None,
    )
    # what lies beyond the plan never counts
    beyond = decide([*measured, *[EARLY] * 9], most)
    assert (beyond.outcome, beyond.excluded) == (found.outcome, found.excluded)


def test_a_session_that_was_followed_by_another_gets_no_more_rounds_and_is_judged_by_those_it_has() -> (
    None
):
    wild = (0.0, 1.6, 0.01, 1.6, 0.8)  # of six at most
    assert decide([wild], 3).need_rounds == 6
    found = decide([wild, EARLY], 3)
    assert (found.outcome, len(found.excluded), found.need_sessions) == (Outcome.INVALID, 1, 3)
    assert decide([wild, EARLY, EARLY], 3).outcome is Outcome.PASS
    standing_out = decide([(1.5, 1.5, 1.5, 9.0, 1.5), lost(1.5)], 3)
    assert (standing_out.cause, standing_out.rounds, standing_out.outcome) == (
        Cause.DECIDED,
        9,
        Outcome.REGRESSED,
    )


def test_a_session_of_too_few_rounds_takes_its_place_in_the_plan() -> None:
    short = STEADY[:2]
    assert decide([short], 3).need_sessions == 1
    assert decide([short, WILD], 4).need_sessions == 3
    assert decide([short, WILD], 3).need_sessions == 3
    assert decide([short, WILD, EARLY], 4).need_sessions == 4
    full = decide([short, WILD, EARLY], 3)
    assert (full.outcome, full.need_sessions, full.need_rounds) == (Outcome.INVALID, None, None)


def test_two_of_five_may_be_excluded() -> None:
    assert decide([WILD, WILD], 5).need_sessions == 3
    assert decide([WILD, WILD, EARLY, EARLY], 5).need_sessions == 5
    found = decide([WILD, WILD, EARLY, EARLY, EARLY], 5)
    assert (found.outcome, len(found.excluded), found.sessions) == (Outcome.PASS, 2, 3)


def test_a_loss_is_found_among_the_sessions_that_are_left() -> None:
    assert decide([WILD, lost(2.0), lost(2.0)], 3).outcome is Outcome.REGRESSED
    assert decide([lost(2.0), WILD, lost(2.0)], 3).outcome is Outcome.REGRESSED
    assert decide([WILD, lost(2.0)], 3).outcome is Outcome.INVALID


def test_without_room_for_another_session_the_last_look_decides_or_nothing_does() -> None:
    """Three sessions at most: with one excluded, the analysis at two is the last."""
    undecided = decide([lost(0.9), WILD, lost(0.9)], 3, variance=0.04)
    assert (undecided.outcome, undecided.need_sessions, undecided.sessions) == (
        Outcome.INVALID,
        None,
        2,
    )
    assert undecided.estimate == pytest.approx(0.9, abs=0.01)
    longer = decide([lost(0.9), WILD, lost(0.9)], 4, variance=0.04)
    assert (longer.outcome, longer.need_sessions) == (Outcome.INVALID, 4)


sessions_of_either_kind = st.lists(
    st.sampled_from([STEADY, WILD, lost(0.9), lost(2.0)]), min_size=5, max_size=5
)


@given(sessions_of_either_kind, st.integers(1, 5), st.booleans())
def test_fewer_than_half_are_ever_excluded_and_the_plan_is_never_exceeded(
    sessions: list[Sequence[float]], most: int, at_once: bool
) -> None:
    bought = len(sessions) if at_once else 1
    while True:
        found = decide(sessions[:bought], most, variance=0.04)
        if at_once or found.need_sessions is None:
            break
        assert bought < found.need_sessions <= most
        bought = found.need_sessions
    if found.outcome not in (Outcome.INVALID, Outcome.INCONCLUSIVE):
        assert len(found.excluded) < found.sessions
        assert len(found.excluded) + found.sessions <= most
        assert all(sessions[one.place] is WILD for one in found.excluded)


def wild(build: Build, name: str, level: float = 1000.0, swing: float = 0.2) -> SessionMetrics:
    return build.session(
        name,
        [
            build.round(index, {RATE: level * (1 - swing * (index % 2)) + index / 10})
            for index in range(12)
        ],
    )


def measured(build: Build, mode: str, level: float, swing: float) -> CellMeasurement:
    """One session out of line, then four in line; with a steady reference session
    beside each where the mode has one.
    """
    candidates = [wild(build, "bad", level, swing), *build.sessions(level, 4)]
    if mode == "baseline":
        return build.cell(candidates)
    pairs = []
    for place, session in enumerate(candidates):
        own = tuple(
            replace(measured, pair_index=number) for number, measured in enumerate(session.rounds)
        )
        beside = tuple(build.round(number, {RATE: 1000.0}, pair=number) for number in range(12))
        pairs.append(replace(session, rounds=own, pair_id=f"p{place}"))
        pairs.append(
            replace(build.session(f"r{place}", beside), arm=Arm.REFERENCE, pair_id=f"p{place}")
        )
    return build.cell(pairs, mode)


def judged(
    build: Build,
    mode: str,
    level: float = 1000.0,
    swing: float = 0.2,
    *,
    count: int = 5,
    other: CellMeasurement | None = None,
) -> CellVerdict:
    """``other``: a recorded cell beside the one that is judged, to pool noise with; a
    like one if not given.
    """
    plan = MeasurementPlan(
        mode="baseline" if mode == "baseline" else "reference", maximum_sessions=5
    )
    policy = build.policy(plan=plan, tolerances={RATE: Tolerance(loss_ratio=0.08)})
    pairs = build.cell(build.pairs(1000.0, 1000.0, 6), "reference")
    recorded = build.cell(build.sessions(1000.0, 6)) if mode == "baseline" else pairs
    beside = replace(recorded if other is None else other, config="beside")
    baselines = [build.baseline(item, policy) for item in (recorded, beside)]
    cell = measured(build, mode, level, swing)
    given = tuple(cell.sessions[: count * (1 if mode == "baseline" else 2)])
    return compare(
        None if mode == "ab" else baselines[0],
        replace(cell, sessions=given),
        with_noise_of(policy, baselines),
    )


@pytest.mark.parametrize("mode", ["baseline", "reference", "ab"])
def test_every_mode_buys_in_place_of_it_and_names_it(build: Build, mode: str) -> None:
    first = judged(build, mode, count=1)
    assert (first.outcome, first.buy, first.buy_until_sessions) == (
        Outcome.INVALID,
        Buy.SESSIONS,
        2,
    )
    verdict = judged(build, mode)
    assert (verdict.outcome, verdict.buy) == (Outcome.PASS, Buy.NOTHING)
    (metric,) = verdict.metrics
    assert metric.session_count < 5
    for text in (metric.reason, *[note for note in verdict.notes if "was excluded" in note]):
        assert "session bad was excluded: its rounds spread" in text
        assert "times as much as recorded, at most 3 (spread_over_noise_ratio)" in text
    assert any(note.startswith(f"{RATE}: session bad was excluded") for note in verdict.notes)


@pytest.mark.parametrize("mode", ["baseline", "reference", "ab"])
def test_every_mode_still_finds_a_loss(build: Build, mode: str) -> None:
    verdict = judged(build, mode, 800.0)
    assert verdict.outcome is Outcome.REGRESSED
    assert "session bad was excluded" in verdict.metrics[0].reason


def test_a_pass_that_the_session_would_have_contradicted_says_so(build: Build) -> None:
    """Half of the rounds at half the rate: its value lies far beyond the tolerance, and
    a reader must see it beside the word PASS.
    """
    verdict = judged(build, "baseline", swing=0.5)
    assert verdict.outcome is Outcome.PASS
    assert "worse, beyond the tolerance" in verdict.metrics[0].reason
    assert any("worse, beyond the tolerance" in note for note in verdict.notes)
    assert "beyond the tolerance" not in judged(build, "baseline", swing=0.12).metrics[0].reason


def test_an_invalid_metric_says_whether_another_session_would_help(build: Build) -> None:
    baseline, policy = build.baseline(), build.policy()
    waiting = compare(baseline, build.cell([wild(build, "bad")]), policy).metrics[0].reason
    assert waiting.endswith("; needs 2 sessions of 4 rounds")
    short: Policy = replace(policy, plan=MeasurementPlan(mode="baseline", maximum_sessions=2))
    spent = compare(baseline, build.cell([wild(build, "bad")]), short)
    assert (spent.outcome, spent.buy) == (Outcome.INVALID, Buy.NOTHING)
    assert spent.metrics[0].reason.endswith("; the plan has too few sessions to do without")


def test_a_merged_verdict_still_names_it(build: Build) -> None:
    """Shards' verdicts are read from their files; one that waits for another session is
    INVALID there, so that it is measured again.
    """
    for count, outcome in ((1, Outcome.INVALID), (5, Outcome.PASS)):
        verdict = judged(build, "baseline", count=count)
        read = validated(CellVerdict, json.loads(json.dumps(asdict(verdict))))
        assert read.outcome is outcome
        assert "session bad was excluded" in read.metrics[0].reason
        assert any("session bad was excluded" in note for note in read.notes)


def test_in_ab_a_pair_out_of_line_has_no_part_in_the_noise(build: Build) -> None:
    """Two recorded cells whose noise differs are not pooled, so the candidate's own
    pairs count; this swing would drown theirs.
    """
    loud = [
        replace(session, session_id=f"{session.session_id}-{n}", pair_id=f"p{n}")
        for n in range(6)
        for session in build.pairs(1000.0 * (1 + 9 * LEVELS[n]), 1000.0, 1)
    ]
    verdict = judged(build, "ab", swing=0.5, other=build.cell(loud, "reference"))
    assert verdict.outcome is Outcome.PASS


def test_in_ab_a_pair_that_more_rounds_bring_back_in_line_has_its_part_in_the_noise() -> None:
    """Its first four rounds spread, all twelve do not: it is judged, so how it differs
    from the others counts.
    """
    metric, tolerance = METRICS[RATE], Tolerance(loss_ratio=0.08)
    recorded = tuple(
        tuple(0.01 * swing * (level + value) for value in SPREAD)
        for swing, level in ((1, 0.0), (1, 1.0), (9, 0.0), (9, 9.0))
    )
    noise = MetricNoise((recorded[:2], recorded[2:]), 12)
    plan = MeasurementPlan(mode="reference")
    policy = Policy(
        tolerances={RATE: tolerance},
        plan=plan,
        gated_metric_count=1,
        noise={(RATE, "ratio"): noise},
    )
    scale = scale_for(metric, tolerance, "reference")
    sigma = noise.round_variance**0.5

    def variance(*sessions: Sequence[float]) -> float:
        series = Series(tuple(map(tuple, sessions)), ((),) * len(sessions), ("s",) * len(sessions))
        return base_arm_reference(scale, series, policy).at(4).variance

    in_line = [0.0] * 12
    settled = [0.0, 400 * sigma, 0.0, 400 * sigma, *[200 * sigma] * 8]
    wild = [0.0, 400 * sigma] * 6
    assert variance(in_line, in_line, wild) == variance(in_line, in_line)
    assert variance(in_line, in_line, settled) > variance(in_line, in_line)
    later = [0.0] * 4 + wild[:8]  # judged by its first four
    assert variance(in_line, in_line, later) == variance(in_line, in_line, in_line)


@pytest.mark.parametrize("mode", ["baseline", "reference"])
def test_the_quick_replay_buys_in_place_of_a_session_as_the_real_path_does(mode: str) -> None:
    plan = MeasurementPlan.model_validate(
        {"mode": mode, "maximum_sessions": 5, "maximum_rounds": 6}
    )
    whole = simulated_setting("normal", plan=plan)

    def stalling(rng: np.random.Generator, count: int) -> list[Session]:
        made = []
        for place, (own, beside) in enumerate(whole.sources[0](rng, count)):
            swing = 0.7 if place >= plan.baseline_sessions and rng.random() < 0.4 else 0.0
            made.append(
                (
                    {
                        metric: tuple(v + swing * (i % 2) for i, v in enumerate(rounds))
                        for metric, rounds in own.items()
                    },
                    beside,
                )
            )
        return made

    setting = replace(whole, sources=(stalling,) * 5)
    (quick,) = quick_runs(setting, (0.0,), np.random.default_rng(4))
    real = suite_run(setting, 0.0, np.random.default_rng(4))
    assert [(cell.outcomes, cell.round_count, cell.session_count) for cell in quick] == [
        (cell.outcomes, cell.round_count, cell.session_count) for cell in real
    ]
    assert max(cell.session_count for cell in quick) > 2
    assert any(Outcome.PASS in cell.outcomes and cell.session_count > 2 for cell in quick)
