"""The comment of a pull request on verdicts that the gate itself gave: absolute values of
both arms, the baseline behind them, sessions and rounds, command and next step.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from k3perf.baselines.arm_values import with_arm_values
from k3perf.baselines.reference_arm import with_reference_arm
from k3perf.ci.markdown import MAXIMUM_COMMENT_CHARACTERS, comment
from k3perf.config.models import MeasurementPlan
from k3perf.documents import validated
from k3perf.gate.compare import compare
from k3perf.records.baseline import Baseline
from k3perf.records.measurement import CellMeasurement
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import ArmValues, BaselineSource, CellVerdict, VerdictDocument
from tests.unit.gate.conftest import Build

from .verdicts import cell, regressed, verdict


@pytest.fixture(scope="module")
def build() -> Build:
    return Build()


def judged(
    build: Build, mode: str, candidate: float, reference: float = 1000.0, days: int = 1
) -> CellVerdict:
    """A cell recorded at 1200 tokens/s (reference arm 1000), and measured."""
    policy = build.policy(
        plan=MeasurementPlan(mode="baseline" if mode == "baseline" else "reference")
    )
    baseline: Baseline | None = None
    if mode != "ab":
        known = build.sessions(1200.0, 6) if mode == "baseline" else build.pairs(1200.0, 1000.0, 6)
        dated = [
            replace(
                one,
                host="box",
                started_at_utc=f"2026-03-0{1 + index // 2 % days}T10:00:00Z",
            )
            for index, one in enumerate(known)
        ]
        baseline = build.baseline(build.cell(dated, mode), policy)
    sessions = (
        build.sessions(candidate, 3) if mode == "baseline" else build.pairs(candidate, reference, 3)
    )
    measured: CellMeasurement = build.cell(sessions, mode)
    found = with_reference_arm(compare(baseline, measured, policy), baseline, measured, policy)
    return with_arm_values(found, baseline, measured, policy)


def posted(*cells: CellVerdict) -> str:
    """The comment, through the file that the report job reads."""
    document = replace(verdict(), cells=cells, gated_metric_count=len(cells))
    return comment(validated(VerdictDocument, json.loads(document.to_json())))


def values_row(text: str) -> list[str]:
    table = text.partition("### Absolute values of both arms")[2].splitlines()
    row = next(line for line in table if line.startswith("| `gpu`"))
    return [field.strip() for field in row.strip("|").split("|")]


def shown_number(field: str) -> float:
    number, unit = field.split(" ")
    assert unit == "tokens/s"
    return float(number.replace(",", ""))


def test_reference_mode_shows_both_arms_now_and_as_recorded(build: Build) -> None:
    text = posted(judged(build, "reference", 900.0))
    assert "## k3perf: REGRESSED" in text
    _, metric, was, now, reference_was, reference_now = values_row(text)
    assert metric == "`output_tokens_per_s`"
    # the builder's machine slows with each session: six were recorded, three are measured
    assert shown_number(was) == pytest.approx(1200 * 0.898, rel=0.01)
    assert shown_number(now) == pytest.approx(900 * 0.96, rel=0.01)
    assert shown_number(reference_was) == pytest.approx(1000 * 0.898, rel=0.01)
    assert shown_number(reference_now) == pytest.approx(1000 * 0.96, rel=0.01)


def test_ab_shows_base_and_candidate_and_names_the_base_in_the_command(build: Build) -> None:
    text = posted(judged(build, "ab", 700.0))
    _, _, was, now, base_was, base_now = values_row(text)
    assert (was, base_was) == ("-", "-"), "ab compares with no recording"
    assert shown_number(now) == pytest.approx(700 * 0.96, rel=0.01)
    assert shown_number(base_now) == pytest.approx(1000 * 0.96, rel=0.01)
    assert "-k 'default and chat' --k3-ab-base BASE" in text
    assert "Baseline:" not in text


def test_baseline_mode_has_its_values_in_the_table_of_losses(build: Build) -> None:
    text = posted(judged(build, "baseline", 900.0))
    assert "Absolute values of both arms" not in text
    row = next(line for line in text.splitlines() if line.startswith("| `gpu`"))
    assert row.count("tokens/s") == 2


@pytest.mark.parametrize("mode", ["baseline", "reference"])
def test_a_loss_names_baseline_evidence_command_and_next_step(build: Build, mode: str) -> None:
    found = judged(build, mode, 900.0)
    assert found.outcome is Outcome.REGRESSED
    advice = posted(found).partition("### What to do")[2]
    assert "recorded `2026-03-01` with vLLM `0.32.0`, 6 sessions" in advice
    judge = found.metrics[0]
    assert judge.session_count > 1
    assert f"from {judge.session_count} sessions and {judge.round_count} rounds" in advice
    assert "scripts/perf --k3-target gpu -k 'default and chat'" in advice
    assert "find the cause, or accept the loss" in advice


@pytest.mark.parametrize("mode", ["baseline", "reference", "ab"])
def test_a_pass_states_its_evidence_and_shows_no_loss(build: Build, mode: str) -> None:
    found = judged(build, mode, {"baseline": 1200.0, "reference": 1200.0, "ab": 1000.0}[mode])
    assert found.outcome is Outcome.PASS, found.metrics
    text = posted(found)
    assert "Absolute values" not in text
    assert "What to do" not in text
    assert f"and {found.metrics[0].round_count} rounds behind it" in text
    assert ("with vLLM `0.32.0`, 6 sessions" in text) is (mode != "ab")


def test_an_unproven_loss_names_both_days_and_asks_for_sessions(build: Build) -> None:
    found = judged(build, "reference", 900.0, days=2)
    assert found.outcome is Outcome.SUSPECT
    advice = posted(found).partition("### What to do")[2]
    assert "recorded <code>2026-03-01 to 2026-03-02</code> with vLLM `0.32.0`, 6 sessions" in advice
    assert "measure again with more sessions" in advice
    assert "confidence" not in advice, "a bound below zero proves nothing"


def test_a_suspected_loss_of_both_arms_shows_them(build: Build) -> None:
    found = judged(build, "reference", 600.0, 500.0)
    assert found.outcome is Outcome.SUSPECT
    text = posted(found)
    assert shown_number(values_row(text)[5]) == pytest.approx(500 * 0.96, rel=0.01)
    assert "likely cause: machine or engine" in text


def test_an_invalid_cell_shows_no_value_and_says_what_to_do(build: Build) -> None:
    policy = build.policy()
    spoiled = build.cell(build.sessions(900.0, 3), invalid_reasons=(build.reason,))
    baseline = build.baseline(build.cell(build.sessions(1200.0, 6)))
    found = with_arm_values(compare(baseline, spoiled, policy), baseline, spoiled, policy)
    text = posted(found)
    assert "## k3perf: INVALID" in text
    assert "the clock fell" in text
    assert "re-run the failed jobs" in text
    assert "Absolute values" not in text
    assert "rounds behind it" not in text


def test_a_ratio_baseline_without_the_arms_own_values_shows_a_dash(build: Build) -> None:
    policy = build.policy(plan=MeasurementPlan(mode="reference"))
    recorded = build.baseline(build.cell(build.pairs(1200.0, 1000.0, 6), "reference"), policy)
    data = json.loads(recorded.model_dump_json())
    for entry in data["workloads"][0]["metrics"]:
        for one in entry["sessions"]:
            del one["reference_value"]
    older = Baseline.model_validate(data)
    measured = build.cell(build.pairs(900.0, 1000.0, 3), "reference")
    found = with_arm_values(compare(older, measured, policy), older, measured, policy)
    row = values_row(posted(found))
    assert (row[2], row[4]) == ("-", "-")
    assert row[3].endswith("tokens/s")


def test_the_largest_comment_keeps_cause_advice_and_link() -> None:
    url = "https://github.com/team/suite/actions/runs/1"
    source = asdict(BaselineSource("2026-03-01", "2026-03-02", "", "0.33.0", 6))
    found = []
    for index in range(400):
        names = [f"metric_{number}" for number in range(20)]
        values = [asdict(ArmValues(name, "ms", 1.0, 2.0, 3.0, 4.0)) for name in names]
        metrics = [regressed(metric=name) for name in names]
        entry = cell("|" * 190 + str(index), *metrics, target="@" * 190, workload="<" * 190)
        found.append(entry | {"arm_values": values, "judged_by": source})
    text = comment(verdict(*found), run_url=url)
    assert len(text) <= MAXIMUM_COMMENT_CHARACTERS
    for part in ("### Regressed", "### Absolute values", "### What to do", "reproduce it", url):
        assert part in text, part
    assert "The full report has the rest." in text


def test_a_verdict_of_an_older_release_still_loads() -> None:
    data = verdict(cell("tuned", regressed())).dump()
    for entry in data["cells"]:
        del entry["arm_values"], entry["judged_by"]
    assert "## k3perf: REGRESSED" in comment(validated(VerdictDocument, data))
