"""The results file and the baseline files under a failing disk and under SIGKILL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from k3perf.errors import ExitStatus, MeasurementInvalid
from k3perf.store.atomic import replace_file
from k3perf.store.results import ResultWriter, read_results
from tests.faults.matrix import Kind, of
from tests.faults.test_round_faults import CLEAN, session

ROWS = {fault.name: fault for fault in of(Kind.STORE)}


def expect_invalid(name: str, error: MeasurementInvalid) -> None:
    assert re.search(ROWS[name].shows, str(error)), str(error)
    assert error.exit_status is ROWS[name].exit_status is ExitStatus.INVALID


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; skip where none can be mounted."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield directory
    subprocess.run(["/bin/umount", str(directory)], check=True)


def test_a_disk_that_fills_up_keeps_what_was_whole(small_disk: Path) -> None:
    path = small_disk / "results.jsonl"
    written = 0
    with ResultWriter(path, run_id="r") as writer:
        writer.session(session())
        with pytest.raises(MeasurementInvalid) as caught:  # noqa: PT012 - which of the writes fails is the disk's affair
            for written in range(1000):
                writer.round("s", replace(CLEAN, round_index=written))
    expect_invalid("disk_full", caught.value)
    results = read_results(path)
    assert len(results.sessions["s"].rounds) == written
    assert path.read_bytes().endswith(b"\n")


def test_a_device_without_room() -> None:
    with pytest.raises(MeasurementInvalid) as caught:
        ResultWriter(Path("/dev/full"), run_id="r")
    expect_invalid("disk_full", caught.value)


def test_a_file_in_the_directorys_place(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(MeasurementInvalid) as caught:
        ResultWriter(tmp_path / "results" / "results.jsonl", run_id="r")
    expect_invalid("results_directory_blocked", caught.value)


WRITE = """
import itertools, sys
from dataclasses import replace
from pathlib import Path
from tests.faults.test_round_faults import CLEAN, session
from k3perf.store.results import ResultWriter
writer = ResultWriter(Path(sys.argv[1]), run_id="r")
writer.session(session())
print("go", flush=True)
for index in itertools.count():
    writer.round("s", replace(CLEAN, round_index=index))
"""
REPLACE = """
import sys
from pathlib import Path
from k3perf.store.atomic import replace_file
print("go", flush=True)
while True:
    for letter in "ab":
        replace_file(Path(sys.argv[1]), letter * 300_000)
"""


def kill_while_it_writes(code: str, path: Path, after_s: float) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"go\n"
    time.sleep(after_s)
    process.kill()
    process.communicate()


@pytest.mark.parametrize("after_s", [0.011, 0.037, 0.083])
def test_killed_in_the_middle_of_a_record(tmp_path: Path, after_s: float) -> None:
    path = tmp_path / "results.jsonl"
    kill_while_it_writes(WRITE, path, after_s)
    before = len(read_results(path).sessions["s"].rounds)
    with ResultWriter(path, run_id="r") as writer:
        writer.round("s", replace(CLEAN, round_index=before))
    after = read_results(path)
    assert after.sessions["s"].rounds == tuple(
        replace(CLEAN, round_index=index) for index in range(before + 1)
    )
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("after_s", [0.011, 0.037, 0.083])
def test_killed_while_a_file_is_replaced(tmp_path: Path, after_s: float) -> None:
    path = tmp_path / "baseline.json"
    replace_file(path, "b" * 300_000)
    kill_while_it_writes(REPLACE, path, after_s)
    text = path.read_text()
    assert text in ("a" * 300_000, "b" * 300_000)
    replace_file(path, "next")
    assert list(tmp_path.iterdir()) == [path]
