"""POSIX shared memory of an engine: which files in /dev/shm are its own, and their removal once nobody uses them.

vLLM's processes talk through such files and semaphores, and a process that is killed never unlinks its own: 190 MB a time on the CPU backend.
The kernel does not say who made a file, so it is known by being mapped or open in a process of the tree when somebody looked. For an engine
that died by itself before a look, files of our own user with multiprocessing's prefixes that appeared during its life and that no visible
process uses are taken for its own.

Files are compared by inode, not by name: sem_open(3) maps a new semaphore under a temporary name and links it to its own afterwards, so the
maker's mapping shows a deleted file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from k3perf.engine.process_tree import process_list

_DIRECTORY: Final = Path("/dev/shm")  # noqa: S108 - the kernel's own place for it
_MARK: Final = f"{_DIRECTORY}/"
_PREFIXES: Final = ("psm_", "sem.mp-")  # of multiprocessing: shared memory and semaphores
_SETTLE_S: Final = 0.2  # between making a file and mapping it lie microseconds


def inodes_used_by(pids: Iterable[int]) -> frozenset[int]:
    """Inodes of files under /dev/shm that these processes have mapped or open."""
    found: set[int] = set()
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                if _MARK in line:
                    found.add(int(line.split(maxsplit=5)[4]))
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - thousands of entries, names are enough
                with suppress(OSError):
                    descriptor = Path(f"/proc/{pid}/fd/{name}")
                    if str(descriptor.readlink()).startswith(_MARK):
                        found.add(descriptor.stat().st_ino)
    return frozenset(found)


def files_present(*, own_only: bool = True) -> dict[int, str]:
    """Inode to path of what is in /dev/shm; with ``own_only`` what this user made with multiprocessing's prefixes."""
    found = {}
    with suppress(OSError):
        for path in _DIRECTORY.iterdir():
            with suppress(OSError):
                status = path.stat()
                if not own_only or (path.name.startswith(_PREFIXES) and status.st_uid == os.getuid()):
                    found[status.st_ino] = str(path)
    return found


class SharedMemoryRecord:
    """What one engine made, as far as it was seen."""

    def __init__(self) -> None:
        self._before = set(files_present())
        self._seen: set[int] = set()

    def look(self, pids: Iterable[int]) -> None:
        """Remember what these processes use now."""
        self._seen |= inodes_used_by(pids)

    def remove(self, *, died_unseen: bool) -> tuple[str, ...]:
        """Unlink the engine's files that nobody uses any more; call it when the tree is gone. Returns what was removed.

        ``died_unseen``: processes of the engine ended by themselves, so files may be among its own that no look has seen.
        """
        present = files_present(own_only=False)
        wanted = self._seen & set(present)
        suspects = set(files_present()) - self._before - wanted if died_unseen else set()
        if not wanted and not suspects:
            return ()
        used = inodes_used_by(process_list())
        if suspects - used:
            time.sleep(_SETTLE_S)
            used |= inodes_used_by(process_list())
        removed = sorted(present[inode] for inode in (wanted | suspects) - used if inode in present)
        for name in removed:
            Path(name).unlink(missing_ok=True)
        return tuple(removed)
