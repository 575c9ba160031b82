"""How a baseline grows by judged nights: what is added, what is not and why."""

from __future__ import annotations

from typing import Any

import pytest

from k3perf.baselines.extend import Extension, Window, extended, first_baseline
from k3perf.baselines.propose import propose, recorded_entries
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.policy import Policy
from k3perf.records.baseline import Acceptance, Baseline
from k3perf.records.measurement import CellMeasurement, MetricValue, RoundMetrics, SessionMetrics
from k3perf.records.night import NightCell, NightFile, NightFinding, lock_key
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm

LOCK = {"block_size": 16}
POLICY = Policy(
    tolerances={
        "tpot_mean_ms": Tolerance(loss_ratio=0.05),
        "weights_bytes": Tolerance(loss_absolute=0),
    },
    plan=MeasurementPlan(mode="baseline", baseline_sessions=4),
    gated_metric_count=10,
)
STAMP = Acceptance(
    accepted_by="ann", reason="first numbers", accepted_at_utc="2026-11-01T00:00:00Z",
    commit="c", run_ids=("r",),
)  # fmt: skip


def measured(level: float, count: int, day: str, lock: dict[str, Any] = LOCK) -> CellMeasurement:
    sessions = tuple(
        SessionMetrics(
            f"{day}-{index}", Arm.CANDIDATE, None,
            tuple(RoundMetrics(i, None, {"tpot_mean_ms": MetricValue(level * (1 + 0.001 * (i - 2)
                               + 0.002 * (index % 3 - 1)), 8)}) for i in range(4)),
            {"weights_bytes": MetricValue(1e9, 1)}, lock,
            started_at_utc=f"{day}T01:00:00Z", host="a",
        )
        for index in range(count)
    )  # fmt: skip
    return CellMeasurement("gpu", "one", "chat", "baseline", "h200", "plan", sessions)


def night(
    day: str,
    level: float = 20.0,
    outcome: Outcome | None = Outcome.PASS,
    *,
    count: int = 2,
    lock: dict[str, Any] = LOCK,
    **changes: Any,
) -> NightFile:
    cell = measured(level, count, day, lock)
    kept = NightCell(
        target="gpu", config="one", workload="chat", hardware_class="h200", plan_digest="plan",
        outcome=outcome, lock=lock_key(lock), session_count=count,
        recorded=tuple(recorded_entries([cell], POLICY)),
    ).model_copy(update=changes)  # fmt: skip
    return NightFile(
        run_id=f"run-{day}", commit="c", created_at_utc=f"{day}T03:00:00Z",
        locks={lock_key(lock): lock}, cells=(kept,),
    )  # fmt: skip


@pytest.fixture
def committed() -> Baseline:
    return propose(
        [measured(20.0, 3, f"2026-11-0{day}") for day in (1, 2, 3)],
        versions={}, policy=POLICY, previous=None, acceptance=STAMP,
    )  # fmt: skip


def grow(committed: Baseline, *nights: NightFile, window: Window = Window()) -> Extension:  # noqa: B008
    return extended(committed, nights, POLICY, window=window, acceptance=STAMP)


def days(found: Extension | Baseline) -> list[str]:
    baseline = found if isinstance(found, Baseline) else found.baseline
    assert baseline is not None
    return [session.day for session in baseline.workloads[0].metrics[0].sessions]


def test_sessions_are_added_once(committed: Baseline) -> None:
    first = grow(committed, night("2026-12-01"), night("2026-12-02"))
    assert (first.added_count, first.dropped_count) == (4, 0)
    assert len(days(first)) == 13
    assert len(days(committed)) == 9
    assert first.baseline is not None
    again = grow(first.baseline, night("2026-12-01"), night("2026-12-02"))
    assert again.baseline is None
    assert len(first.baseline.exact[0].sessions) == 13


