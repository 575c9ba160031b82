"""Waits, at no cost, for the death of any process that an engine cannot serve without,
and says how it died.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from k3perf.engine.cause_text import LONGEST_CAUSE
from k3perf.engine.process_tree import command_of
from k3perf.engine.root_cause import RootCause, describe_end

# helpers (resource trackers, compile workers) come and go; these do not
_NEEDED: Final = re.compile(r"EngineCore|Worker|APIServer|DPCoordinator")
_TITLE: Final = re.compile(r"VLLM::\S+")
# struct pidfd_info of linux/pidfd.h: mask, cgroup, eleven ids, the exit code
_PIDFD_INFO_BYTES: Final = 64
_PIDFD_GET_INFO: Final = (3 << 30) | (_PIDFD_INFO_BYTES << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT: Final = 1 << 3
_EXIT_CODE_TRIES: Final = 5
_EXIT_CODE_PAUSE_S: Final = 0.01
_STAT_EXIT_CODE: Final = 49  # of the fields behind the program's name


def oom_kill_count() -> int | None:
    """How often the kernel's out-of-memory killer has struck on this machine since
    boot. None where it does not say.
    """
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), None
    )


def describe_exit(return_code: int) -> str:
    """``Popen.returncode`` in words: ``exit status 1`` or ``signal SIGKILL``."""
    if return_code >= 0:
        return f"exit status {return_code}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-return_code).name}"
    return f"signal {-return_code}"


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A process that was seen to end.

    ``name`` is its command line or title, ``root`` marks the API server. ``exit_code``
    is as ``Popen.returncode`` counts, None where the kernel does not say.
    ``out_of_memory``: the kernel's out-of-memory killer struck on this machine since
    the watch began.
    """

    pid: int
    name: str
    exit_code: int | None
    out_of_memory: bool = False
    root: bool = False

    @property
    def text(self) -> str:
        """One sentence: which process, and how it ended."""
        how = "" if self.exit_code is None else f" with {describe_exit(self.exit_code)}"
        hint = "; the kernel's out-of-memory killer struck meanwhile" if self.out_of_memory else ""
        return f"process {self.pid} ({self.name[:80] or 'engine'}) ended{how}{hint}"

    @property
    def title(self) -> str:
        """A short name: vLLM's title of the process, or what it is."""
        title = _TITLE.match(self.name)
        return (
            title[0]
            if title is not None
            else ("API server" if self.root else self.name[:80] or "process")
        )

    @property
    def left_no_word(self) -> str:
        """The same as a cause, where the process left no word."""
        if self.out_of_memory and self.exit_code == -signal.SIGKILL:
            how = "killed by SIGKILL (the kernel's out-of-memory killer struck meanwhile)"
        else:
            how = "ended" if self.exit_code is None else describe_end(self.exit_code)
        return f"{self.title} (pid {self.pid}) logged no error: {how}"


def exit_code_of(descriptor: int, pid: int) -> int | None:
    """How an ended process ended, a child of this one or not. None where the kernel
    does not say.

    Its zombie says it until its parent has asked, from then on its pid descriptor does
    (Linux 6.15 and later).
    """
    for _ in range(_EXIT_CODE_TRIES):
        with suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{pid}/stat").read_bytes()
            fields = text[text.rindex(b")") + 2 :].split()
            if fields[0] == b"Z":
                return os.waitstatus_to_exitcode(int(fields[_STAT_EXIT_CODE]))
        request = bytearray(_PIDFD_INFO_BYTES)
        struct.pack_into("=Q", request, 0, _PIDFD_INFO_EXIT)
        try:
            fcntl.ioctl(descriptor, _PIDFD_GET_INFO, request)
        except OSError:
            return None
        mask, *_, status = struct.unpack_from("=QQ11Ii", request)
        if mask & _PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_EXIT_CODE_PAUSE_S)
    return None


