"""Files that commands write where their user said."""

from __future__ import annotations

from pathlib import Path

from k3perf.errors import UsageError


def write_text(path: Path, text: str) -> None:
    """Raises UsageError when the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another --output") from None
