"""Work that no line of the log shows: compilers that compute, caches that grow."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3perf.engine import silent_work
from k3perf.engine.silent_work import SilentWork, cache_folders

BUSY = "while True: pass"
IDLE = "import time; time.sleep(600)"
CHILD_BUSY = (
    "import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-S', '-c',"
    " 'sum(range(3_000_000))'])"
)

Start = Callable[[str, str], int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start Python code under a program's name; gives its pid."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(name: str, code: str) -> int:
        program = tmp_path / f"bin{len(running)}" / name
        program.parent.mkdir()
        program.symlink_to(Path(sys.executable).resolve())
        process = subprocess.Popen([str(program), "-S", "-E", "-c", code])
        running.append(process)
        while Path(f"/proc/{process.pid}/comm").read_text().strip() != name[:15]:
            time.sleep(0.01)
        return process.pid

    yield begin
    for process in running:
        process.kill()
        process.wait()


def seen_within(work: SilentWork, limit_s: float) -> str:
    end_s = time.monotonic() + limit_s
    while not (seen := work.seen()) and time.monotonic() < end_s:
        time.sleep(0.05)
    return seen


@pytest.mark.parametrize(
    "name", ["ptxas", "cicc", "nvcc", "cc1plus", "ninja", "clang++", "x86_64-linux-gnu-g++"]
)
def test_a_compiler_that_computes_is_progress(name: str, start: Start) -> None:
    pid = start(name, BUSY)
    work = SilentWork(lambda: (os.getpid(), pid), ())
    assert work.seen() == ""  # the first look has nothing to compare with
    assert str(pid) in seen_within(work, 30)


def test_a_builder_whose_children_compute_is_progress(start: Start) -> None:
    pid = start("ninja", CHILD_BUSY)
    work = SilentWork(lambda: (pid,), ())
    work.seen()
    assert str(pid) in seen_within(work, 60)


def test_a_compiler_that_waits_is_not_progress(start: Start) -> None:
    pid = start("ptxas", IDLE)
    work = SilentWork(lambda: (pid,), ())
    time.sleep(0.3)  # its own start
    work.seen()
    assert seen_within(work, 1.5) == ""


def test_another_busy_process_is_not_progress(start: Start) -> None:
    pid = start("python-worker", BUSY)
    work = SilentWork(lambda: (pid,), ())
    work.seen()
    assert seen_within(work, 1.0) == ""


def test_a_compiler_that_is_new_is_progress(start: Start) -> None:
    pids: list[int] = []
    work = SilentWork(lambda: pids, ())
    assert work.seen() == ""
    pids.append(start("cc1plus", IDLE))
    assert "cc1plus" in work.seen()
    assert work.seen() == ""


def test_a_cache_that_grows_is_progress(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    old = cache / "old"
    old.mkdir(parents=True)
    (old / "kernel.cubin").write_bytes(b"x" * 100)
    for path in (old / "kernel.cubin", old, cache):
        os.utime(path, ns=(0, 0))
    time.sleep(0.05)
    work = SilentWork(tuple, (cache, tmp_path / "missing"))
    assert work.seen() == ""
    assert work.seen() == ""
    new = cache / "new"
    new.mkdir()
    (new / "a.cubin").write_bytes(b"x")
    assert str(cache) in work.seen()
    assert work.seen() == ""
    with (new / "a.cubin").open("ab") as handle:  # a download, a build's output
        handle.write(b"x" * 1000)
    assert str(cache) in work.seen()
    (new / "a.cubin").unlink()  # what is cleaned up is not progress
    assert work.seen() == ""


def test_a_folder_that_takes_too_long_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = SilentWork(tuple, (tmp_path,))
    work.seen()
    monkeypatch.setattr(silent_work, "_LONGEST_WALK_S", -1.0)
    (tmp_path / "new").write_bytes(b"x")
    assert work.seen() == ""


def test_folders_follow_the_engines_environment() -> None:
    folders = cache_folders(
        {
            "HOME": "/home/k3",
            "VLLM_CACHE_ROOT": "/c/vllm",
            "FLASHINFER_WORKSPACE_BASE": "/c/fi",
            "TRITON_CACHE_DIR": "/c/t",
        }
    )
    assert Path("/c/vllm") in folders
    assert Path("/c/fi/.cache/flashinfer") in folders
    assert Path("/c/t") in folders
    assert Path("/home/k3/.cache/huggingface") in folders
    assert Path("/home/k3/.cache/vllm") not in folders
