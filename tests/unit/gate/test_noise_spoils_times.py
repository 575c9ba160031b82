"""Rounds that noise spoiled: times are INVALID; memory, capacity and configuration are
judged by what the engine held all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.compare import compare
from k3perf.gate.policy import Policy
from k3perf.metrics.validity import (
    ENGINE_RULES,
    ROUND_RULES,
    TIMES_RULES,
    VALID_ROUNDS_LIMIT,
    Spoils,
    spoiled_by,
)
from k3perf.records.measurement import SessionMetrics
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm, InvalidReason
from k3perf.records.verdict import CellVerdict
from tests.unit.gate.conftest import RATE, Build

TOLERANCES = {
    RATE: Tolerance(loss_ratio=0.05),
    "weights_bytes": Tolerance(loss_absolute=0),
    "kv_capacity_tokens": Tolerance(loss_absolute=0),
    "engine_peak_rss_bytes": Tolerance(loss_absolute=10),
}
HELD = {"weights_bytes": 100.0, "kv_capacity_tokens": 4096.0, "engine_peak_rss_bytes": 500.0}
AT_START = {"weights_bytes", "kv_capacity_tokens"}


@pytest.fixture
def policy(build: Build) -> Policy:
    return build.policy(tolerances=TOLERANCES)


def with_held(session: SessionMetrics, build: Build, **changes: float) -> SessionMetrics:
    return replace(session, values=build.session("", **{**HELD, **changes}).values)


def spoiled(
    build: Build, rules: Iterable[str], name: str = "now", **changes: float
) -> SessionMetrics:
    """A session of which no round is valid: each broke all of ``rules``."""
    reasons = tuple(InvalidReason(rule, f"{rule} was broken") for rule in rules)
    rounds = tuple(replace(measured, invalid_reasons=reasons) for measured in build.rounds(1000.0))
    few = InvalidReason(VALID_ROUNDS_LIMIT, "too few valid rounds: 0 of 12 measured")
    return replace(with_held(build.session(name, rounds), build, **changes), invalid_reasons=(few,))


def judged(build: Build, policy: Policy, *sessions: SessionMetrics) -> CellVerdict:
    recorded = [with_held(session, build) for session in build.sessions(1000.0, 6)]
    return compare(build.baseline(build.cell(recorded), policy), build.cell(sessions), policy)


def outcomes(verdict: CellVerdict) -> dict[str, Outcome]:
    return {metric.metric: metric.outcome for metric in verdict.metrics}


@pytest.mark.parametrize("rule", sorted(TIMES_RULES))
def test_noise_leaves_memory_and_capacity_judged(build: Build, policy: Policy, rule: str) -> None:
    verdict = judged(build, policy, spoiled(build, [rule]))
    assert outcomes(verdict) == {RATE: Outcome.INVALID, **dict.fromkeys(HELD, Outcome.PASS)}
    assert verdict.times_only
    assert verdict.outcome is Outcome.INVALID
    (reason,) = verdict.invalid_reasons
    assert reason.rule == VALID_ROUNDS_LIMIT
    assert verdict.buy_until_sessions == 0


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"weights_bytes": 101.0}, "weights_bytes"),
        ({"kv_capacity_tokens": 4095.0}, "kv_capacity_tokens"),
    ],
)
def test_a_loss_of_memory_is_proven_on_a_busy_machine(
    build: Build, policy: Policy, changes: dict[str, float], lost: str
) -> None:
    verdict = judged(build, policy, spoiled(build, ["foreign_cpu_ratio"], **changes))
    assert outcomes(verdict)[lost] is Outcome.REGRESSED
    assert verdict.outcome is Outcome.REGRESSED


def test_a_changed_configuration_is_seen_on_a_busy_machine(build: Build, policy: Policy) -> None:
    changed = replace(
        spoiled(build, ["foreign_cpu_ratio"]),
        resolved_config={"block_size": 32, "cache": {"dtype": "auto"}},
    )
    verdict = judged(build, policy, changed)
    assert [difference.key for difference in verdict.differences] == ["block_size"]
    assert verdict.outcome is Outcome.CONFIG_DRIFT


@pytest.mark.parametrize(
    "rule",
    [
        "failed_requests",
        "preemptions",
        "swap_used_bytes",
        "psi_memory_some_ratio",
        "token_disagreement_ratio",
    ],
)
def test_other_work_than_planned_leaves_what_was_settled_at_the_start(
    build: Build, policy: Policy, rule: str
) -> None:
    verdict = judged(build, policy, spoiled(build, ["foreign_cpu_ratio", rule]))
    found = outcomes(verdict)
    assert {name for name, outcome in found.items() if outcome is Outcome.PASS} == AT_START
    assert found["engine_peak_rss_bytes"] is Outcome.INVALID


@pytest.mark.parametrize("rule", [*sorted(ENGINE_RULES), "a_rule_of_another_release"])
def test_an_engine_in_doubt_leaves_nothing(build: Build, policy: Policy, rule: str) -> None:
    verdict = judged(build, policy, spoiled(build, [rule]))
    assert verdict.metrics == ()
    assert not verdict.times_only
    assert verdict.outcome is Outcome.INVALID


def test_memory_that_could_not_be_read_is_invalid_by_itself(build: Build, policy: Policy) -> None:
    verdict = judged(
        build,
        policy,
        replace(
            spoiled(build, ["foreign_cpu_ratio"]),
            values=build.session("", kv_capacity_tokens=4096.0).values,
        ),
    )
    found = outcomes(verdict)
    assert found["kv_capacity_tokens"] is Outcome.PASS
    assert found["weights_bytes"] is Outcome.INVALID


def test_a_machine_that_failed_leaves_nothing(build: Build, policy: Policy) -> None:
    died = build.cell(
        [spoiled(build, ["foreign_cpu_ratio"])],
        invalid_reasons=(InvalidReason("engine_died", "it died"),),
    )
    recorded = [with_held(session, build) for session in build.sessions(1000.0, 6)]
    assert compare(build.baseline(build.cell(recorded), policy), died, policy).metrics == ()


def test_a_spoiled_session_among_valid_ones_counts_for_memory(build: Build, policy: Policy) -> None:
    valid = [with_held(session, build) for session in build.sessions(1000.0, 2)]
    verdict = judged(
        build, policy, *valid, spoiled(build, ["foreign_cpu_ratio"], weights_bytes=101.0)
    )
    found = outcomes(verdict)
    assert (found[RATE], found["weights_bytes"]) == (Outcome.PASS, Outcome.REGRESSED)
    assert verdict.invalid_reasons == ()
    assert not verdict.times_only


@pytest.mark.parametrize(
    ("weights", "outcome"), [(100.0, Outcome.PASS), (101.0, Outcome.REGRESSED)]
)
def test_both_arms_of_ab_are_judged(
    build: Build, policy: Policy, weights: float, outcome: Outcome
) -> None:
    base = replace(spoiled(build, ["steal_ratio"], "base"), arm=Arm.REFERENCE, pair_id="p")
    now = replace(spoiled(build, ["steal_ratio"], weights_bytes=weights), pair_id="p")
    verdict = compare(None, build.cell([base, now], "ab"), policy)
    assert outcomes(verdict)["weights_bytes"] is outcome
    assert outcomes(verdict)[RATE] is Outcome.INVALID
    alone = compare(None, build.cell([now], "ab"), policy)
    assert (alone.outcome, alone.metrics) == (Outcome.INVALID, ())


def test_a_reference_without_a_valid_round_spoils_times_alone(build: Build) -> None:
    policy = build.policy(tolerances=TOLERANCES, plan=MeasurementPlan(mode="reference"))
    recorded = [with_held(session, build) for session in build.pairs(1000.0, 1000.0, 6)]
    baseline = build.baseline(build.cell(recorded, "reference"), policy)
    candidate = replace(with_held(build.session("c", build.rounds(1000.0)), build), pair_id="p")
    reference = replace(spoiled(build, ["foreign_cpu_ratio"], "r"), arm=Arm.REFERENCE, pair_id="p")
    found = outcomes(compare(baseline, build.cell([candidate, reference], "reference"), policy))
    assert found == {RATE: Outcome.INVALID, **dict.fromkeys(HELD, Outcome.PASS)}


def test_a_metric_that_the_cell_never_had_is_no_reason(build: Build) -> None:
    policy = build.policy(
        tolerances={**TOLERANCES, "energy_per_output_token_j": Tolerance(loss_ratio=0.1)}
    )
    verdict = judged(build, policy, spoiled(build, ["foreign_cpu_ratio"]))
    assert "energy_per_output_token_j" not in outcomes(verdict)
    assert any(note.startswith("energy_per_output_token_j: not judged") for note in verdict.notes)


def test_the_page_lists_the_rules_as_they_are() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "validity.md").read_text()
    rows = dict(
        line.strip("| ").split(" | ")
        for line in page.splitlines()
        if line.endswith((" times |", " everything |"))
    )
    assert {what: set(names.split(", ")) for names, what in rows.items()} == {
        "times": TIMES_RULES,
        "everything": ENGINE_RULES,
    }


def test_every_rule_says_what_it_spoils() -> None:
    names = {rule.name for rule in ROUND_RULES}
    assert names >= TIMES_RULES | ENGINE_RULES
    assert not TIMES_RULES & ENGINE_RULES
    spoils: Any = {name: spoiled_by(InvalidReason(name, "")) for name in names}
    assert {
        name for name, what in spoils.items() if what is Spoils.SERVING
    } == names - TIMES_RULES - ENGINE_RULES
