"""Whose shared memory is whose: by inode, and never a living process's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3perf.engine.shared_memory import SharedMemoryRecord, files_present, inodes_used_by

# a spawn-context semaphore and a shared-memory block, as vLLM's processes make them; their names are printed
MAKER = """
import multiprocessing, sys
from multiprocessing import shared_memory
lock = multiprocessing.get_context("spawn").Lock()
block = shared_memory.SharedMemory(create=True, size=4096)
print("/dev/shm/sem." + lock._semlock.name.lstrip("/"), "/dev/shm/" + block.name, flush=True)
sys.stdin.read()
"""


class Maker:
    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.files = [Path(name) for name in self.process.stdout.readline().split()]

    def children(self) -> list[int]:
        """The maker and its resource tracker."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [self.process.pid, *map(int, path.read_text().split())]

    def kill(self) -> None:
        """As an engine is killed: the resource tracker, which would clean up, first."""
        for pid in reversed(self.children()):
            subprocess.run([sys.executable, "-c", f"import os; os.kill({pid}, 9)"], check=True)
        self.process.communicate()


@pytest.fixture
def maker() -> Iterator[Maker]:
    made = Maker()
    yield made
    if made.process.poll() is None:
        made.kill()
    for path in made.files:
        path.unlink(missing_ok=True)


def test_a_semaphore_and_a_block_are_seen_in_their_maker(maker: Maker) -> None:
    assert {path.stat().st_ino for path in maker.files} <= inodes_used_by([maker.process.pid])
    assert {str(path) for path in maker.files} <= set(files_present().values())


def test_what_was_seen_is_removed_when_its_maker_is_gone(maker: Maker) -> None:
    record = SharedMemoryRecord()
    record.look(maker.children())
    assert record.remove(died_unseen=False) == ()  # still in use
    assert all(path.exists() for path in maker.files)
    maker.kill()
    assert set(record.remove(died_unseen=False)) == {str(path) for path in maker.files}
    assert not any(path.exists() for path in maker.files)


def test_what_nobody_saw_is_removed_only_after_an_unseen_death() -> None:
    record = SharedMemoryRecord()
    maker, living = Maker(), Maker()
    try:
        maker.kill()
        assert record.remove(died_unseen=False) == ()
        removed = set(record.remove(died_unseen=True))
        assert {str(path) for path in maker.files} <= removed
        assert all(path.exists() for path in living.files)  # a living process's are left alone, semaphores included
    finally:
        living.kill()
        for path in (*maker.files, *living.files):
            path.unlink(missing_ok=True)
