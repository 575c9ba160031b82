"""The faults of the matrix whose cause or course is vLLM's own, on its CPU engine: same
rows, same outcome, nothing left.

pytest tests/faults/test_real_faults.py -m engine      needs the engine environment; an
engine start each
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from k3perf.config.suite import load_suite
from k3perf.engine import supervisor
from k3perf.engine.process_tree import command_of
from k3perf.engine.supervisor import start_engine
from k3perf.errors import EngineError
from k3perf.load.generator import run_round
from k3perf.records.samples import RequestStatus
from k3perf.telemetry.server import ServerProbe
from k3perf.workload.request_plan import Plan, expand
from tests.faults.bench import PATIENT, Bench
from tests.faults.endings import expect_death, expect_failed_start
from tests.faults.matrix import Kind, of
from tests.faults.real_engine import ENVIRONMENT, REPOSITORY, RealLaunch

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
ROWS = {fault.name: fault for fault in of(Kind.REAL)}
EAGER = "--enforce-eager"
HOLD_BYTES = 512 << 20


def titled(pids: Iterable[int], title: str) -> int:
    """The process of the tree whose title holds this."""
    return next(pid for pid in pids if title in command_of(pid))


def chat(requests: int) -> Plan:
    """Requests long enough to be cut off."""
    suite = load_suite(REPOSITORY / "perf_tests")
    spec = suite.workload("chat").model_copy(update={"requests": requests})
    return expand(spec, vocabulary_size=suite.vocabulary_size(suite.target("cpu-gqa")))


def test_a_model_directory_without_weights(bench: Bench, real_launch: RealLaunch) -> None:
    error = expect_failed_start(
        bench,
        ROWS["real_no_weights"],
        real_launch(EAGER, load_format="auto"),
        bench.work / "engine",
    )
    assert error.root_cause
    assert len(error.log_tail) <= 10


def test_a_config_file_that_is_cut_off(bench: Bench, real_launch: RealLaunch) -> None:
    real_launch()  # makes the model directory
    config = bench.work / bench.model / "config.json"
    config.write_text(config.read_text()[:200])
    expect_failed_start(
        bench, ROWS["real_model_cut_off"], real_launch(EAGER), bench.work / "engine"
    )


def test_a_worker_that_hangs_while_it_loads(bench: Bench, real_launch: RealLaunch) -> None:
    """SIGSTOP as soon as the log says that loading began: nobody in vLLM notices."""
    fault = ROWS["real_hangs_at_load"]
    frozen: list[int] = []

    def freeze(stage: str) -> None:
        if stage == "load" and not frozen:
            frozen.extend(pid for pid in bench.processes() if "EngineCore" in command_of(pid))
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)

    with pytest.raises(EngineError) as caught:
        start_engine(
            real_launch(EAGER, deadlines=PATIENT.model_copy(update={"load_s": 4.0})),
            work_directory=bench.work / "engine",
            on_stage=freeze,
        )
    assert frozen
    assert re.search(fault.shows, str(caught.value)), str(caught.value)
    assert caught.value.exit_status is fault.exit_status
    bench.assert_nothing_left()


def test_a_worker_that_is_killed_while_it_loads(
    bench: Bench, real_launch: RealLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM says that the worker's initialization failed; who was killed, and by what,
    the harness has seen itself.
    """
    fault = ROWS["real_worker_killed_at_load"]
    monkeypatch.setattr(supervisor, "_LOOK_S", 0.5)
    seen_s: list[float] = []
    killed: list[int] = []

    def kill() -> None:
        """Asked at every poll of the start: kill the worker two seconds after it was
        first there.
        """
        workers = [pid for pid in bench.processes() if "VLLM::Worker" in command_of(pid)]
        if workers and not killed:
            seen_s.append(time.monotonic())
            if seen_s[-1] - seen_s[0] > 2:
                killed.append(workers[0])
                os.kill(workers[0], signal.SIGKILL)

    with pytest.raises(EngineError) as caught:
        start_engine(
            real_launch(EAGER), work_directory=bench.work / "engine", companion_failed=kill
        )
    assert re.search(fault.shows, caught.value.root_cause), caught.value.root_cause
    assert f"VLLM::Worker (pid {killed[0]})" in caught.value.root_cause
    bench.assert_nothing_left()


