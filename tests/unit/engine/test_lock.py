"""The lock's file and folder, where other users of the machine put what they like."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from k3perf.engine import lock
from k3perf.engine.lock import device_lock, lock_path, read_holder
from k3perf.errors import PreflightError


class NoGuardian:
    def __init__(self, *_: object, **__: object) -> None: ...

    def release(self) -> None: ...


@pytest.fixture(autouse=True)
def no_guardian(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guardian is a process; here is only the file."""
    monkeypatch.setattr(lock, "Guardian", NoGuardian)
    monkeypatch.setattr(lock, "_SETTLE_S", 0.3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "locks").mkdir()
    return tmp_path / "locks"


def take(folder: Path) -> None:
    with device_lock("cpu", directory=folder):
        pass


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def a_second_name(path: Path) -> None:
    (path.parent / "other").write_text("somebody's")
    path.hardlink_to(path.parent / "other")


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (os.mkfifo, "not a regular file"),
        (a_socket, "not a regular file"),
        (Path.mkdir, "Is a directory"),
        (a_second_name, "has 2 names"),
    ],
)
@pytest.mark.parametrize("use", [take, lambda folder: read_holder(lock_path("cpu", folder))])
def test_what_is_no_file_of_its_own_is_refused(
    place: Callable[[Path], None],
    why: str,
    use: Callable[[Path], object],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    place(lock_path("cpu", folder))
    with pytest.raises(PreflightError, match=rf"cpu\.lock cannot be used: .*{why}.*owner"):
        use(folder)
    if place is a_second_name:
        assert (folder / "other").read_text() == "somebody's"


@pytest.mark.parametrize(
    "text",
    [
        '{"pid": 1}',
        "[" * 60_000,
        "\xff",
        '{"pid":"../1","start_ticks":1,"host":"","since_utc":"","command":""}',
    ],
    ids=["too little", "too deep", "no text", "a path"],
)
def test_any_text_in_the_file_is_no_obstacle(folder: Path, text: str) -> None:
    lock_path("cpu", folder).write_text(text, encoding="latin-1")
    assert read_holder(lock_path("cpu", folder)) is None
    with device_lock("cpu", directory=folder) as stale:
        assert stale is None


def test_a_file_that_cannot_be_removed_names_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(1, f"another user's, missing_ok={missing_ok}", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with device_lock("cpu", directory=folder):
        assert read_holder(lock_path("cpu", folder)) is not None
    assert lock_path("cpu", folder).exists()
    assert read_holder(lock_path("cpu", folder)) is None
    with device_lock("cpu", directory=folder) as stale:
        assert stale is None


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_of_this_user_is_opened_to_all(folder: Path) -> None:
    folder.chmod(0o755)
    take(folder)
    assert mode_of(folder) == 0o1777


def test_a_folder_behind_a_link_keeps_its_mode(folder: Path) -> None:
    folder.chmod(0o700)
    link = folder.parent / "link"
    link.symlink_to(folder)
    take(link)
    assert mode_of(folder) == 0o700


def test_a_link_that_appears_while_the_folder_is_made_keeps_its_mode(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o700)
    link, mkdir = folder.parent / "link", os.mkdir

    def slow(path: Path, *arguments: int) -> None:
        if Path(path) == link and not link.is_symlink():
            link.symlink_to(folder)
        mkdir(path, *arguments)

    monkeypatch.setattr(os, "mkdir", slow)
    take(link)
    assert link.is_symlink()
    assert mode_of(folder) == 0o700


@pytest.fixture
def another_users_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``fchmod`` and ``open`` answer as for a folder of another user who has not opened
    it yet; the list says what was asked.
    """
    asked: list[str] = []
    real_open = os.open

    def closed(path: Path, flags: int, *rest: int) -> int:
        if (
            Path(path) == folder / "cpu.lock"
            and flags & os.O_CREAT
            and not (folder / "opened").exists()
        ):
            asked.append("make")
            if len(asked) == 2:
                (folder / "opened").touch()
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", closed)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    return asked


def test_a_folder_that_another_user_is_just_making_is_waited_for(
    folder: Path, another_users_folder: list[str]
) -> None:
    folder.chmod(0o755)
    take(folder)
    assert another_users_folder == ["make", "make"]
    assert mode_of(folder) == 0o755


def test_a_folder_that_stays_closed_is_its_owners_to_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def closed(path: Path, *arguments: int) -> int:
        if Path(path) == folder / "cpu.lock":
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *arguments)

    monkeypatch.setattr(os, "open", closed)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PreflightError, match=rf"{folder}: ask its owner for chmod 1777$"):
        take(folder)
