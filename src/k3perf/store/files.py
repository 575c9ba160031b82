"""Reading small text files: absent is None, unreadable is an error with its next step. ``store.atomic`` writes them."""

from __future__ import annotations

from pathlib import Path

from k3perf.errors import ConfigFileError
from k3perf.store.atomic import replace_file as replace_text

__all__ = ["read_text", "replace_text"]


def read_text(path: Path, next_step: str) -> str | None:
    """The file's text, None if there is no such file; anything else that prevents reading is a ``ConfigFileError``."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ConfigFileError(path, "", None, f"not UTF-8 text: byte {error.start} does not fit", next_step) from None
    except OSError as error:
        raise ConfigFileError(path, "", None, f"cannot be read: {error.strerror}", next_step) from None
