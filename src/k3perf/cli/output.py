"""Files that commands write, and the name of the user who runs them."""

from __future__ import annotations

import getpass
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from k3perf.errors import UsageError


def write_text(
    path: Path, text: str, option: str = "--output", *, make_folder: bool = False
) -> None:
    """Raises UsageError, which names ``option``, when the file cannot be written.
    ``make_folder``: with the folders above it.
    """
    _write(path, text, option, "w", make_folder=make_folder)


def append_text(path: Path, text: str, option: str, *, make_folder: bool = False) -> None:
    """As ``write_text``, at the file's end."""
    _write(path, text, option, "a", make_folder=make_folder)


def _write(path: Path, text: str, option: str, mode: str, *, make_folder: bool) -> None:
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); choose another {option}"
        ) from None


def write_lines(path: Path, lines: Iterable[str]) -> str:
    """Write line by line, however many there are; the SHA-256 of the file. Raises
    UsageError as ``write_text`` does.
    """
    digest = hashlib.sha256()
    try:
        with path.open("wb") as file:
            for line in lines:
                data = line.encode()
                digest.update(data)
                file.write(data)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); choose another --output"
        ) from None
    return digest.hexdigest()


def login_name() -> str:
    """The user's login name, or the user's number where it has no name, as in many
    containers.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"user {os.getuid()}"
