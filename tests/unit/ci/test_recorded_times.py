"""Costs and the table of times are what the committed recordings hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.session_times_page import recorded_costs, session_times_page, sessions_of

from k3perf.ci.costs import RecordedCosts
from k3perf.ci.recorded_times import costs_of_sessions, recorded_sessions
from k3perf.config.suite import Suite, load_suite
from k3perf.records.measurement import (
    CellMeasurement,
    MeasurementFile,
    RoundMetrics,
    SessionMetrics,
)
from k3perf.records.samples import Arm, StageTiming

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite(REPOSITORY / "perf_tests")


def session(
    start_s: int, *, arm: Arm = Arm.CANDIDATE, pair_id: str | None = None
) -> SessionMetrics:
    """Four rounds of two seconds each."""
    return SessionMetrics(
        session_id=f"{arm}-{start_s}",
        arm=arm,
        pair_id=pair_id,
        rounds=tuple(RoundMetrics(index, index, {}, duration_s=2.0) for index in range(4)),
        values={},
        resolved_config={},
        started_at_utc=f"2026-12-01T00:{start_s // 60:02}:{start_s % 60:02}Z"
        if start_s >= 0
        else "",
        stages=(StageTiming("load", 20.0),),
    )


def recording(**cells: list[SessionMetrics]) -> MeasurementFile:
    """``cells``: sessions by config, all of h200-k2."""
    return MeasurementFile(
        run_id="run",
        commit="c",
        created_at_utc="2026-12-01T00:00:00Z",
        identity={},
        cells=tuple(
            CellMeasurement("h200-k2", config, "serve_1k", "baseline", "h200", "d", tuple(held))
            for config, held in cells.items()
        ),
    )


def test_a_whole_session_lasts_until_the_next_engine_starts(suite: Suite) -> None:
    file = recording(default=[session(0), session(90)], fp8_kv=[session(50)])
    found = recorded_sessions([file])
    assert [one.config for one in found] == ["default", "fp8_kv", "default"]
    assert [one.whole_s for one in found] == [50, 40, None]
    assert found[0].stages_s == {"load": 20.0}
    costs = costs_of_sessions(found, suite.targets)
    # four measured rounds and the target's two of warm-up
    assert costs.session_s == {"h200-k2-default-serve_1k": 12.0, "h200-k2-fp8_kv-serve_1k": 12.0}
    assert costs.engine_start_s == {"h200-k2/default": 38.0, "h200-k2/fp8_kv": 28.0}
    assert costs.runs == ("run",)


def test_a_references_rounds_are_part_of_its_candidates_session(suite: Suite) -> None:
    pair = [session(0, pair_id="p"), session(0, arm=Arm.REFERENCE, pair_id="p")]
    (found,) = recorded_sessions([recording(default=pair)])
    assert found.rounds_s == 16.0


def test_a_session_without_times_gives_no_cost(suite: Suite) -> None:
    assert recorded_sessions([recording(default=[session(-1)])]) == ()


def test_the_committed_costs_are_those_of_the_recordings(suite: Suite) -> None:
    """After a new recording: scripts/make-costs."""
    committed = RecordedCosts.model_validate_json((suite.root / "costs.json").read_bytes())
    assert recorded_costs(suite, committed) == committed
    found = costs_of_sessions(sessions_of(suite), suite.targets)
    assert len(found.session_s) > 10
    assert found.session_s.items() <= committed.session_s.items()
    assert found.engine_start_s.items() <= committed.engine_start_s.items()


def test_every_approved_target_has_a_row_of_its_verdict(suite: Suite) -> None:
    costs = RecordedCosts.model_validate_json((suite.root / "costs.json").read_bytes())
    page = session_times_page(suite, REPOSITORY / "baselines", costs)
    for target in ("cpu-gqa", "cpu-hybrid", "h200-k3", "h200-k2", "h200-k3-ep2"):
        assert f"| `{target}` |" in page.rpartition("## A clean verdict")[2]
