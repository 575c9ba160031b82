"""The guardian process: waits for the harness's death and then ends what it guarded.
Standard library only; run by path, never imported.

Arguments: the harness's pid, its start time in clock ticks, the engine-id prefix, then
paths to remove. On standard input come lines ``session N`` (a session id to end as
well), ``file N`` (an inode of /dev/shm to remove after it) and ``release`` (all is
ended, leave). End of input without ``release``, or the harness's process gone, means
that the harness died. SIGKILL of the harness, of its process group and a closed
terminal all end here.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

VARIABLE = "K3PERF_ENGINE_ID="
KILL_DEADLINE_S = 30.0
QUIET_LOOKS = 3
PROC = Path("/proc")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the kernel's own place for it


def _stat_fields(pid: int) -> list[bytes] | None:
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    return text[text.rindex(b")") + 2 :].split()


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir(PROC) if entry.name.isdigit()]


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        return any(
            part.startswith(mark)
            for part in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        )
    except OSError:
        return False


def _members(mark: bytes, sessions: set[int]) -> set[int]:
    """Pids that carry the mark or live in a guarded session, with their descendants;
    without this process and those that have ended: a zombie with more than one thread
    has only lost its first one.
    """
    rows = {
        pid: fields
        for pid in _all_pids()
        if pid != os.getpid() and (fields := _stat_fields(pid)) is not None
    }
    found = {
        pid for pid, fields in rows.items() if int(fields[3]) in sessions or _is_marked(pid, mark)
    }
    grew = True
    while grew:
        children = {
            pid for pid, fields in rows.items() if int(fields[1]) in found and pid not in found
        }
        found |= children
        grew = bool(children)
    return {pid for pid in found if rows[pid][0] != b"Z" or int(rows[pid][17]) > 1}


def _shared_memory(pids: Iterable[int]) -> set[int]:
    """Inodes: a semaphore's maker has it mapped under a name that is deleted (see
    shared_memory.py).
    """
    found: set[int] = set()
    for pid in pids:
        with suppress(OSError):
            lines = (PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
            found |= {int(line.split(maxsplit=5)[4]) for line in lines if " /dev/shm/" in line}
    return found


def _files_present() -> dict[int, str]:
    """Inode to path of this user's files in shared memory."""
    found = {}
    with suppress(OSError):
        for entry in list(os.scandir(SHARED_MEMORY)):
            with suppress(OSError):
                if entry.stat().st_uid == os.getuid():
                    found[entry.inode()] = entry.path
    return found


def _end_everything(
    mark: bytes, sessions: set[int], files: set[int], there_before: frozenset[int]
) -> None:
    """SIGKILL until several looks in a row find none; then unlink the shared memory
    that they were seen with, unless others use it.

    ``files``: inodes that the harness saw them with; ``there_before``: those that were
    there when guarding began, which are not theirs.
    """
    end_s = time.monotonic() + KILL_DEADLINE_S
    quiet = 0
    while quiet < QUIET_LOOKS and time.monotonic() < end_s:
        pids = _members(mark, sessions)
        for number in (
            signal.SIGSTOP,
            signal.SIGKILL,
        ):  # stopped ones make no more shared memory: what is seen then is all there is
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGSTOP:
                files |= _shared_memory(pids)
        quiet = 0 if pids else quiet + 1
        time.sleep(0.02)
    files -= there_before
    if files:
        files -= _shared_memory(_all_pids())
    for inode, path in _files_present().items() if files else ():
        if inode in files:
            _remove(path)


def _remove(path: str) -> None:
    if Path(path).is_dir() and not Path(path).is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            Path(path).unlink()


def _harness_released(harness_pid: int, harness_ticks: int, named: dict[bytes, set[int]]) -> bool:
    """Collect what it names. True: all is ended. False: it died."""
    try:
        harness = os.pidfd_open(harness_pid)
    except OSError:
        return False
    fields = _stat_fields(harness_pid)
    if fields is None or int(fields[19]) != harness_ticks:
        return False
    poller = select.poll()
    poller.register(harness, select.POLLIN)
    poller.register(0, select.POLLIN | select.POLLHUP)
    pending = b""
    while True:
        ready = {number for number, _ in poller.poll()}
        if 0 not in ready:
            return False
        chunk = os.read(0, 4096)
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line == b"release":
                return True
            kind, _, number = line.partition(b" ")
            named[kind].add(int(number))
        if not chunk:
            return False


def main() -> None:
    """Guard until released or needed."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGPIPE,
        signal.SIGTSTP,
    ):
        signal.signal(number, signal.SIG_IGN)
    harness_pid, harness_ticks, prefix = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    named: dict[bytes, set[int]] = {b"session": set(), b"file": set()}
    there_before = frozenset(_files_present())
    os.write(1, b"guarding\n")
    os.close(1)
    if not _harness_released(harness_pid, harness_ticks, named):
        _end_everything(
            (VARIABLE + prefix).encode(), named[b"session"], named[b"file"], there_before
        )
        for path in sys.argv[4:]:
            _remove(path)


if __name__ == "__main__":
    main()
