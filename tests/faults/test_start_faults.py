"""An engine that does not get ready: the stated outcome, the root cause in the message,
nothing left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from k3perf.engine import supervisor
from k3perf.engine.supervisor import start_engine
from k3perf.errors import EngineError
from k3perf.units import ns_to_s
from tests.faults.bench import PATIENT, Bench
from tests.faults.endings import expect_failed_start
from tests.faults.matrix import Fault, Kind, of

_SILENT = {"silent_compile": "profile_s", "silent_cache": "profile_s", "no_stage_lines": "import_s"}
_BY_HAND = {"no_executable", "port_stolen_once", "port_stolen_always", "slow_but_moving", *_SILENT}
FAILING = [
    fault for fault in of(Kind.START) if fault.outcome is not None and fault.name not in _BY_HAND
]
RECOVERING = [
    fault for fault in of(Kind.START) if fault.outcome is None and fault.name not in _BY_HAND
]
ROW = {fault.name: fault for fault in of(Kind.START)}


def expect_failure(bench: Bench, fault: Fault, **launch: object) -> EngineError:
    return expect_failed_start(bench, fault, bench.launch(*fault.flags, **launch), bench.work)


@pytest.mark.parametrize("fault", FAILING, ids=lambda fault: fault.name)
def test_a_failing_start_names_its_cause_and_leaves_nothing(bench: Bench, fault: Fault) -> None:
    quick = (
        {f"{fault.stage}_s": 0.4} if "hung" in fault.shows else {}
    )  # only the stage that hangs: a busy machine may take long for others
    expect_failure(bench, fault, deadlines=PATIENT.model_copy(update=quick))


@pytest.mark.parametrize("fault", RECOVERING, ids=lambda fault: fault.name)
def test_a_start_that_recovers_is_not_spoiled(bench: Bench, fault: Fault) -> None:
    with start_engine(bench.launch(*fault.flags), work_directory=bench.work) as engine:
        assert engine.alive()
    bench.assert_nothing_left(ports=(engine.port,))


def test_progress_resets_the_deadline(bench: Bench) -> None:
    """Ten lines of progress, each after 0.15 of the deadline. A busy machine may take
    longer for one, so the deadline grows with each try.
    """
    fault = ROW["slow_but_moving"]
    hung: list[EngineError] = []
    for load_s in (0.6, 3.0, 15.0):
        launch = bench.launch(
            *fault.flags,
            f"step_s:{0.15 * load_s}",
            deadlines=PATIENT.model_copy(update={"load_s": load_s}),
        )
        try:
            with start_engine(launch, work_directory=bench.work / str(load_s)) as engine:
                loading_s = sum(
                    stage.duration_s for stage in engine.stages if stage.stage == "load"
                )
                assert loading_s > load_s
        except EngineError as error:
            hung.append(error)
        else:
            bench.assert_nothing_left(ports=(engine.port,))
            return
    pytest.fail(f"the deadline is not reset: {hung}")


@pytest.mark.parametrize("name", _SILENT)
def test_work_without_a_line_is_not_hung(bench: Bench, name: str) -> None:
    """Two seconds of it, against a deadline of one."""
    fault = ROW[name]
    launch = bench.launch(*fault.flags, deadlines=PATIENT.model_copy(update={_SILENT[name]: 1.0}))
    launch = replace(launch, environment={"VLLM_CACHE_ROOT": str(bench.work / "cache")})
    with start_engine(launch, work_directory=bench.work) as engine:
        assert ns_to_s(engine.ready_ns - engine.started_ns) > 2
    bench.assert_nothing_left(ports=(engine.port,))


def test_the_one_that_was_killed_at_the_start_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM says only that the worker's initialization failed; the kernel says how it
    ended.
    """
    monkeypatch.setattr(supervisor, "_POLL_S", 0.05)
    with pytest.raises(EngineError) as caught:
        start_engine(bench.launch("slow_death:capture"), work_directory=bench.work)
    cause = caught.value.root_cause
    assert "VLLM::Worker" in cause
    assert "killed by SIGKILL" in cause
    assert "WorkerProc initialization failed" in cause
    assert len(cause) <= 600
    bench.assert_nothing_left()


def test_a_missing_executable(bench: Bench) -> None:
    expect_failure(bench, ROW["no_executable"], argv=("/nonexistent/python", "--port", "{port}"))


@pytest.mark.parametrize("same_model", [False, True])
def test_a_stolen_port_is_left_to_the_thief(
    bench: Bench, steal: Callable[..., list[int]], same_model: bool
) -> None:
    """Also to one that serves the same model: its answers would be measured as the
    engine's.
    """
    ports = steal(1, bench.model if same_model else "")
    with start_engine(bench.launch(), work_directory=bench.work) as engine:
        assert len(ports) == 2
        assert engine.port == ports[1]
    bench.assert_nothing_left(ports=ports[1:])


def test_ports_that_are_always_stolen_end_the_start(
    bench: Bench, steal: Callable[[int], list[int]]
) -> None:
    ports = steal(99)
    with pytest.raises(EngineError, match=ROW["port_stolen_always"].shows):
        start_engine(bench.launch(), work_directory=bench.work)
    assert len(ports) == 3
    bench.assert_nothing_left()


def test_what_leaves_the_tree_while_the_engine_starts_is_ended_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without session, mark and, once its parent has died, parent: it is
    known because the start looked at the tree meanwhile.
    """
    monkeypatch.setattr(supervisor, "_LOOK_S", 0.05)
    with pytest.raises(EngineError, match="injected death in worker at capture"):
        start_engine(bench.launch("escape", "die:capture"), work_directory=bench.work)
    bench.assert_nothing_left()


def test_stages_are_told_as_they_come(bench: Bench) -> None:
    heard: list[str] = []
    before_s = time.monotonic()
    with start_engine(bench.launch(), work_directory=bench.work, on_stage=heard.append) as engine:
        assert heard == ["load", "profile", "compile", "capture", "ready"]
        assert [stage.stage for stage in engine.stages] == ["import", *heard]
        assert sum(stage.duration_s for stage in engine.stages) == pytest.approx(
            (engine.ready_ns - engine.started_ns) / 1e9
        )
        assert sum(stage.duration_s for stage in engine.stages) <= time.monotonic() - before_s
        assert (bench.work / "engine.yaml").read_text() == "model: fake\n"
