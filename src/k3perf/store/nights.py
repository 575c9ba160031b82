"""The nights of the ``perf-history`` branch: one compressed file each, a directory a
month. Old nights are never written again, so git stores each once.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from k3perf.documents import DocumentProblem, Misfit, json_of, validated
from k3perf.errors import ConfigFileError, UsageError
from k3perf.records.night import NightFile
from k3perf.store.atomic import replace_file

SUFFIX: Final = ".json.xz"
LARGEST_NIGHT_BYTES: Final = 64 << 20
"""Of one night, uncompressed. 120 cells have about 2 MB."""

NEXT_STEP: Final = "Take the file from the perf-history branch, or delete it there."
_NAME: Final = re.compile(r"\d{4}-\d{2}-\d{2}-[A-Za-z0-9_.-]+\.json\.xz")


def night_path(root: Path, night: NightFile) -> Path:
    """``ROOT/nights/YYYY-MM/YYYY-MM-DD-RUN.json.xz``. Raises UsageError for a time that
    is not ISO 8601.
    """
    name = f"{night.day}-{re.sub('[^A-Za-z0-9_.-]', '_', night.run_id)[:80]}{SUFFIX}"
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"run {night.run_id}: created_at_utc is {night.created_at_utc!r}, not a time such as"
            " 2026-12-01T01:17:00Z. Give the files that a finished run wrote."
        )
    return root / "nights" / night.day[:7] / name


def write_night(root: Path, night: NightFile) -> Path:
    """Write the night whole. The same run is written to the same file."""
    path = night_path(root, night)
    text = night.model_dump_json()
    replace_file(path, lzma.compress(text.encode(), preset=6))
    return path


def night_files(root: Path) -> tuple[Path, ...]:
    """The files of all nights, oldest first. None for a directory without nights."""
    return tuple(sorted(root.glob(f"nights/*/*{SUFFIX}"), key=lambda path: path.name))


def read_nights(root: Path, *, last_count: int | None = None) -> tuple[NightFile, ...]:
    """The nights, oldest first; with ``last_count`` the newest only. Raises
    ConfigFileError that names the file.
    """
    if not root.is_dir():
        raise UsageError(
            f"--nights {root}: not found. Give the checked-out branch perf-history, or an empty"
            " directory for a first night."
        )
    try:
        next(iter(root.iterdir()), None)  # a directory that cannot be read holds no night to glob
    except OSError as error:
        raise UsageError(f"--nights {root}: {error.strerror}. Give a readable directory.") from None
    files = night_files(root)
    return tuple(map(read_night, files if last_count is None else files[-last_count:]))


def read_night(path: Path) -> NightFile:
    """One night. Raises ConfigFileError."""
    try:
        text = _unpacked(path.read_bytes())
        return validated(NightFile, json_of(text), "a night")
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise ConfigFileError(path, "", None, f"cannot be read ({error})", NEXT_STEP) from None
    except DocumentProblem as problem:
        at = f" at {problem.place}" if isinstance(problem, Misfit) and problem.place else ""
        raise ConfigFileError(path, "", None, f"{problem.problem}{at}", NEXT_STEP) from None


def _unpacked(data: bytes) -> bytes:
    unpacker = lzma.LZMADecompressor(memlimit=256 << 20)
    text = unpacker.decompress(data, max_length=LARGEST_NIGHT_BYTES + 1)
    if len(text) > LARGEST_NIGHT_BYTES:
        raise lzma.LZMAError(f"more than {LARGEST_NIGHT_BYTES} bytes")
    if not unpacker.eof:
        raise EOFError("the file ends early")
    return text


def newest_first(nights: Iterable[NightFile]) -> list[NightFile]:
    """By time, the newest first; one run once."""
    found = {night.run_id: night for night in nights}
    return sorted(found.values(), key=lambda one: (one.created_at_utc, one.run_id), reverse=True)
