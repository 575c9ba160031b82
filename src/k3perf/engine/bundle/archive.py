"""A folder to checked parts of one xz-compressed tar archive, and back to certainty
that every part is whole.

Reproducible: entries are sorted, owners and times are fixed, so equal content gives
equal checksums.
"""

from __future__ import annotations

import hashlib
import lzma
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from k3perf.errors import UsageError

CHECKSUM_FILE: Final = "SHA256SUMS"
PART_STEM: Final = "site.tar.xz"
_BLOCK_BYTES: Final = 1 << 20


def pack(site: Path, output: Path, *, part_bytes: int, preset: int = 4) -> tuple[Path, ...]:
    """Compress ``site`` into ``output/site.tar.xz.000``, ``.001`` and so on, none
    larger than ``part_bytes``.

    The ``xz`` program is used when there is one, because it compresses on all cores;
    Python's own otherwise.
    """
    if part_bytes < 1:
        raise UsageError(
            f"--part-size {part_bytes} is too small. Give bytes, for example 62000000."
        )
    whole = output / PART_STEM
    compressor = shutil.which("xz")
    if compressor is not None:
        with whole.open("wb") as sink:
            process = subprocess.Popen(
                [compressor, "-T0", f"-{preset}", "-c"], stdin=subprocess.PIPE, stdout=sink
            )
            if process.stdin is None:
                raise AssertionError("stdin was asked for")
            with process.stdin as stream:
                _write_tar(site, stream)
            if process.wait() != 0:
                raise UsageError(f"xz failed with status {process.returncode}. Is {output} full?")
    else:
        with lzma.open(whole, "wb", preset=preset) as stream:
            _write_tar(site, stream)
    parts = tuple(_split(whole, part_bytes))
    whole.unlink()
    return parts


def write_checksums(folder: Path) -> None:
    """``SHA256SUMS`` over every other file of ``folder``, as ``sha256sum`` reads it."""
    lines = [
        f"{file_digest(path)}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != CHECKSUM_FILE
    ]
    (folder / CHECKSUM_FILE).write_text("".join(lines), encoding="utf-8")


def verify(folder: Path) -> tuple[str, ...]:
    """Files that are missing, changed, unlisted or unreadable. Empty means whole."""
    sums = folder / CHECKSUM_FILE
    if not sums.is_file():
        return (f"{CHECKSUM_FILE} is missing",)
    problems, listed = [], set()
    for line in sums.read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        if not name or "/" in name:
            problems.append(f"{CHECKSUM_FILE} has a line that is not a checksum: {line!r}")
            continue
        listed.add(name)
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif file_digest(path) != digest:
            problems.append(
                f"{name} has changed or was copied incompletely ({path.stat().st_size} bytes)"
            )
    strays = {path.name for path in folder.iterdir() if path.name.startswith(PART_STEM)} - listed
    problems += [f"{name} is not listed in {CHECKSUM_FILE}" for name in sorted(strays)]
    return tuple(problems)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _split(whole: Path, part_bytes: int) -> Iterator[Path]:
    with whole.open("rb") as source:
        number = 0
        while block := source.read(min(_BLOCK_BYTES, part_bytes)):
            part = whole.with_name(f"{whole.name}.{number:03d}")
            left_bytes = part_bytes
            with part.open("wb") as sink:
                while block:
                    sink.write(block)
                    left_bytes -= len(block)
                    block = source.read(min(_BLOCK_BYTES, left_bytes)) if left_bytes else b""
            yield part
            number += 1


def _write_tar(site: Path, stream: IO[bytes] | lzma.LZMAFile) -> None:
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for path in sorted(site.rglob("*")):
            if not path.is_file():
                continue
            entry = archive.gettarinfo(path, arcname=path.relative_to(site).as_posix())
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)
