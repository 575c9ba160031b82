"""A path without spaces to an engine's Python.

vLLM preloads libraries from its environment through LD_PRELOAD, where spaces and
colons separate entries. An engine started from such a path would run without them:
slower, and with other memory readings.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from k3perf.errors import PreflightError


def without_spaces(engine_python: Path) -> Path:
    """``engine_python`` itself, or the same Python through a link to its environment.

    The link lies in a directory of this user's below the temporary directory, and stays
    there: the next start uses it again. Raises PreflightError when none can be made.
    """
    if not _splits(str(engine_python)):
        return engine_python
    environment = engine_python.parent.parent
    link = _own_directory() / hashlib.sha256(str(environment).encode()).hexdigest()[:16]
    try:
        link.symlink_to(environment, target_is_directory=True)
    except FileExistsError:
        if not link.is_symlink() or link.readlink() != environment:
            raise PreflightError(
                f"{link} should be a link to {environment}. Remove it and run again."
            ) from None
    except OSError as error:
        raise PreflightError(
            f"cannot make the link {link} to {environment}: {error.strerror}."
        ) from None
    return link / engine_python.parent.name / engine_python.name


def _own_directory() -> Path:
    """A directory that no other user can write."""
    temporary = next(
        path
        for path in (tempfile.gettempdir(), "/tmp")  # noqa: S108
        if not _splits(path) or path == "/tmp"  # noqa: S108
    )
    directory = Path(temporary) / f"k3perf-engines-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise PreflightError(f"cannot make {directory}: {error.strerror}.") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PreflightError(
            f"{directory} is not a directory that only you can write. Remove it and run again."
        )
    return directory


def _splits(text: str) -> bool:
    return any(character.isspace() or character == ":" for character in text)
