"""Every process of one engine, wherever it was reparented to: found, frozen, ended and
proved gone, by pid alone.

A process belongs to the engine when its environment carries the engine's id, when it is
in the session that the engine's root opened, or when it descends from such a process.
Three marks, because each has a hole: a program may overwrite its environment block when
it sets its title (setproctitle does so unless SPT_NOENV is set), may open a session of
its own, or may lose its parent.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ENGINE_ID_VARIABLE: Final = "K3PERF_ENGINE_ID"
_PR_SET_CHILD_SUBREAPER: Final = 36
_POLL_S: Final = 0.02
_ORDERLY_POLL_S: Final = (
    # an orderly end takes a second or two, and each look reads the whole process list
    0.1
)
_SETTLED_S: Final = 1.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")
_IDENTITY: Final = re.compile(r"\d+-\d+")
# names as the process list shows them: 15 characters at most
_COMPILER: Final = re.compile(
    r"""
    (?:[\w.]+-)*                                        # x86_64-linux-gnu-
    (?:
        nvcc | cicc | ptxas | fatbinary | nvlink | cudafe\+\+ | tileiras | bin2c
      | hipcc | amdclang(?:\+\+)? | llc | opt
      | gcc | g\+\+ | cc | c\+\+ | cc1 | cc1plus | clang | clang\+\+ | icpx | icx
      | ld | ld\.\w+ | lld | gold | collect2 | as | lto1
      | ninja | make | gmake | cmake | cargo | rustc
    )
    (?:\.bin | \.real)?
    (?:-[\w.]*)?                                        # -12, -blackwell
  | (?:x86_64|aarch64)-linux-\w*                         # x86_64-linux-gnu-g++, cut
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One line of the process list; ``start_ticks`` tells a reused pid from the process
    that had it before.

    ``children_ticks``: CPU time of its children that have ended and been waited
    for, and of theirs.
    """

    pid: int
    parent_pid: int
    session_id: int
    state: str
    start_ticks: int
    thread_count: int
    own_ticks: int = 0
    children_ticks: int = 0

    @property
    def running(self) -> bool:
        """Some thread of it runs. A zombie with other threads has only lost its first
        one: it holds its memory and has no exit status yet.
        """
        return self.state != "Z" or self.thread_count > 1


def is_compiler(name: str) -> bool:
    """Whether a process of this name compiles, links or runs a build."""
    return _COMPILER.fullmatch(name) is not None


def new_engine_id() -> str:
    """An id that begins with this process's identity."""
    return f"{process_identity(os.getpid())}-{uuid.uuid4().hex[:12]}"


def start_root(
    argv: Sequence[str], environment: Mapping[str, str | None], log_path: Path
) -> subprocess.Popen[bytes]:
    """Start an engine's first process in a new session, its output in
    ``log_path``. A variable that is None is omitted. Raises OSError.
    """
    with log_path.open("wb") as log_file:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            env={key: value for key, value in environment.items() if value is not None},
            start_new_session=True,
        )


def become_subreaper() -> bool:
    """Make this process the one that orphans of its descendants are reparented to
    (prctl(2)); False where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0


def read_row(pid: int) -> ProcessRow | None:
    """The process-list line of ``pid``; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123  (half the cost of Path.read_bytes, hundreds a look)
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    ticks = [int(field) for field in fields[11:15]]
    return ProcessRow(
        pid,
        parent_pid=int(fields[1]),
        session_id=int(fields[3]),
        state=fields[0].decode(),
        start_ticks=int(fields[19]),
        thread_count=int(fields[17]),
        own_ticks=ticks[0] + ticks[1],
        children_ticks=ticks[2] + ticks[3],
    )


def process_list() -> dict[int, ProcessRow]:
    """Every process of the machine by pid."""
    rows = (read_row(int(entry.name)) for entry in list(os.scandir(_PROC)) if entry.name.isdigit())
    return {row.pid: row for row in rows if row is not None}


def process_identity(pid: int) -> str | None:
    """``pid-start_ticks``, which no later process can have. None when gone."""
    row = read_row(pid)
    return None if row is None else f"{row.pid}-{row.start_ticks}"


def command_of(pid: int) -> str:
    """A process's command line for messages, shortened. Empty if unreadable."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()[:200]


def name_of(pid: int) -> str:
    """A process's name (at most 15 characters). Empty if unreadable."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def marked_processes() -> dict[int, str]:
    """Every process on the machine that carries an engine's mark, with the identity
    (``pid-start_ticks``) of the harness that started it.
    """
    mark = f"{ENGINE_ID_VARIABLE}=".encode()
    found = {}
    for pid in process_list():
        with suppress(OSError):  # one that has ended has no environment any more
            for entry in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                owner = "-".join(entry[len(mark) :].decode(errors="replace").split("-")[:2])
                if entry.startswith(mark) and _IDENTITY.fullmatch(
                    owner
                ):  # of another form: not ours
                    found[pid] = owner
    return found


