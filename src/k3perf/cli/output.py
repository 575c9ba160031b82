"""Files that commands write, and the name of the user who runs them."""

from __future__ import annotations

import getpass
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from k3perf.errors import MACHINE_ERRNOS, UsageError


def write_text(
    path: Path, text: str, option: str = "--output", *, make_folder: bool = False, mode: str = "w"
) -> None:
    """Write ``text``, with ``make_folder`` into new directories, with mode ``a`` at the
    file's end. Raises UsageError that names ``option``, or OSError for a full disk.
    """
    with _writing(path, option):
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as stream:
            stream.write(text)


def print_or_write(text: str, output: Path | None) -> None:
    """Print ``text``, or write it to the file of ``--output``. Raises as ``write_text``
    does.
    """
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text)


def write_lines(path: Path, lines: Iterable[str]) -> str:
    """Write ``--output`` line by line. Returns the file's SHA-256, raises as
    ``write_text`` does.
    """
    digest = hashlib.sha256()
    with _writing(path, "--output"), path.open("wb") as file:
        for line in lines:
            data = line.encode()
            digest.update(data)
            file.write(data)
    return digest.hexdigest()


@contextmanager
def _writing(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in MACHINE_ERRNOS:  # another path on this machine may not help
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); choose another {option}"
        ) from None


def login_name() -> str:
    """The login name, or the user's number where it has no name, as in many
    containers.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"user {os.getuid()}"
