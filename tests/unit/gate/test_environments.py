"""A baseline of one machine judged on another: a note, never CONFIG_DRIFT. What an
upgrade changes stays CONFIG_DRIFT.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from k3perf.baselines.propose import propose
from k3perf.baselines.target_policy import target_policy, with_noise_of
from k3perf.config.suite import load_suite
from k3perf.gate.compare import compare
from k3perf.metrics.recorded_environments import recorded_environments
from k3perf.records.baseline import Baseline, digest_of
from k3perf.records.measurement import CellMeasurement, SessionMetrics
from k3perf.records.outcome import Outcome
from k3perf.store.baselines import read_target_baselines
from k3perf.store.measurements import read_measurement_file
from tests.unit.gate.conftest import Build

REPOSITORY = Path(__file__).resolve().parents[3]
HERE = {"python": "3.11.7", "kernel": "6.1.0-17", "processor": "AMD EPYC"}
THERE = {"python": "3.11.2", "kernel": "6.1.0-17", "processor": "AMD EPYC"}
LOCK = {"block_size": 16, "version.vllm": "0.32.0", "version.torch": "2.13.0"}


def on(session: SessionMetrics, environment: dict[str, str], **locked: object) -> SessionMetrics:
    return replace(session, environment=environment, resolved_config={**LOCK, **locked})


def cell(
    build: Build, environment: dict[str, str], count: int, *, name: str = "", **locked: object
) -> CellMeasurement:
    sessions = [on(session, environment, **locked) for session in build.sessions(1000.0, count)]
    return build.cell(
        [replace(session, session_id=f"{name}{session.session_id}") for session in sessions]
    )


def older(baseline: Baseline, **machine: object) -> Baseline:
    """The same as it was written before environments were recorded."""
    resolved = {**baseline.resolved_config, **machine}
    made = baseline.model_copy(update={"environments": (), "resolved_config": resolved})
    return made.model_copy(update={"digest": digest_of(made)})


@pytest.fixture
def baseline(build: Build) -> Baseline:
    return build.baseline(cell(build, HERE, 6))


def test_another_patch_release_of_python_passes_with_a_note(
    build: Build, baseline: Baseline
) -> None:
    verdict = compare(baseline, cell(build, THERE, 2), build.policy())
    assert (verdict.outcome, verdict.differences) == (Outcome.PASS, ())
    assert "environment differs: python 3.11.7 -> 3.11.2" in verdict.notes
    same = compare(baseline, cell(build, HERE, 2), build.policy())
    assert same.outcome is Outcome.PASS
    assert not any("environment" in note for note in same.notes)


@pytest.mark.parametrize("name", ["version.vllm", "version.torch", "block_size"])
def test_what_a_change_decides_is_config_drift_on_any_machine(
    build: Build, baseline: Baseline, name: str
) -> None:
    for environment in (HERE, THERE):
        verdict = compare(baseline, cell(build, environment, 2, **{name: "other"}), build.policy())
        assert verdict.outcome is Outcome.CONFIG_DRIFT
        assert [difference.key for difference in verdict.differences] == [name]


@pytest.mark.parametrize(
    "machine", [{"version.python": "3.11.7", "version.driver": None}, {"version.driver": "580.1"}]
)
def test_an_older_baseline_is_judged_without_recording_it_again(
    build: Build, baseline: Baseline, machine: dict[str, object]
) -> None:
    verdict = compare(
        older(baseline, **machine), cell(build, {**THERE, "driver": "590.2"}, 2), build.policy()
    )
    assert (verdict.outcome, verdict.differences) == (Outcome.PASS, ())
    told = "python 3.11.7 -> 3.11.2" if "version.python" in machine else "driver 580.1 -> 590.2"
    assert f"environment differs: {told}" in verdict.notes


def test_the_committed_baseline_is_judged_on_another_machine_without_recording_it_again() -> None:
    """The shipped files, as they were recorded with Python 3.12.3 and driver 580.159.04
    in the lock.
    """
    suite = load_suite(REPOSITORY / "perf_tests")
    committed = read_target_baselines(REPOSITORY / "baselines", "h200-k3")
    baseline = next(known for known in committed if known.config == "default")
    policy = with_noise_of(
        target_policy(suite, suite.target("h200-k3"), gated_metric_count=1),
        committed,
    )
    recordings = [
        read_measurement_file(path)
        for path in sorted((REPOSITORY / "perf_tests" / "recordings").glob("h200-k3-?-*.json"))
    ]
    recorded = next(
        cell
        for recording in recordings
        for cell in recording.cells
        if recording.run_id in baseline.acceptance.run_ids
        and (cell.config, cell.workload) == ("default", "serve_1k")
    )
    here = compare(baseline, recorded, policy)
    assert (here.outcome, here.differences) == (Outcome.PASS, ())
    assert not any("environment" in note for note in here.notes)
    elsewhere = {
        "python": "3.11.2",
        "driver": "590.44.01",
        "distribution": "Debian GNU/Linux 12 (bookworm)",
    }
    moved = replace(
        recorded,
        sessions=tuple(replace(session, environment=elsewhere) for session in recorded.sessions),
    )
    there = compare(baseline, moved, policy)
    assert (there.outcome, there.metrics) == (Outcome.PASS, here.metrics)
    assert (
        "environment differs: python 3.12.3 -> 3.11.2; driver 580.159.04 -> 590.44.01"
        in there.notes
    )
    upgraded = [
        replace(session, resolved_config={**session.resolved_config, "version.vllm": "0.34.0"})
        for session in moved.sessions
    ]
    drifted = compare(baseline, replace(moved, sessions=tuple(upgraded)), policy)
    assert [difference.key for difference in drifted.differences] == ["version.vllm"]
    assert drifted.outcome is Outcome.CONFIG_DRIFT


def test_sessions_of_several_machines_are_one_baseline_that_tells_them_apart(
    build: Build, baseline: Baseline
) -> None:
    cells = [cell(build, HERE, 3), cell(build, THERE, 3, name="d")]
    mixed = propose(
        cells, versions={}, policy=build.policy(), previous=None, acceptance=build.acceptance()
    )
    assert [(part.values, part.session_ids) for part in mixed.environments] == [
        (HERE, ("c0", "c1", "c2")),
        (THERE, ("dc0", "dc1", "dc2")),
    ]
    assert mixed.resolved_config == LOCK
    for environment in (HERE, THERE):
        assert not any(
            "environment" in note
            for note in compare(mixed, cell(build, environment, 2), build.policy()).notes
        )
    elsewhere = compare(mixed, cell(build, {**HERE, "python": "3.13.1"}, 2), build.policy())
    assert "environment differs: python 3.11.2 or 3.11.7 -> 3.13.1" in elsewhere.notes
    assert (
        digest_of(mixed.model_copy(update={"environments": baseline.environments})) != mixed.digest
    )


def test_a_workload_that_was_not_measured_again_keeps_its_environment(
    build: Build, baseline: Baseline
) -> None:
    burst = replace(cell(build, THERE, 6, name="b"), workload="burst")
    for previous in (baseline, older(baseline, **{"version.python": "3.11.7"})):
        new = propose(
            [burst],
            versions={},
            policy=build.policy(),
            previous=previous,
            acceptance=build.acceptance(),
        )
        assert {workload.workload for workload in new.workloads} == {"burst", "chat"}
        known = recorded_environments(previous)[0].values
        assert [part.values for part in new.environments] == [known, THERE]
        assert (
            "environment differs: python 3.11.7 -> 3.11.2"
            in compare(new, cell(build, THERE, 2), build.policy()).notes
        )
        assert not any("environment" in note for note in compare(new, burst, build.policy()).notes)
        again = propose(
            [cell(build, THERE, 6)],
            versions={},
            policy=build.policy(),
            previous=new,
            acceptance=build.acceptance(),
        )
        assert [part.values for part in again.environments] == [THERE]


def test_a_baseline_without_any_environment_writes_none(build: Build) -> None:
    bare = build.baseline()
    assert bare.environments == ()
    assert "environments" not in bare.model_dump()
    assert recorded_environments(bare) == ()


def test_ab_tells_the_arms_apart(build: Build) -> None:
    candidate, base = build.pairs(1000.0, 1000.0, 1)
    verdict = compare(
        None, build.cell([on(candidate, THERE), on(base, HERE)], "ab"), build.policy()
    )
    assert verdict.differences == ()
    assert "environment differs: python 3.11.7 -> 3.11.2" in verdict.notes