def find_members(
    engine_id: str, root_pid: int | None, strangers: dict[int, int] | None = None
) -> dict[int, ProcessRow]:
    """The engine's processes by pid, zombies included; never this process itself.

    ``strangers`` is kept between calls: pids with start times of processes that are not
    the engine's. Their environments, which are most of the cost, are not read again.
    """
    strangers = {} if strangers is None else strangers
    mark = f"{ENGINE_ID_VARIABLE}={engine_id}".encode()
    rows = process_list()
    rows.pop(os.getpid(), None)
    members = {
        pid
        for pid, row in rows.items()
        if root_pid in (pid, row.session_id)
        or (strangers.get(pid) != row.start_ticks and _is_marked(pid, mark))
    }
    grew = True
    while grew:
        children = {
            pid for pid, row in rows.items() if row.parent_pid in members and pid not in members
        }
        members |= children
        grew = bool(children)
    # A process between fork and exec still shows its parent's environment, so a young
    # one is looked at again.
    settled_ticks = _settled_ticks()
    strangers.clear()
    strangers.update(
        {
            pid: row.start_ticks
            for pid, row in rows.items()
            if pid not in members and row.start_ticks < settled_ticks
        }
    )
    return {pid: rows[pid] for pid in members}


def _settled_ticks() -> float:
    """A process that started before this has long become what it is."""
    return (time.clock_gettime(time.CLOCK_BOOTTIME) - _SETTLED_S) * _TICKS_PER_S


class ProcessTree:
    """The processes of one engine. ``root_pid`` is also the id of the session that it
    opened.

    Processes seen once stay known by pid and start time, so that one which changed
    session, title and parent between two looks is still found.
    """

    def __init__(self, engine_id: str, root_pid: int) -> None:
        self.engine_id = engine_id
        self.root_pid = root_pid
        self._known: dict[int, int] = {}
        self._strangers: dict[int, int] = {}
        self.compilers_seen: dict[tuple[int, int], tuple[int, str]] = {}
        """Compilers seen so far: pid and start to the time of the check (monotonic ns)
        and the name.
        """

    def rows(self) -> dict[int, ProcessRow]:
        """The processes now, zombies included. Reads the whole process list:
        milliseconds, so not inside measured windows.
        """
        found = find_members(self.engine_id, self.root_pid, self._strangers)
        for pid, start_ticks in list(self._known.items()):
            row = found.get(pid) or read_row(pid)
            if row is None or row.start_ticks != start_ticks:
                del self._known[pid]
            else:
                found[pid] = row
        self._note_compilers(found)
        self._known.update({pid: row.start_ticks for pid, row in found.items()})
        return found

    def _note_compilers(self, found: dict[int, ProcessRow]) -> None:
        """Every look at the tree is a look for compilers too: the sampler's, every few
        seconds of a round, costs nothing more. A young process may still have the name
        of the one that made it.
        """
        settled_ticks = _settled_ticks()
        for pid, row in found.items():
            new = self._known.get(pid) != row.start_ticks or row.start_ticks >= settled_ticks
            if new and is_compiler(name := name_of(pid)):
                self.compilers_seen.setdefault((pid, row.start_ticks), (time.monotonic_ns(), name))

    def pids(self) -> tuple[int, ...]:
        """Pids of the running processes, root first, then in order of their start."""
        running = [row for row in self.rows().values() if row.running]
        running.sort(key=lambda row: (row.pid != self.root_pid, row.start_ticks, row.pid))
        return tuple(row.pid for row in running)

    def signal(self, number: int) -> tuple[int, ...]:
        """Send one signal to every member; returns the pids it was sent to."""
        sent = []
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                sent.append(pid)
        return tuple(sent)

    def freeze(self) -> None:
        """SIGSTOP every process, parents first, and again for new children."""
        for _ in range(2):
            self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let every process go on (SIGCONT)."""
        self.signal(signal.SIGCONT)

    def reap(self) -> None:
        """Collect exit statuses of orphans that were reparented to this process; the
        root is left to its Popen object.
        """
        for pid in list(self._known):
            if pid != self.root_pid:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def kill(self, *, deadline_s: float, poll_root: Callable[[], object]) -> tuple[int, ...]:
        """SIGKILL every member until none runs; returns the pids that still run at the
        deadline (none, unless the kernel holds them).

        ``poll_root`` collects the root's exit status, so that it does not stay as a
        zombie.
        """
        end_s = time.monotonic() + deadline_s
        while True:
            self.signal(signal.SIGKILL)
            left = self.pids()
            # after the look: what it saw as gone has a status to collect now
            poll_root()
            self.reap()
            if not left or time.monotonic() >= end_s:
                return left
            time.sleep(_POLL_S)

    def wait_gone(self, *, deadline_s: float, poll_root: Callable[[], object]) -> bool:
        """Wait until no member runs; False when some still do at the deadline."""
        end_s = time.monotonic() + deadline_s
        while True:
            left = self.pids()
            poll_root()
            self.reap()
            if not left:
                return True
            if time.monotonic() >= end_s:
                return False
            time.sleep(_ORDERLY_POLL_S)
