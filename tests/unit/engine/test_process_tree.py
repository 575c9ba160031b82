"""An engine's processes are found by mark, session or descent; what was found to be a
stranger is not looked at again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest
from tests.processes import PATIENCE_S, WAIT_S

from k3perf.engine import process_tree
from k3perf.engine.lock import LockHolder
from k3perf.engine.process_tree import (
    ENGINE_ID_VARIABLE,
    ProcessTree,
    marked_processes,
    process_list,
    read_row,
)

NO_SUCH_PID = 1 << 22
# exit(2), which ends the calling thread alone, of the first thread; the other goes on
# until its standard input ends
FIRST_THREAD_ENDS = """
import ctypes, os, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


@pytest.fixture
def engine_id() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_a_marked_process_that_starts_between_looks_is_found(
    engine_id: str, started: list[subprocess.Popen[bytes]]
) -> None:
    tree = ProcessTree(engine_id, NO_SUCH_PID)
    assert tree.pids() == ()
    environment = {**os.environ, ENGINE_ID_VARIABLE: engine_id}
    started.append(subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True))
    assert tree.pids() == (started[0].pid,)
    assert tree.pids() == (started[0].pid,)


def test_a_young_process_is_looked_at_again(
    engine_id: str, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between fork and exec it shows its parent's environment, without the mark."""
    monkeypatch.setattr(
        process_tree, "_SETTLED_S", PATIENCE_S
    )  # it stays young however long a busy machine takes
    tree = ProcessTree(engine_id, NO_SUCH_PID)
    script = f"read -r line; exec env {ENGINE_ID_VARIABLE}={engine_id} sleep 600"
    started.append(subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE))
    assert tree.pids() == ()
    assert started[0].stdin is not None
    started[0].stdin.write(b"go\n")
    started[0].stdin.close()
    end_s = time.monotonic() + WAIT_S
    while tree.pids() != (started[0].pid,):
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_environments_of_strangers_are_read_once(
    engine_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    monkeypatch.setattr(process_tree, "_is_marked", lambda pid, mark: read.append(pid))
    tree = ProcessTree(engine_id, NO_SUCH_PID)
    tree.pids()
    assert read  # in a container perhaps the first process alone
    first = set(read)
    read.clear()
    tree.pids()
    old = {
        pid
        for pid, row in process_list().items()
        if row.start_ticks < read_ticks() - 3 * os.sysconf("SC_CLK_TCK")
    }
    assert first & old
    assert not set(read) & old


def read_ticks() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")


@pytest.fixture
def headless() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose first thread has ended and whose second one waits: the process
    list has it as a zombie.
    """
    with subprocess.Popen(
        [sys.executable, "-S", "-c", FIRST_THREAD_ENDS],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        end_s = time.monotonic() + WAIT_S
        while (row := read_row(process.pid)) is None or row.state != "Z":
            assert time.monotonic() < end_s
            time.sleep(0.01)
        yield process


def test_a_process_that_lost_its_first_thread_alone_runs_and_is_killed(
    engine_id: str, headless: subprocess.Popen[bytes]
) -> None:
    tree = ProcessTree(engine_id, headless.pid)
    assert headless.poll() is None
    assert tree.pids() == (headless.pid,)
    assert tree.kill(deadline_s=WAIT_S, poll_root=headless.poll) == ()
    assert (
        headless.returncode == -9
    )  # collected: nothing is left for whoever drops the Popen object


def test_a_process_that_lost_its_first_thread_alone_is_waited_for(
    engine_id: str, headless: subprocess.Popen[bytes]
) -> None:
    tree = ProcessTree(engine_id, headless.pid)
    assert not tree.wait_gone(deadline_s=0.2, poll_root=headless.poll)
    assert headless.stdin is not None
    headless.stdin.close()
    assert tree.wait_gone(deadline_s=WAIT_S, poll_root=headless.poll)
    assert headless.returncode == 0


def test_a_process_that_has_ended_and_was_not_collected_is_none_of_the_running(
    engine_id: str,
) -> None:
    environment = {**os.environ, ENGINE_ID_VARIABLE: engine_id}
    with subprocess.Popen(["true"], env=environment, start_new_session=True) as ended:
        end_s = time.monotonic() + WAIT_S
        while (row := read_row(ended.pid)) is None or row.state != "Z":
            assert time.monotonic() < end_s
            time.sleep(0.01)
        assert not row.running
        assert ProcessTree(engine_id, ended.pid).pids() == ()
        assert ended.pid not in marked_processes()
        assert not holder_of(ended).alive


def holder_of(process: subprocess.Popen[bytes]) -> LockHolder:
    row = read_row(process.pid)
    assert row is not None
    return LockHolder(
        pid=row.pid, start_ticks=row.start_ticks, host="here", since_utc="now", command=""
    )


def test_a_harness_that_lost_its_first_thread_alone_still_holds_its_lock(
    headless: subprocess.Popen[bytes],
) -> None:
    assert holder_of(headless).alive
