"""One suite at a time per device: a lock file with the holder's pid, host and since
when.

The lock itself is flock(2) on that file, so a crash never leaves it held; the text in
the file only says who holds it. A guardian shares the open file, so after a ``kill -9``
of the holder the lock stays taken until the holder's engines are gone too, and the file
goes with it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import stat
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
_SETTLE_S: Final = (
    # for which another user may be between making a folder or file and opening it to
    # all users
    1.0
)
_HOLDER_BYTES: Final = 1 << 16
_FOR_EVERYBODY: Final = 0o1777  # every user makes files, and removes only their own
# O_NONBLOCK: whatever another user put there, opening it does not wait
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


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
        """The very process that took the lock still runs on this host (a reused pid has
        another start time).
        """
        row = read_row(self.pid)
        return row is not None and row.start_ticks == self.start_ticks and row.running

    @property
    def text(self) -> str:
        """``pid 12 on host x since ... (command)``."""
        return (
            f"pid {self.pid} on {self.host} since {self.since_utc}"
            f" ({self.command or 'command unknown'})"
        )


def default_lock_directory() -> Path:
    """``/tmp/k3perf-locks`` (or under the machine's own temporary directory); shared by
    every user of the machine.
    """
    return Path(tempfile.gettempdir()) / "k3perf-locks"


def lock_path(device_key: str, directory: Path | None = None) -> Path:
    """The lock file of a device key such as ``cpu`` or ``nvidia-0``."""
    return (directory or default_lock_directory()) / (
        re.sub(r"[^A-Za-z0-9._-]", "_", device_key) + ".lock"
    )


def read_holder(path: Path) -> LockHolder | None:
    """What the lock file says; None when it is missing, empty or without sense. Raises
    PreflightError when a run could not use it either.
    """
    try:
        descriptor = _open_existing(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        return _holder_in(descriptor)
    finally:
        os.close(descriptor)


def _holder_in(descriptor: int) -> LockHolder | None:
    try:
        holder = LockHolder(**json.loads(os.pread(descriptor, _HOLDER_BYTES, 0)))
    except (OSError, ValueError, TypeError, RecursionError):  # every user can write the file
        return None
    return holder if isinstance(holder.pid, int) else None


@contextmanager
def device_lock(device_key: str, *, directory: Path | None = None) -> Iterator[LockHolder | None]:
    """Hold a device while the block runs. Yields the dead holder whose stale lock was
    taken over, or None.

    Raises PreflightError, naming the holder, when another suite has the device.
    """
    path = lock_path(device_key, directory)
    descriptor = _acquire(path, device_key)
    guardian: Guardian | None = None
    try:
        stale = _holder_in(descriptor)
        _write_holder(descriptor)
        guardian = Guardian(
            f"{process_identity(os.getpid())}-", paths=(path,), inherited=(descriptor,)
        )
        yield stale
    finally:
        with suppress(OSError):
            os.ftruncate(descriptor, 0)  # a file that stays names no holder
        with suppress(
            OSError
        ):  # another user's file, from a suite of theirs that was killed: it stays, and is free
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
            holder = _holder_in(descriptor)
            os.close(descriptor)
            if holder is not None and not holder.alive and time.monotonic() < end_s:
                time.sleep(_POLL_S)  # its guardian is still ending its engines
                continue
            who = (
                holder.text
                if holder is not None
                else "another process (the lock file does not say which)"
            )
            raise PreflightError(
                f"device {device_key!r} is in use by another suite: {who}. Wait for it or end it;"
                f" lock file {path}"
            ) from None
        if _still_there(path, descriptor):
            return descriptor
        # the holder before us removed the file between our open and our lock
        os.close(descriptor)


def _open(path: Path) -> int:
    """The lock file, which every user of the machine can take; made where there is
    none. Raises PreflightError when it cannot be used.
    """
    end_s = time.monotonic() + _SETTLE_S
    while True:
        try:
            _open_directory_to_all(path.parent)
            return _open_or_make(path)
        except OSError as error:
            if not isinstance(error, PermissionError) or time.monotonic() >= end_s:
                raise _unusable(path, error) from error
            time.sleep(_POLL_S)


def _open_or_make(path: Path) -> int:
    while True:
        with suppress(FileNotFoundError):
            return _open_existing(path)
        with suppress(FileExistsError):
            descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask took
            return descriptor


def _open_existing(path: Path) -> int:
    """Without O_CREAT: kernels with fs.protected_regular refuse that for another user's
    file in a directory of all users. Never through a link of either kind: in such a
    folder one would let another user have another file overwritten.
    """
    descriptor = os.open(path, _FLAGS)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        why = "it is not a regular file"
    elif status.st_nlink > 1:  # 0: its holder removed it just now
        why = f"the same file has {status.st_nlink} names"
    else:
        return descriptor
    os.close(descriptor)
    raise _refusal(path, why)


def _unusable(path: Path, error: OSError) -> PreflightError:
    if error.errno == errno.ELOOP:
        return _refusal(path, "it is a link, which is not followed")
    if error.errno == errno.ENXIO:  # a socket
        return _refusal(path, "it is not a regular file")
    # another TMPDIR would be another lock, and two suites would use the device
    if os.access(path.parent, os.W_OK | os.X_OK):
        return _refusal(
            path, str(error), f"every user must be able to write it: chmod 666 {path}, by its owner"
        )
    return _refusal(
        path,
        str(error),
        f"every user must be able to write in {path.parent}: ask its owner for chmod 1777",
    )


def _refusal(
    path: Path, why: str, advice: str = "remove it, or ask its owner to"
) -> PreflightError:
    return PreflightError(f"the lock file {path} cannot be used: {why}; {advice}")


def _open_directory_to_all(directory: Path) -> None:
    """Made where there is none. One of this user's gets its mode, be it new (the umask
    took some) or of an earlier release; another user's is theirs to open, and one
    behind a link is left as it is.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        directory.mkdir()
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # a link, or another user's: whether it serves, the lock file's opening tells
        return
    try:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != _FOR_EVERYBODY:
            os.fchmod(descriptor, _FOR_EVERYBODY)
    finally:
        os.close(descriptor)


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
