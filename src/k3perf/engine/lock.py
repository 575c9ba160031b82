"""One suite at a time per device: a lock file with the holder's pid, host and since when.

The lock itself is flock(2) on that file, so a crash never leaves it held; the text in the file only says who holds it. A guardian shares
the open file, so after a ``kill -9`` of the holder the lock stays taken until the holder's engines are gone too, and the file goes with it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from k3perf.engine.guardian import Guardian
from k3perf.engine.process_tree import command_of, process_identity, read_row
from k3perf.errors import PreflightError

_CLEAN_UP_DEADLINE_S: Final = 35.0  # a guardian's own deadline, and a little
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who holds, or last held, a device."""

    pid: int
    start_ticks: int
    host: str
    since_utc: str
    command: str

    @property
    def alive(self) -> bool:
        """The very process that took the lock still runs on this host (a reused pid has another start time)."""
        row = read_row(self.pid)
        return row is not None and row.start_ticks == self.start_ticks and row.running

    @property
    def text(self) -> str:
        """``pid 12 on host x since ... (command)``."""
        return f"pid {self.pid} on {self.host} since {self.since_utc} ({self.command or 'command unknown'})"


def default_lock_directory() -> Path:
    """``/tmp/k3perf-locks`` (or under the machine's own temporary directory); shared by every user of the machine."""
    return Path(tempfile.gettempdir()) / "k3perf-locks"


def lock_path(device_key: str, directory: Path | None = None) -> Path:
    """The lock file of a device key such as ``cpu`` or ``nvidia-0``."""
    return (directory or default_lock_directory()) / (re.sub(r"[^A-Za-z0-9._-]", "_", device_key) + ".lock")


def read_holder(path: Path) -> LockHolder | None:
    """What the lock file says; None when it is missing, empty or unreadable."""
    try:
        return LockHolder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def device_lock(device_key: str, *, directory: Path | None = None) -> Iterator[LockHolder | None]:
    """Hold a device while the block runs. Yields the dead holder whose stale lock was taken over, or None.

    Raises PreflightError, naming the holder, when another suite has the device.
    """
    path = lock_path(device_key, directory)
    descriptor = _acquire(path, device_key)
    guardian: Guardian | None = None
    try:
        stale = read_holder(path)
        _write_holder(descriptor)
        guardian = Guardian(f"{process_identity(os.getpid())}-", paths=(path,), inherited=(descriptor,))
        yield stale
    finally:
        with suppress(OSError):  # another user's file, from a suite of theirs that was killed: it stays, and is free
            path.unlink(missing_ok=True)
        if guardian is not None:
            guardian.release()
        os.close(descriptor)


def _acquire(path: Path, device_key: str) -> int:
    end_s = time.monotonic() + _CLEAN_UP_DEADLINE_S
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            holder = read_holder(path)
            if holder is not None and not holder.alive and time.monotonic() < end_s:
                time.sleep(_POLL_S)  # its guardian is still ending its engines
                continue
            who = holder.text if holder is not None else "another process (the lock file does not say which)"
            raise PreflightError(
                f"device {device_key!r} is in use by another suite: {who}. Wait for it or end it; lock file {path}"
            ) from None
        if _still_there(path, descriptor):
            return descriptor
        os.close(descriptor)  # the holder before us removed the file between our open and our lock


def _open(path: Path) -> int:
    """The lock file, which every user of the machine can take; made where there is none. Never through a link: in a folder that everybody
    can write, a link would let somebody else have another file overwritten."""
    try:
        _make_directory(path.parent)
        while True:
            try:  # without O_CREAT: kernels with fs.protected_regular refuse that for another user's file in such a folder
                return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o666)
                    os.fchmod(descriptor, 0o666)  # whatever the umask took
                    return descriptor
    except OSError as error:
        why = "it is a link, which is not followed" if error.errno == errno.ELOOP else str(error)
        raise PreflightError(f"the lock file {path} cannot be opened: {why}; remove it, or set TMPDIR to another directory") from error


def _make_directory(directory: Path) -> None:
    if directory.is_dir():
        return
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o1777)  # mkdir's own mode would lose what the umask takes, and the next user could lock nothing


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _write_holder(descriptor: int) -> None:
    row = read_row(os.getpid())
    holder = LockHolder(
        pid=os.getpid(),
        start_ticks=row.start_ticks if row is not None else 0,
        host=socket.gethostname(),
        since_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command_of(os.getpid()),
    )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
