"""``reference`` mode: a loss common to both arms leaves the ratios as they are, and the
reference arm's own values show it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3perf.baselines.reference_arm import COMMON_LOSS, with_reference_arm
from k3perf.config.models import MeasurementPlan
from k3perf.gate.compare import compare
from k3perf.records.baseline import Baseline, digest_of
from k3perf.records.measurement import CellMeasurement
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict, SuiteVerdict
from k3perf.report.table import failure_text, suite_summary
from tests.unit.gate.conftest import RATE, Build

UNSEEN = "a loss common to both arms cannot be seen"


def recorded(build: Build, **changes: object) -> Baseline:
    policy = build.policy(plan=MeasurementPlan(mode="reference"))
    cell = build.cell(build.pairs(1200.0, 1000.0, 6), "reference", **changes)
    return build.baseline(cell, policy)


def judged(build: Build, baseline: Baseline, cell: CellMeasurement) -> CellVerdict:
    policy = build.policy(plan=MeasurementPlan(mode="reference"))
    return with_reference_arm(compare(baseline, cell, policy), baseline, cell, policy)


def slower(build: Build, share: float, candidate: float = 1.0) -> CellMeasurement:
    """Both arms at ``share`` of the recorded rates."""
    pairs = build.pairs(1200.0 * share * candidate, 1000.0 * share, 2)
    return build.cell(pairs, "reference")


@pytest.mark.parametrize(
    ("share", "outcome"), [(1.0, Outcome.PASS), (0.8, Outcome.PASS), (0.1, COMMON_LOSS)]
)
def test_both_arms_slower_is_not_green(build: Build, share: float, outcome: Outcome) -> None:
    verdict = judged(build, recorded(build), slower(build, share))
    assert [metric.outcome for metric in verdict.metrics] == [Outcome.PASS]
    assert verdict.outcome is outcome
    (arm,) = verdict.reference_arm
    # the builder's machine slows with each session; six were recorded, two are measured
    assert arm.baseline_value == pytest.approx(1000 * 0.898, rel=0.01)
    assert arm.now_value == pytest.approx(1000 * share * 0.98, rel=0.01)
    assert (arm.unit, arm.tolerance_ratio) == ("tokens/s", 0.25)


def test_the_report_says_what_happened_and_how_to_decide(build: Build) -> None:
    verdict = judged(build, recorded(build), slower(build, 0.5))
    text = suite_summary(SuiteVerdict((verdict,), 0.01, 1))
    for said in (text, failure_text(verdict)):
        assert "both arms are slower than recorded" in said
        assert "a slower engine, kernel, driver or machine is divided out" in said
        assert "--k3-ab-base" in said
        assert "(limit 25% worse)" in said
    alone = judged(build, recorded(build), slower(build, 0.5, candidate=2.5))
    assert "the reference arm is slower than recorded" in alone.reference_arm[0].reason


@pytest.mark.parametrize("mode", ["reference", "ab"])
def test_every_report_of_reference_mode_states_the_blind_side(build: Build, mode: str) -> None:
    verdict = replace(judged(build, recorded(build), slower(build, 1.0)), mode=mode)
    text = suite_summary(SuiteVerdict((verdict,), 0.01, 1))
    assert ("reference mode cannot see a loss common to both arms" in text) is (mode != "ab")
    assert "reference arm: output_tokens_per_s 9" in text


def test_another_class_or_older_baseline_is_said(build: Build) -> None:
    baseline = recorded(build)
    here = slower(build, 0.1)
    elsewhere = judged(build, baseline, replace(here, hardware_class="h100"))
    assert elsewhere.outcome is not COMMON_LOSS
    why = "recorded on hardware class 'h200', measured on 'h100'"
    assert f"reference arm not compared ({why}): {UNSEEN}" in elsewhere.notes
    older = without_reference_values(baseline)
    verdict = judged(build, older, here)
    assert verdict.outcome is Outcome.PASS
    assert any("holds no absolute values" in note and UNSEEN in note for note in verdict.notes)


@pytest.mark.parametrize(("kind", "seen"), [("cpu-avx512", False), ("h200", True)])
def test_a_class_of_cpus_has_cpus_of_any_speed(build: Build, kind: str, *, seen: bool) -> None:
    def on(processor: str, cell: CellMeasurement) -> CellMeasurement:
        sessions = [replace(one, environment={"processor": processor}) for one in cell.sessions]
        return replace(cell, sessions=tuple(sessions), hardware_class=kind)

    policy = build.policy(plan=MeasurementPlan(mode="reference"))
    there = build.cell(build.pairs(1200.0, 1000.0, 6), "reference")
    baseline = build.baseline(on("fast", there), policy)
    verdict = judged(build, baseline, on("slow", slower(build, 0.1)))
    assert bool(verdict.reference_arm) is seen
    assert any("another CPU, slow" in note for note in verdict.notes) is not seen
    assert judged(build, baseline, on("fast", slower(build, 0.1))).outcome is COMMON_LOSS


def test_the_limit_is_declared(build: Build) -> None:
    baseline, cell = recorded(build), slower(build, 0.8)
    policy = build.policy(plan=MeasurementPlan(mode="reference"), common_loss_limit_ratio=0.05)
    verdict = with_reference_arm(compare(baseline, cell, policy), baseline, cell, policy)
    assert verdict.outcome is COMMON_LOSS


def test_a_baseline_without_the_values_is_written_as_before(build: Build) -> None:
    baseline = recorded(build)
    (session, *_) = baseline.workloads[0].metrics[0].sessions
    assert session.reference_value == pytest.approx(1000.0)
    older = without_reference_values(baseline)
    assert "reference_value" not in older.model_dump_json()
    assert Baseline.model_validate_json(older.model_dump_json()) == older
    absolute = build.baseline()
    assert all(
        one.reference_value is None
        for entry in absolute.workloads[0].metrics
        for one in entry.sessions
    )
    assert absolute.workloads[0].metrics[0].metric == RATE


def without_reference_values(baseline: Baseline) -> Baseline:
    data = baseline.model_dump(mode="json")
    for workload in data["workloads"]:
        for entry in workload["metrics"]:
            for session in entry["sessions"]:
                session.pop("reference_value", None)
    older = Baseline.model_validate(data)
    return older.model_copy(update={"digest": digest_of(older)})


def test_a_cell_without_valid_rounds_says_nothing_of_the_baseline(build: Build) -> None:
    broken = replace(slower(build, 0.1).sessions[0], invalid_reasons=(build.reason,))
    verdict = judged(build, recorded(build), build.cell([broken], "reference"))
    assert not any(UNSEEN in note for note in verdict.notes)
    assert verdict.reference_arm == ()
