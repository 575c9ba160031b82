from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from k3perf.store.atomic import replace_file


def test_replaces_whole_and_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "baseline.json"
    replace_file(path, "one")
    path.chmod(0o640)
    replace_file(path, b"two")
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_failure_at_any_step_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "baseline.json"
    replace_file(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_file(path, "text")
        assert os.read(reading, 10) == b"text"
    finally:
        os.close(reading)
    assert path.is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]