def test_the_core_is_killed_in_a_round(bench: Bench, real_launch: RealLaunch) -> None:
    """The round ends at once, not with its time-outs: the harness stops it, or vLLM's
    server has answered every request with an error first.
    """
    fault = ROWS["real_core_killed_mid_round"]
    engine = start_engine(real_launch(EAGER), work_directory=bench.work / "engine")
    core = titled(engine.pids(), "EngineCore")
    asked: list[float] = []
    killed_s: list[float] = []

    def stop() -> bool:
        """Asked ten times a second while the round runs: kill after half a second."""
        asked.append(time.monotonic())
        if asked[-1] - asked[0] > 0.5 and not killed_s:
            os.kill(core, signal.SIGKILL)
            killed_s.append(asked[-1])
        return engine.death_event.is_set()

    seen = run_round(chat(64), base_url=engine.base_url, model_name=engine.model_name, stop=stop)
    ended_s = time.monotonic()
    assert ended_s - killed_s[0] < 5  # a request may take minutes
    statuses = {sample.status for sample in seen.samples}
    assert statuses - {RequestStatus.OK}
    assert not statuses & {RequestStatus.TIMED_OUT, RequestStatus.STALLED}
    expect_death(bench, engine, fault, wait_s=30)


def test_the_engine_runs_out_of_memory(
    bench: Bench, real_launch: RealLaunch, memory_cgroup: Path
) -> None:
    fault = ROWS["real_out_of_memory"]
    engine = start_engine(real_launch(EAGER), work_directory=bench.work / "engine")
    (memory_cgroup / "cgroup.procs").write_text(str(titled(engine.pids(), "VLLM::Worker")))
    with pytest.raises(
        Exception, match=r"."
    ):  # whatever the route answers when its process is gone
        ServerProbe(engine.base_url, timeout_s=60).call("k3perf_hold_bytes", "host", HOLD_BYTES)
    expect_death(bench, engine, fault, wait_s=30)


def test_a_port_that_a_stranger_takes(
    bench: Bench, real_launch: RealLaunch, steal: Callable[[int], list[int]]
) -> None:
    ports = steal(1)
    with start_engine(real_launch(EAGER), work_directory=bench.work / "engine") as engine:
        assert engine.port == ports[1]
        assert ROWS["real_port_stolen"].outcome is None
    bench.assert_nothing_left(ports=ports[1:])


@pytest.fixture
def recording(bench: Bench, engine_python: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A whole `pytest perf_tests` that records one cell on two real engines; its output
    and results lie in the bench's directory.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "perf_tests",
        "-q",
        "-p",
        "no:cacheprovider",
        "--k3-plain",
    ]
    command += ["--k3-target", "cpu-gqa", "-k", "default-chat"]
    command += [
        "--k3-record",
        "--k3-sessions",
        "1",
        "--k3-results",
        str(bench.work / "results"),
        "--k3-engine-python",
        str(engine_python),
    ]
    environment = {
        **os.environ,
        "TMPDIR": str(bench.temporary),
        "K3PERF_CACHE": ENVIRONMENT["VLLM_CACHE_ROOT"],
        "PYTEST_ADDOPTS": "",
    }
    with (bench.work / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    yield process
    process.kill()
    process.wait()


def test_a_whole_run_whose_engine_is_killed_mid_round(
    bench: Bench, recording: subprocess.Popen[bytes]
) -> None:
    fault = ROWS["real_suite_core_killed"]
    results = bench.work / "results" / "results.jsonl"
    output = bench.work / "output"
    end_s = time.monotonic() + 240
    while not (results.exists() and '"kind":"round"' in results.read_text()):
        assert recording.poll() is None, output.read_text()
        assert time.monotonic() < end_s, output.read_text()
        time.sleep(0.2)
    os.kill(titled(bench.processes(), "EngineCore"), signal.SIGKILL)
    assert recording.wait(120) == fault.exit_status, output.read_text()
    assert re.search(fault.shows, output.read_text()), output.read_text()
    own_lines = [
        line for line in output.read_text().splitlines() if not line.startswith("    | ")
    ]  # without quotes of the engine's log
    assert not [line for line in own_lines if "Traceback" in line]
    verdict = json.loads((bench.work / "results" / "verdict.json").read_text())
    assert verdict["outcome"] == "INVALID"
    bench.assert_nothing_left(lock_directory=True)
