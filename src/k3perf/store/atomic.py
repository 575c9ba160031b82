"""Replace a file in one step: readers and a crash see the old text or the new one,
never a part.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes | str) -> None:
    """Write ``data`` to a new file, fsync it, rename it over ``path`` and fsync the
    directory. OSError leaves the old file as it was.

    The next writer removes what a killed one left. One writer per process and file at a
    time.
    """
    content = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(
            content
        )  # a pipe or a device, /dev/stdout for instance: it must not be replaced by a file
        return
    _remove_leftovers(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    mode = (
        path.stat().st_mode & 0o7777 if path.exists() else 0o666
    )  # the umask still takes its part of a new file's
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        if path.exists():
            draft.chmod(mode)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    _sync_directory(path.parent)


def _remove_leftovers(path: Path) -> None:
    for draft in path.parent.glob(f".{path.name}.*.new"):
        writer = draft.name.split(".")[-2]
        if writer.isdigit() and not Path(f"/proc/{writer}").exists():
            draft.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