@pytest.mark.parametrize(
    "outcome",
    [Outcome.REGRESSED, Outcome.SUSPECT, Outcome.INCONCLUSIVE, Outcome.CONFIG_DRIFT,
     Outcome.INVALID],
)  # fmt: skip
def test_nothing_is_added_while_the_newest_judgement_is_not_good(
    committed: Baseline, outcome: Outcome
) -> None:
    found = grow(committed, night("2026-12-01"), night("2026-12-02", 21.0, outcome))
    assert found.baseline is None
    assert found.notes == (f"chat: {outcome} on 2026-12-02; nothing is added",)


def test_a_certain_loss_inside_the_tolerance_needs_a_person(committed: Baseline) -> None:
    finding = NightFinding(
        metric="tpot_mean_ms", unit="ms", outcome=Outcome.PASS, before=20.0, now=20.8,
        loss_ratio=0.04, certain=True,
    )  # fmt: skip
    found = grow(committed, night("2026-12-01", 20.8, findings=(finding,)))
    assert found.baseline is None
    assert "a person must accept it" in found.notes[0]


def test_many_small_losses_do_not_add_up(committed: Baseline) -> None:
    """Each night passes, but the set would drift away from its anchor."""
    baseline, level, worst = committed, 20.0, 0.0
    for index in range(60):
        level *= 1.004
        day = f"2027-{1 + index // 28:02d}-{1 + index % 28:02d}"
        found = grow(baseline, night(day, level, count=8), window=Window(8, 1))
        if found.baseline is None:
            assert "since the anchor" in found.notes[-1]
            break
        baseline = found.baseline
        values = [one.value for one in baseline.workloads[0].metrics[0].sessions]
        worst = max(worst, sum(values) / len(values) / 20.0 - 1)
    else:
        raise AssertionError("the drift was accepted")
    assert worst <= 0.0501


def test_other_plans_classes_and_configurations_are_not_mixed(committed: Baseline) -> None:
    for other in (
        night("2026-12-01", plan_digest="other"),
        night("2026-12-01", hardware_class="b200"),
        night("2026-12-01", lock={"block_size": 32}),
    ):
        found = grow(committed, other)
        assert found.baseline is None
        assert "another plan, hardware class or configuration" in found.notes[0]


def test_the_oldest_batches_leave_whole_and_only_from_a_full_window(committed: Baseline) -> None:
    nights = [night(f"2026-12-0{day}") for day in range(1, 6)]
    found = grow(committed, *nights, window=Window(12, 4))
    assert found.dropped_count == 6
    assert set(days(found)) == {"2026-11-03", *(f"2026-12-0{day}" for day in range(1, 6))}
    assert len(days(found)) >= 12
    whole = grow(committed, *nights, window=Window(24, 4))
    assert whole.dropped_count == 0


def test_an_improvement_waits_for_a_whole_set_and_then_starts_again(committed: Baseline) -> None:
    one = night("2026-12-01", 18.0, Outcome.IMPROVED)
    waiting = grow(committed, one)
    assert waiting.baseline is None
    assert "improved since 2026-12-01: 2 of 4 sessions" in waiting.notes[0]
    found = grow(committed, one, night("2026-12-02", 18.0, Outcome.IMPROVED))
    assert set(days(found)) == {"2026-12-01", "2026-12-02"}, "two levels have no common noise"
    assert found.baseline is not None
    assert found.baseline.workloads[0].metrics[0].anchor_value == pytest.approx(18.0, rel=0.01)


def test_a_first_baseline_needs_the_targets_sessions_of_one_configuration() -> None:
    def first(*nights: NightFile) -> Extension:
        return first_baseline(nights, "gpu", "one", POLICY, acceptance=STAMP)

    assert first(night("2026-12-01", outcome=None)).notes == ("chat: 2 of 4 sessions recorded",)
    other = night("2026-11-30", outcome=None, lock={"block_size": 32})
    assert first(other, night("2026-12-01", outcome=None)).baseline is None
    found = first(other, night("2026-12-01", outcome=None), night("2026-12-02", outcome=None))
    assert days(found) == ["2026-12-01"] * 2 + ["2026-12-02"] * 2
    assert found.baseline is not None
    assert found.baseline.resolved_config == LOCK
    assert [entry.metric for entry in found.baseline.exact] == ["weights_bytes"]
