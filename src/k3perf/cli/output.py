"""Files that commands write where their user said."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from k3perf.errors import UsageError


def write_text(path: Path, text: str) -> None:
    """Raises UsageError when the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another --output") from None


def write_lines(path: Path, lines: Iterable[str]) -> str:
    """Write line by line, however many there are; the SHA-256 of the file. Raises UsageError as ``write_text`` does."""
    digest = hashlib.sha256()
    try:
        with path.open("wb") as file:
            for line in lines:
                data = line.encode()
                digest.update(data)
                file.write(data)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another --output") from None
    return digest.hexdigest()
