"""Waits, at no cost, for the death of any process that an engine cannot serve without, and says how it died."""

from __future__ import annotations

import os
import re
import select
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from k3perf.engine.process_tree import command_of

# helpers (resource trackers, compile workers) come and go; these do not
_NEEDED: Final = re.compile(r"EngineCore|Worker|APIServer|DPCoordinator")


def oom_kill_count() -> int | None:
    """How often the kernel's out-of-memory killer has struck on this machine since boot; None where it does not say."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), None)


def describe_exit(return_code: int) -> str:
    """``Popen.returncode`` in words: ``exit status 1`` or ``signal SIGKILL``."""
    if return_code >= 0:
        return f"exit status {return_code}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-return_code).name}"
    return f"signal {-return_code}"


class DeathWatch:
    """One thread in poll(2) on pid file descriptors; ``event`` is set at the first death, ``cause`` says which process it was."""

    def __init__(self, root_pid: int, pids: Iterable[int], *, poll_root: Callable[[], int | None], event: threading.Event) -> None:
        self.event = event
        self.cause: str | None = None
        self._poll_root = poll_root
        self._root_pid = root_pid
        self._oom_before = oom_kill_count()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._names: dict[int, tuple[int, str]] = {}
        for pid in pids:
            name = command_of(pid)
            if pid == root_pid or _NEEDED.search(name):
                try:
                    self._names[os.pidfd_open(pid)] = (pid, name)
                except ProcessLookupError:
                    self._record(pid, name)
        self._thread = threading.Thread(target=self._watch, name="k3perf-death-watch", daemon=True)
        self._thread.start()

    @property
    def watched_pids(self) -> tuple[int, ...]:
        """The processes whose death ends the engine."""
        return tuple(pid for pid, _ in self._names.values())

    def close(self) -> None:
        """End the thread; deaths from now on are expected ones."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            for descriptor in (*self._names, self._wake):
                os.close(descriptor)
            self._wake = -1

    def _watch(self) -> None:
        poller = select.poll()
        for descriptor in (*self._names, self._wake):
            poller.register(descriptor, select.POLLIN)
        while True:
            ended = [descriptor for descriptor, _ in poller.poll()]
            if self._wake in ended:
                return
            # one death brings down the levels above it: of several seen at once, the root's is the last to be a cause
            for descriptor in sorted(ended, key=lambda entry: self._names[entry][0] == self._root_pid):
                poller.unregister(descriptor)
                self._record(*self._names[descriptor])

    def _record(self, pid: int, name: str) -> None:
        if self.cause is None:
            how = ""
            if pid == self._root_pid:
                return_code = self._poll_root()
                how = "" if return_code is None else f" with {describe_exit(return_code)}"
            oom_now = oom_kill_count()
            struck = oom_now is not None and self._oom_before is not None and oom_now > self._oom_before
            hint = "; the kernel's out-of-memory killer struck meanwhile" if struck else ""
            self.cause = f"process {pid} ({name[:80] or 'engine'}) ended{how}{hint}"
        self.event.set()
