"""The guardian against plain processes: it acts on the harness's death alone, on what
is marked alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.processes import WAIT_S

from k3perf.engine.guardian import Guardian
from k3perf.engine.process_tree import ENGINE_ID_VARIABLE, read_row

HARNESS = """
import os, subprocess, sys
from pathlib import Path
from k3perf.engine.guardian import Guardian
guardian = Guardian("mine-", paths=[Path(sys.argv[1])])
def sleeper(mark):
    return subprocess.Popen(["sleep", "600"], env={**os.environ, "K3PERF_ENGINE_ID": mark}, stdout=subprocess.DEVNULL).pid
session = subprocess.Popen(["sleep", "600"], env={}, stdout=subprocess.DEVNULL, start_new_session=True).pid
guardian.add_session(session)
print(guardian.pid, session, sleeper("mine-1"), sleeper("other-1"), flush=True)
sys.stdin.read()
guardian.release()
"""


def runs(pid: int) -> bool:
    row = read_row(pid)
    return row is not None and row.running


def wait(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def start(path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, [int(word) for word in process.stdout.readline().split()]


def test_a_killed_harness(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "deep").mkdir(parents=True)
    process, (guardian, session, marked, other) = start(scratch)
    try:
        assert all(runs(pid) for pid in (guardian, session, marked, other))
        os.kill(guardian, signal.SIGTERM)  # ignored: it outlives what ends its harness
        process.kill()
        process.communicate()
        wait(lambda: not runs(guardian))
        assert not runs(session)
        assert not runs(marked)
        assert runs(other)
        assert not scratch.exists()
    finally:
        os.kill(other, signal.SIGKILL)


def test_a_released_guardian_does_nothing(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process, (guardian, session, marked, other) = start(scratch)
    process.communicate("")
    assert process.returncode == 0
    try:
        assert not runs(guardian)
        assert runs(session)
        assert runs(marked)
        assert scratch.exists()
    finally:
        for pid in (session, marked, other):
            os.kill(pid, signal.SIGKILL)


def test_the_guardian_does_not_carry_the_mark_itself() -> None:
    guardian = Guardian("x-")
    try:
        assert ENGINE_ID_VARIABLE.encode() not in Path(f"/proc/{guardian.pid}/environ").read_bytes()
    finally:
        guardian.release()
    assert not runs(guardian.pid)


# the first thread of a guarded process ends alone: the process list has it as a zombie,
# and another thread goes on
HALF_ENDED = """
import os, subprocess, sys
from pathlib import Path
from k3perf.engine.guardian import Guardian
ENDS = "import ctypes, os, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); "
ENDS += "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)"
guardian = Guardian("mine-")
session = subprocess.Popen([sys.executable, "-S", "-c", ENDS], env={}, stdout=subprocess.DEVNULL, start_new_session=True).pid
guardian.add_session(session)
while ") Z " not in Path(f"/proc/{session}/stat").read_text():
    pass
print(guardian.pid, session, flush=True)
sys.stdin.read()
"""


def test_a_process_that_lost_its_first_thread_alone_is_ended_too() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HALF_ENDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    guardian, session = (int(word) for word in process.stdout.readline().split())
    try:
        assert runs(session)
        process.kill()
        process.communicate()
        wait(lambda: not runs(guardian))
        assert not runs(session)
    finally:
        with suppress(ProcessLookupError):
            os.kill(session, signal.SIGKILL)


NAMES_A_SESSION = """
import sys
from k3perf.engine.guardian import Guardian
guardian = Guardian("mine-")
guardian.add_session(int(sys.argv[1]))
print(guardian.pid, flush=True)
sys.stdin.read()
"""


def test_a_process_that_has_ended_and_that_nobody_collects_is_not_waited_for() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as ended:
        wait(lambda: not runs(ended.pid))
        command = [sys.executable, "-c", NAMES_A_SESSION, str(ended.pid)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        guardian = int(process.stdout.readline())
        process.kill()
        process.communicate()
        # half of its deadline for those that do not end
        wait(lambda: not runs(guardian))
        assert read_row(ended.pid) is not None


HOLDER = """
import os, subprocess, sys
from k3perf.engine.guardian import Guardian
HOLD = "import mmap, os, sys, time\\n"
HOLD += "kept = []\\n"
HOLD += "for path in sys.argv[1:]:\\n"
HOLD += "    handle = os.open(path, os.O_CREAT | os.O_RDWR); os.ftruncate(handle, 4096); kept.append(mmap.mmap(handle, 4096))\\n"
HOLD += "print('held', flush=True); time.sleep(600)"
guardian = Guardian("mine-")
engine = subprocess.Popen([sys.executable, "-c", HOLD, *sys.argv[1:]], env={**os.environ, "K3PERF_ENGINE_ID": "mine-1"}, stdout=subprocess.PIPE)
engine.stdout.readline()
handed_over = sys.argv[2] + "-handed-over"
open(handed_over, "wb").write(b"0" * 4096)
guardian.add_files([os.stat(handed_over).st_ino])
print(guardian.pid, flush=True)
sys.stdin.read()
"""


def test_only_shared_memory_that_the_engine_made_is_removed(tmp_path: Path) -> None:
    """What was there before, and what no process of the engine had, stays: another
    program may be about to use it.
    """
    earlier, made, strangers = (
        Path(f"/dev/shm/psm_{tmp_path.name}_{os.getpid()}_{name}")
        for name in ("earlier", "made", "strangers")
    )
    handed_over = Path(f"{made}-handed-over")
    earlier.write_bytes(b"\0" * 4096)
    command = [sys.executable, "-c", HOLDER, str(earlier), str(made)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        guardian = int(process.stdout.readline())
        strangers.write_bytes(b"\0" * 4096)
        process.kill()
        process.communicate()
        wait(lambda: not runs(guardian))
        assert not made.exists()
        assert (
            not handed_over.exists()
        )  # nobody used it at the end, but the harness had seen the engine with it
        assert earlier.exists()
        assert strangers.exists()
    finally:
        for path in (earlier, made, strangers, handed_over):
            path.unlink(missing_ok=True)
