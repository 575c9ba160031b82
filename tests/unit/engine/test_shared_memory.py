"""Whose shared memory is whose: by inode, and never a living process's."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.processes import WAIT_S

from k3perf.engine.shared_memory import SharedMemoryRecord, files_present, inodes_used_by

# a spawn-context semaphore and a shared-memory block, as vLLM's processes make them;
# their names are printed
MAKER = """
import multiprocessing, sys
from multiprocessing import shared_memory
lock = multiprocessing.get_context("spawn").Lock()
block = shared_memory.SharedMemory(create=True, size=4096)
print("/dev/shm/sem." + lock._semlock.name.lstrip("/"), "/dev/shm/" + block.name, flush=True)
sys.stdin.read()
"""


class Maker:
    """``start`` hears the pid before anything is made."""

    def __init__(self, start: list[int] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if start is not None:
            start.append(self.process.pid)
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
def record() -> Iterator[SharedMemoryRecord]:
    """Of an engine whose files are all made after it."""
    made = SharedMemoryRecord()
    yield made
    made.close()


@pytest.fixture
def stranger() -> Iterator[Path]:
    """A semaphore's place in the file system, with a name as multiprocessing gives it;
    not made yet.
    """
    path = Path(f"/dev/shm/sem.mp-test{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


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


def test_a_file_that_is_open_and_not_mapped_is_seen() -> None:
    path = Path(f"/dev/shm/k3perf-test-{os.getpid()}")
    try:
        with path.open("wb"):
            assert path.stat().st_ino in inodes_used_by([os.getpid()])
        assert path.stat().st_ino not in inodes_used_by([os.getpid()])
    finally:
        path.unlink()


def test_a_file_elsewhere_is_nobodys_shared_memory(tmp_path: Path) -> None:
    """Another file system counts its inodes on its own: the same number would be
    another file.
    """
    shared, elsewhere = Path(f"/dev/shm/k3perf-test-{os.getpid()}"), tmp_path / "model"
    try:
        with ExitStack() as mapped:
            for path in (shared, elsewhere):
                path.write_bytes(b"x")
                file = mapped.enter_context(path.open("rb"))
                mapped.enter_context(mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ))
            used = inodes_used_by([os.getpid()])
            assert shared.stat().st_ino in used
            assert elsewhere.stat().st_ino not in used
    finally:
        shared.unlink()


def test_what_was_seen_is_removed_when_its_maker_is_gone(
    record: SharedMemoryRecord, maker: Maker
) -> None:
    record.look(maker.children())
    assert record.remove() == ()  # still in use
    assert all(path.exists() for path in maker.files)
    maker.kill()
    assert set(record.remove()) == {str(path) for path in maker.files}
    assert not any(path.exists() for path in maker.files)


def test_a_file_of_another_program_that_nobody_uses_yet_stays(
    record: SharedMemoryRecord, maker: Maker, stranger: Path
) -> None:
    """A parent passes a semaphore's name to a child that is still starting: for seconds
    no process uses it.
    """
    record.look(maker.children())
    maker.kill()
    stranger.touch()
    assert str(stranger) not in record.remove()
    assert stranger.exists()


def test_a_file_that_was_there_before_stays_though_the_engine_used_it(maker: Maker) -> None:
    record = SharedMemoryRecord()
    record.look(maker.children())
    maker.kill()
    assert record.remove() == ()
    assert all(path.exists() for path in maker.files)
    record.close()


def test_what_nobody_saw_stays(record: SharedMemoryRecord, maker: Maker) -> None:
    maker.kill()
    assert record.remove() == ()
    assert all(path.exists() for path in maker.files)


def test_a_maker_that_dies_soon_is_seen_with_its_files(record: SharedMemoryRecord) -> None:
    """Nothing but the watch looks: the maker is ended as soon as the watch has seen
    both files.
    """
    ended, both_seen = threading.Event(), threading.Event()
    inodes: set[int] = set()

    def hear(new: Iterable[int]) -> None:
        inodes.update(new)
        if len(inodes) >= 2:
            both_seen.set()

    record.on_seen = hear
    pids: list[int] = []

    def supervise() -> None:
        while not ended.is_set():
            record.wait(0.5, lambda: pids)

    thread = threading.Thread(target=supervise)
    thread.start()
    short_lived = Maker(start=pids)
    assert both_seen.wait(WAIT_S)
    short_lived.kill()
    ended.set()
    thread.join()
    try:
        assert set(record.remove()) == {str(path) for path in short_lived.files}
    finally:
        for path in short_lived.files:
            path.unlink(missing_ok=True)
