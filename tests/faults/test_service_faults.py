"""An engine that dies after it was ready: the death is seen at once, its cause is told,
its end leaves nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from k3perf.engine.process_tree import command_of
from k3perf.engine.running import Engine
from k3perf.engine.supervisor import start_engine
from k3perf.errors import EngineError
from k3perf.records.samples import Arm, EngineIdentity
from k3perf.run import live
from k3perf.run.live import LiveEngine
from tests.faults.bench import Bench
from tests.faults.endings import expect_death
from tests.faults.matrix import Fault, Kind, of
from tests.processes import WAIT_S

ROWS = {fault.name: fault for fault in of(Kind.SERVICE)}
BY_THEMSELVES = [ROWS[name] for name in ("worker_dies_late", "api_server_dies_late")]
KILLED = [
    ROWS[name]
    for name in ("worker_killed", "core_killed", "api_server_killed", "worker_dead_core_alive")
]
_VICTIM = {
    "worker_killed": "Worker",
    "core_killed": "EngineCore",
    "worker_dead_core_alive": "Worker",
}


@pytest.mark.parametrize("fault", BY_THEMSELVES, ids=lambda fault: fault.name)
def test_a_death_of_its_own(bench: Bench, fault: Fault) -> None:
    engine = start_engine(bench.launch(*fault.flags), work_directory=bench.work)
    (bench.work / "now").touch()
    expect_death(bench, engine, fault)


@pytest.mark.parametrize("fault", KILLED, ids=lambda fault: fault.name)
def test_a_process_is_killed(bench: Bench, fault: Fault) -> None:
    engine = start_engine(bench.launch(*fault.flags), work_directory=bench.work)
    assert engine.alive()
    assert engine.death_cause() is None
    title = _VICTIM.get(fault.name)
    victim = (
        engine.pid
        if title is None
        else next(pid for pid in engine.pids() if title in command_of(pid))
    )
    os.kill(victim, signal.SIGKILL)
    expect_death(bench, engine, fault)


def stream(engine: Engine, tokens: int) -> int:
    """Completion chunks that came before the stream ended, properly or not."""
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=WAIT_S)
    count = 0
    with suppress(OSError, http.client.HTTPException):
        connection.request(
            "POST",
            "/v1/completions",
            json.dumps({"max_tokens": tokens}),
            {"Content-Type": "application/json"},
        )
        for line in connection.getresponse():
            count += line.startswith(b"data: {")
    connection.close()
    return count


def test_it_dies_while_it_streams(bench: Bench) -> None:
    fault = ROWS["dies_mid_stream"]
    engine = start_engine(bench.launch(*fault.flags), work_directory=bench.work)
    assert 0 < stream(engine, 20) < 20
    expect_death(bench, engine, fault)


def test_a_compile_in_service_is_seen_in_its_window_alone(bench: Bench) -> None:
    with start_engine(bench.launch("compile_in_service"), work_directory=bench.work) as engine:
        engine.log.drain()
        quiet_end_ns = time.monotonic_ns()
        assert (
            engine.log.compiles_between(engine.ready_ns, quiet_end_ns) == ()
        )  # those of its start came before
        assert stream(engine, 4) == 4
        engine.log.drain()
        end_ns = time.monotonic_ns()
        assert len(engine.log.compiles_between(quiet_end_ns, end_ns)) == 1
        assert engine.log.compiles_between(engine.ready_ns, quiet_end_ns - 1_000_000_000) == ()
        assert engine.log.compiles_between(end_ns + 1, end_ns + 2) == ()


def test_the_worker_runs_out_of_memory(bench: Bench, memory_cgroup: Path) -> None:
    fault = ROWS["out_of_memory"]
    engine = start_engine(bench.launch(*fault.flags), work_directory=bench.work)
    worker = next(pid for pid in engine.pids() if "Worker" in command_of(pid))
    (memory_cgroup / "cgroup.procs").write_text(str(worker))
    (bench.work / "now").touch()
    expect_death(bench, engine, fault)


@pytest.mark.parametrize("dies", [True, False])
def test_a_refused_connection_is_told_as_the_death_behind_it(
    dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The death watch notices a moment after the first connection is refused; a server
    that lives is told by its own error.
    """
    monkeypatch.setattr(live, "_DEATH_NOTICED_S", WAIT_S if dies else 0.05)
    noticed = threading.Event()
    death = EngineError("engine died in service: exit status 13", root_cause="RuntimeError: why")
    engine = SimpleNamespace(
        death_event=noticed, alive=lambda: not noticed.is_set(), death_error=lambda: death
    )
    identity = EngineIdentity("0", "3", "2", "cpu-2", (), None, "h")
    engine_alive = LiveEngine(
        "s", Arm.CANDIDATE, "t", "c", engine, SimpleNamespace(), identity, {}, None, None, ""
    )  # type: ignore[arg-type]
    later = threading.Timer(0.2, noticed.set)
    if dies:
        later.start()
    with pytest.raises(EngineError) as caught, engine_alive.or_its_death():
        raise EngineError("GET /metrics: ConnectionRefusedError")
    assert (caught.value is death) is dies
    if dies:
        later.join()
