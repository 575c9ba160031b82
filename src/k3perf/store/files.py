"""Reading and replacing small text files: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from k3perf.errors import ConfigFileError


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


def replace_text(path: Path, text: str) -> None:
    """Write beside ``path``, flush to disk, then rename over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.chmod(0o644)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