def explained(
    logged: RootCause | None, seen: EndedProcess | None, return_code: int | None
) -> RootCause:
    """One cause from what the log says, which process was seen to end first, and how
    the API server ended.

    Each is None where there is nothing. A process's own words come first. Where another
    speaks for it, the signal that was seen says more.
    """
    killed = (
        seen is not None
        and (seen.exit_code or 0) < 0
        and seen.exit_code not in (-signal.SIGTERM, -signal.SIGINT)
    )
    if logged is not None and (
        not logged.second_hand or logged.exit_code is not None or not killed
    ):
        return logged
    if seen is not None and (killed or not seen.root):
        said = f". {logged.text}" if logged is not None else ""
        return RootCause(
            f"{seen.left_no_word}{said}"[:LONGEST_CAUSE],
            seen.title,
            seen.pid,
            seen.exit_code,
            second_hand=True,
        )
    if return_code is None:
        return RootCause("no process logged a cause", second_hand=True)
    return RootCause(
        f"API server logged no error: {describe_end(return_code)}",
        "API server",
        None,
        return_code,
        second_hand=True,
    )


class DeathWatch:
    """One thread in poll(2) on pid file descriptors. ``event`` is set at the first
    death, ``first`` says which process it was.
    """

    def __init__(
        self,
        root_pid: int,
        pids: Iterable[int],
        *,
        poll_root: Callable[[], int | None],
        event: threading.Event,
    ) -> None:
        self.event = event
        self.first: EndedProcess | None = None
        self._poll_root = poll_root
        self._root_pid = root_pid
        self._oom_before = oom_kill_count()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._closing = False
        self._names: dict[int, tuple[int, str]] = {}
        self._take(pids)
        self._thread = threading.Thread(target=self._watch, name="k3perf-death-watch", daemon=True)
        self._thread.start()

    @property
    def cause(self) -> str | None:
        """The first death in words. None before it."""
        return None if self.first is None else self.first.text

    @property
    def watched_pids(self) -> tuple[int, ...]:
        """The processes whose death ends the engine."""
        return tuple(pid for pid, _ in self._names.values())

    def add(self, pids: Iterable[int]) -> None:
        """Watch those of these processes too that the engine needs: while it starts
        they come one after the other.
        """
        if self._wake >= 0 and self._take(pids):
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """End the thread. Deaths from now on are expected ones."""
        if self._wake >= 0:
            self._closing = True
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            for descriptor in (*self._names, self._wake):
                os.close(descriptor)
            self._wake = -1

    def _take(self, pids: Iterable[int]) -> bool:
        """Open descriptors of unwatched needed processes. True if there were any."""
        known = set(self.watched_pids)
        new = False
        for pid in pids:
            name = command_of(pid) if pid not in known else ""
            if pid not in known and (pid == self._root_pid or _NEEDED.search(name)):
                try:
                    descriptor = os.pidfd_open(pid)
                except ProcessLookupError:
                    self._record(None, pid, name)
                    continue
                with self._lock:
                    self._names[descriptor] = (pid, name)
                new = True
        return new

    def _watch(self) -> None:
        ended: set[int] = set()
        while True:
            with self._lock:
                watched = [descriptor for descriptor in self._names if descriptor not in ended]
            poller = select.poll()
            for descriptor in (*watched, self._wake):
                poller.register(descriptor, select.POLLIN)
            now = [descriptor for descriptor, _ in poller.poll()]
            if self._closing:
                return
            if self._wake in now:
                os.eventfd_read(self._wake)
                now.remove(self._wake)
            # one death brings down the levels above it: of several seen at once, the
            # root's is the last to be a cause
            for descriptor in sorted(
                now, key=lambda entry: self._names[entry][0] == self._root_pid
            ):
                ended.add(descriptor)
                self._record(descriptor, *self._names[descriptor])

    def _record(self, descriptor: int | None, pid: int, name: str) -> None:
        if self.first is None:
            exit_code = self._poll_root() if pid == self._root_pid else None
            if exit_code is None and descriptor is not None:
                exit_code = exit_code_of(descriptor, pid)
            oom_now = oom_kill_count()
            struck = (
                oom_now is not None and self._oom_before is not None and oom_now > self._oom_before
            )
            self.first = EndedProcess(pid, name, exit_code, struck, pid == self._root_pid)
        self.event.set()
