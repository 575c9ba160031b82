"""POSIX shared memory of an engine: which files in /dev/shm are its own, and their
removal once its processes have ended.

vLLM's processes talk through such files and semaphores, and a process that is killed
never unlinks its own: 190 MB a time on the CPU backend. The kernel does not say who
made a file, and an unused one may still be another program's: a parent hands a
semaphore's name to a child that is still starting and lets go of it. So a file counts
as the engine's only if it was not there before the engine and was mapped or open in one
of the engine's own processes during a look; nothing is ever concluded from a
name, an age or an absence of users. While an engine starts, inotify(7) says when a file
appears, and its processes are looked at then and there: a process that dies soon after
has been seen with its file.

Files are compared by inode, not by name: sem_open(3) maps a new semaphore under a
temporary name and links it to its own afterwards, so the maker's mapping shows a
deleted file.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from k3perf.engine.process_tree import process_list

_DIRECTORY: Final = Path("/dev/shm")  # noqa: S108 - the kernel's own place for it
_MARK: Final = f"{_DIRECTORY}/"
_IN_CREATE: Final = 0x100  # sys/inotify.h; a hard link counts as created too
_EVENTS_BYTES: Final = 65536


def inodes_used_by(pids: Iterable[int]) -> frozenset[int]:
    """Inodes of files under /dev/shm that these processes have mapped or open."""
    found: set[int] = set()
    mark = _MARK.encode()
    for pid in pids:
        with suppress(OSError):
            mappings = Path(f"/proc/{pid}/maps").read_bytes()
            # thousands of lines, and most processes have none of these
            if mark in mappings:
                found.update(
                    int(line.split(maxsplit=5)[4]) for line in mappings.splitlines() if mark in line
                )
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - hundreds of entries, names are enough
                with suppress(OSError):
                    descriptor = f"/proc/{pid}/fd/{name}"
                    if os.readlink(descriptor).startswith(_MARK):  # noqa: PTH115 - a third of the cost of Path.readlink
                        found.add(Path(descriptor).stat().st_ino)
    return frozenset(found)


def files_present() -> dict[int, str]:
    """Inode to path of this user's files in /dev/shm."""
    found = {}
    with suppress(OSError):
        for path in _DIRECTORY.iterdir():
            with suppress(OSError):
                status = path.stat()
                if status.st_uid == os.getuid():
                    found[status.st_ino] = str(path)
    return found


class SharedMemoryRecord:
    """What one engine made, where it was seen. Made before the engine's start;
    ``close`` it at the end.

    ``on_seen`` gets inodes that were not seen before: the guardian removes the files if
    this process cannot.
    """

    def __init__(self) -> None:
        self.on_seen: Callable[[Iterable[int]], None] = lambda _inodes: None
        self._before = frozenset(files_present())
        self._seen: set[int] = set()
        self._watch = _watch_directory()

    def look(self, pids: Iterable[int]) -> None:
        """Remember what these processes, all of them the engine's, use now."""
        new = inodes_used_by(pids) - self._before - self._seen
        if new:
            self._seen |= new
            self.on_seen(new)

    def wait(self, duration_s: float, pids: Callable[[], Iterable[int]]) -> None:
        """Let time pass, and look whenever a file appears. Where the kernel has no
        inotify to give, it only lets time pass.
        """
        if self._watch is None:
            time.sleep(duration_s)
            return
        end_s = time.monotonic() + duration_s
        while (left_s := end_s - time.monotonic()) > 0:
            if select.select([self._watch], [], [], left_s)[0]:
                os.read(self._watch, _EVENTS_BYTES)
                self.look(pids())

    def remove(self) -> tuple[str, ...]:
        """Unlink the engine's files that are no longer used. Call it when the tree is
        gone. Returns what was removed.
        """
        present = files_present()
        wanted = self._seen & set(present)
        removed = sorted(
            present[inode] for inode in wanted - inodes_used_by(process_list() if wanted else ())
        )
        for name in removed:
            Path(name).unlink(missing_ok=True)
        return tuple(removed)

    def close(self) -> None:
        """Give the watch back."""
        if self._watch is not None:
            os.close(self._watch)
            self._watch = None


def _watch_directory() -> int | None:
    """An inotify descriptor, readable when a file appears. None: unavailable."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, bytes(_DIRECTORY), _IN_CREATE) < 0:
        os.close(descriptor)
        return None
    return descriptor
