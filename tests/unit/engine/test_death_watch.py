"""Which process ended, how, and what that makes of the log's words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from k3perf.engine.death_watch import DeathWatch, EndedProcess, explained
from k3perf.engine.process_tree import become_subreaper
from k3perf.engine.root_cause import RootCause

# a child of a child: it is not this process that learns its exit status
PARENT = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["VLLM::Worker_TP0", "-S", "-E", "-c", sys.argv[1]], executable=sys.executable)
print(child.pid, flush=True)
time.sleep(float(sys.argv[2]))
child.wait()
time.sleep(600)
"""


def watched(code: str, *, waits_s: float) -> EndedProcess:
    """The end of a grandchild that runs this code once it is watched. Its parent asks
    for its status after ``waits_s``.
    """
    go = (
        f"import os, sys, time, signal\nwhile not os.path.exists({os.environ['K3PERF_GO']!r}):"
        f" time.sleep(0.01)\n{code}"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, go, str(waits_s)], stdout=subprocess.PIPE
    )
    event = threading.Event()
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        while "VLLM" not in Path(f"/proc/{pid}/cmdline").read_text():
            time.sleep(0.01)
        watch = DeathWatch(parent.pid, (parent.pid,), poll_root=parent.poll, event=event)
        assert watch.watched_pids == (parent.pid,)
        watch.add((parent.pid, pid))
        watch.add((parent.pid, pid))
        assert set(watch.watched_pids) == {parent.pid, pid}
        Path(os.environ["K3PERF_GO"]).touch()
        assert event.wait(30)
        watch.close()
        watch.add((pid,))  # too late: nothing happens
        assert watch.first is not None
        assert watch.cause == watch.first.text
        return watch.first
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("os._exit(3)", 3),
    ],
)
def test_the_end_of_another_processs_child(
    code: str, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_subreaper()
    monkeypatch.setenv("K3PERF_GO", str(tmp_path / "go"))
    ended = watched(code, waits_s=1.0)  # a zombie meanwhile
    assert (ended.exit_code, ended.title, ended.root) == (exit_code, "VLLM::Worker_TP0", False)


def test_a_root_that_ends_is_named() -> None:
    root = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(7)"], stdin=subprocess.PIPE
    )
    event = threading.Event()
    watch = DeathWatch(root.pid, (root.pid,), poll_root=root.poll, event=event)
    assert root.stdin is not None
    root.stdin.close()
    assert event.wait(30)
    watch.close()
    assert watch.first is not None
    assert (watch.first.exit_code, watch.first.title) == (7, "API server")


OWN = RootCause("ValueError: x", "Worker_TP0", 3)
REPORTED = RootCause(
    "Exception: WorkerProc initialization failed", "EngineCore", 2, second_hand=True
)
COUNTED = RootCause(
    "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)",
    "VllmWorker-0",
    None,
    -9,
    second_hand=True,
)
KILLED = EndedProcess(30, "VLLM::Worker_TP0", -9)
TERMINATED = EndedProcess(30, "VLLM::Worker_TP0", -15)
STRUCK = EndedProcess(30, "VLLM::Worker_TP0", -9, out_of_memory=True)
ROOT = EndedProcess(10, "python -m vllm", 1, root=True)


@pytest.mark.parametrize(
    ("logged", "seen", "return_code", "text"),
    [
        (OWN, KILLED, 1, "ValueError: x"),
        (COUNTED, KILLED, 1, COUNTED.text),
        (REPORTED, TERMINATED, 1, REPORTED.text),
        (REPORTED, ROOT, 1, REPORTED.text),
        (
            REPORTED,
            KILLED,
            1,
            (
                "VLLM::Worker_TP0 (pid 30) logged no error: killed by SIGKILL (often the kernel's"
                " out-of-memory killer). Exception: WorkerProc initialization failed"
            ),
        ),
        (
            None,
            STRUCK,
            1,
            (
                "VLLM::Worker_TP0 (pid 30) logged no error: killed by SIGKILL (the kernel's"
                " out-of-memory killer struck meanwhile)"
            ),
        ),
        (None, ROOT, 1, "API server logged no error: exit status 1"),
        (
            None,
            None,
            -9,
            "API server logged no error: killed by SIGKILL (often the kernel's out-of-memory killer)",
        ),
        (
            None,
            EndedProcess(30, "VLLM::EngineCore", None),
            None,
            "VLLM::EngineCore (pid 30) logged no error: ended",
        ),
        (None, None, None, "no process logged a cause"),
    ],
)
def test_the_logs_words_and_what_was_seen(
    logged: RootCause | None, seen: EndedProcess | None, return_code: int | None, text: str
) -> None:
    assert explained(logged, seen, return_code).text == text
