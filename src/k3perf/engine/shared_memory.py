"""POSIX shared memory of an engine: which files in /dev/shm are its own, and their removal once nobody uses them.

vLLM's processes talk through such files, and a process that is killed never unlinks its own: 190 MB a time here. The kernel does not say who made a
file, so it is known by being mapped or open in a process of the tree when somebody looked. For an engine that died by itself before
a look, files of our own user with multiprocessing's prefixes that appeared during its life and that no visible process uses are taken for its own.
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
_PREFIXES: Final = ("psm_", "sem.mp-")  # of multiprocessing: shared memory and semaphores
_SETTLE_S: Final = 0.2  # between making a file and mapping it lie microseconds


def files_used_by(pids: Iterable[int]) -> frozenset[str]:
    """Files under /dev/shm that these processes have mapped or open."""
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            found |= {line.rpartition(" ")[2] for line in lines if f" {_DIRECTORY}/" in line}
        with suppress(OSError):
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    found.add(str(Path(descriptor.path).readlink()))
    return frozenset(name for name in found if name.startswith(f"{_DIRECTORY}/"))


def files_present() -> frozenset[str]:
    """Files of this user with multiprocessing's prefixes."""
    found = set()
    with suppress(OSError):
        for path in _DIRECTORY.iterdir():
            with suppress(OSError):
                if path.name.startswith(_PREFIXES) and path.stat().st_uid == os.getuid():
                    found.add(str(path))
    return frozenset(found)


class SharedMemoryRecord:
    """What one engine made, as far as it was seen."""

    def __init__(self) -> None:
        self._before = files_present()
        self._seen: set[str] = set()

    def look(self, pids: Iterable[int]) -> None:
        """Remember what these processes use now."""
        self._seen |= files_used_by(pids)

    def remove(self, *, died_unseen: bool) -> tuple[str, ...]:
        """Unlink the engine's files that nobody uses any more; call it when the tree is gone. Returns what was removed.

        ``died_unseen``: processes of the engine ended by themselves, so files may be among its own that no look has seen.
        """
        wanted = {name for name in self._seen if Path(name).exists()}
        suspects = files_present() - self._before - wanted if died_unseen else frozenset()
        if not wanted and not suspects:
            return ()
        used = files_used_by(process_list())
        if suspects - used:
            time.sleep(_SETTLE_S)
            used |= files_used_by(process_list())
        removed = sorted((wanted | suspects) - used)
        for name in removed:
            Path(name).unlink(missing_ok=True)
        return tuple(removed)
