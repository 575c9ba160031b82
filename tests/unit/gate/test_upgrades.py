"""Two engines compared (``ab``), and an upgrade against a baseline: what differs is
reported and hides no loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from k3perf.baselines.target_policy import pool_noise
from k3perf.config.models import MeasurementPlan
from k3perf.gate.compare import compare
from k3perf.gate.policy import Policy
from k3perf.records.baseline import Baseline
from k3perf.records.measurement import SessionMetrics
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm
from k3perf.records.verdict import Buy, CellVerdict, SuiteVerdict
from tests.unit.gate.conftest import Build

SETTINGS: Mapping[str, object] = {"version.vllm": "0.31.0", "block_size": 16}
RELEASE: Mapping[str, object] = {"version.vllm": "0.32.0", "block_size": 16, "new_key": 1}


def resolved(
    sessions: Sequence[SessionMetrics],
    candidate: Mapping[str, object],
    reference: Mapping[str, object] = SETTINGS,
) -> list[SessionMetrics]:
    of = {Arm.CANDIDATE: candidate, Arm.REFERENCE: reference}
    return [replace(one, resolved_config=dict(of[one.arm])) for one in sessions]


def with_noise(policy: Policy, *baselines: Baseline) -> Policy:
    return replace(policy, noise=pool_noise(baselines, policy.tolerances))


def ab(build: Build, candidate: Mapping[str, object], level: float, count: int = 2) -> CellVerdict:
    policy = with_noise(build.policy(), build.baseline(), build.baseline())
    pairs = resolved(build.pairs(level, 1000.0, count), candidate)
    return compare(None, build.cell(pairs, "ab"), policy)


@pytest.mark.parametrize("changed", [{"block_size": 32}, RELEASE, {"block_size": 16}])
def test_ab_reports_differences_and_is_judged_all_the_same(
    build: Build, changed: Mapping[str, object]
) -> None:
    same = ab(build, changed, 1000.0)
    assert same.outcome is Outcome.PASS
    assert {one.key for one in same.differences} == {
        key for key in {**SETTINGS, **changed} if SETTINGS.get(key, "-") != changed.get(key, "-")
    }
    assert ab(build, changed, 700.0).outcome is Outcome.REGRESSED


@pytest.mark.parametrize("changed", [{**SETTINGS, "block_size": 32}, RELEASE])
def test_ab_goes_on_buying_between_two_settings_or_releases(
    build: Build, changed: Mapping[str, object]
) -> None:
    pairs = resolved(build.pairs(950.0, 1000.0, 1), changed)
    verdict = compare(None, build.cell(pairs, "ab"), build.policy())
    assert verdict.differences
    assert (verdict.outcome, verdict.buy) == (Outcome.INCONCLUSIVE, Buy.SESSIONS)


@pytest.mark.parametrize("basis", ["absolute", "ratio"])
def test_ab_knows_the_noise_of_the_only_baselined_cell(build: Build, basis: str) -> None:
    policy, recorded = build.policy(), build.cell(build.sessions(1000.0, 6))
    if basis == "ratio":
        policy = build.policy(plan=MeasurementPlan(mode="reference"))
        recorded = build.cell(build.pairs(1200.0, 1000.0, 6), "reference")
    policy = with_noise(policy, build.baseline(recorded, policy))
    verdict = compare(None, build.cell(build.pairs(1000.0, 1000.0, 1), "ab"), policy)
    (metric,) = verdict.metrics
    assert "no noise" not in metric.reason
    assert metric.outcome is Outcome.PASS


def upgraded(build: Build, mode: str, level: float, settings: Mapping[str, object]) -> CellVerdict:
    """A cell of two sessions, against a baseline of the older release."""
    policy = build.policy(plan=MeasurementPlan(mode="reference" if mode != "baseline" else mode))
    made = {
        "baseline": build.sessions,
        "reference": lambda rate, count: build.pairs(rate, 1000.0, count),
    }[mode]
    recorded = build.cell(resolved(made(1000.0, 6), SETTINGS), mode)
    baseline = build.baseline(recorded, policy)
    cell = build.cell(resolved(made(level, 2), settings, settings), mode)
    return compare(baseline, cell, with_noise(policy, baseline))


@pytest.mark.parametrize("mode", ["baseline", "reference"])
def test_a_slower_release_is_regressed_and_drifted(build: Build, mode: str) -> None:
    verdict = upgraded(build, mode, 500.0, RELEASE)
    assert verdict.outcome is Outcome.REGRESSED
    assert verdict.drifted
    assert verdict.outcome_text == "REGRESSED and CONFIG_DRIFT"
    suite = SuiteVerdict((verdict, replace(verdict, metrics=())), 0.01, 1)
    assert suite.outcome_text == "REGRESSED and CONFIG_DRIFT"


@pytest.mark.parametrize("mode", ["baseline", "reference"])
@pytest.mark.parametrize(
    ("settings", "bought"),
    [
        ({**SETTINGS, "version.vllm": "0.32.0"}, True),
        (RELEASE, True),
        ({**SETTINGS, "block_size": 32}, False),
    ],
)
def test_a_difference_of_versions_never_stops_the_buying(
    build: Build, mode: str, settings: Mapping[str, object], *, bought: bool
) -> None:
    verdict = upgraded(build, mode, 950.0, settings)
    assert verdict.outcome is Outcome.CONFIG_DRIFT
    (metric,) = verdict.metrics
    assert metric.outcome is Outcome.INCONCLUSIVE
    assert (verdict.buy is not Buy.NOTHING) is bought


def test_a_drifted_cell_offers_no_gain(build: Build) -> None:
    assert upgraded(build, "baseline", 1300.0, SETTINGS).metrics[0].outcome is Outcome.IMPROVED
    for settings in (RELEASE, {**SETTINGS, "block_size": 32}):
        verdict = upgraded(build, "baseline", 1300.0, settings)
        assert verdict.outcome is Outcome.CONFIG_DRIFT
        (metric,) = verdict.metrics
        assert metric.outcome is Outcome.PASS
        assert "propose" not in metric.reason
