"""A file of records as others write it: JSON lines, a JSON array, objects over several
lines, or CSV.

Reads UTF-8 and UTF-16 with or without a byte order mark, each kind of line end, and
gzip. The file is read once from front to back, so a pipe will do, and only one record
is in memory at a time.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

from k3perf.errors import UsageError
from k3perf.workload.log_values import is_known_field

LONGEST_RECORD_CHARACTERS: Final = 64 * 1024 * 1024
_CHUNK_CHARACTERS: Final = 1024 * 1024
_HEAD_BYTES: Final = 65_536
_SPACE: Final = re.compile(r"\s*")
_DELIMITERS: Final = (",", ";", "\t", "|")
# keys under which one big object holds the list of records, as the answers of log
# servers do
_LIST_KEYS: Final = ("data", "requests", "records", "logs", "items", "traces")
_PACKED: Final = {
    b"PAR1": ("Parquet", "duckdb -c \"copy (from '{file}') to '{file}.csv'\""),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "zstd -d '{file}'"),
    b"BZh": ("bzip2", "bunzip2 -k '{file}'"),
    b"\xfd7zXZ": ("xz", "xz -dk '{file}'"),
    b"PK\x03\x04": ("zip", "unzip '{file}'"),
}


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One record: the place in the file, its fields (None where there are none), and
    then why not.
    """

    where: str
    fields: dict[str, Any] | None
    problem: str = ""


class RecordFile:
    """An open file of records; iterate over it once. ``container`` is how the records
    are written.

    ``header``: the column names of a CSV file, () for JSON. Raises UsageError for a
    file that cannot be read as text.
    """

    def __init__(self, path: Path, raw: _HashingReader) -> None:
        self.path = path
        self._raw = raw
        self._text = _decoded(path, raw)
        self._ahead: list[str] = []
        self._line = 0
        self.header: tuple[str, ...] = ()
        self._delimiter = ","
        self.container = self._recognise()

    @property
    def sha256(self) -> str:
        """SHA-256 of the file's bytes, once the iteration is over."""
        while self._raw.read(_CHUNK_CHARACTERS):
            pass
        return self._raw.digest.hexdigest()

    def __iter__(self) -> Iterator[FileRecord]:
        records = {
            "JSON lines": self._json_lines,
            "a JSON array": self._array,
            "JSON objects": self._objects,
            "CSV": self._csv,
        }[self.container]
        with _reading(self.path):
            yield from records()

    def _recognise(self) -> str:
        """The way the records are written, from the first two lines; a long line is
        read in part.
        """
        with _reading(self.path):
            line = self._text.readline(_CHUNK_CHARACTERS)
            while line and not line.strip():
                self._line += line.endswith("\n")
                line = self._text.readline(_CHUNK_CHARACTERS)
            after = self._text.readline(_CHUNK_CHARACTERS) if line.endswith("\n") else ""
        if not line:
            raise UsageError(
                f"{self.path}: the file is empty. Name a file with one request in each record."
            )
        self._ahead = [text for text in (line, after) if text]
        begin = line.strip()
        if begin.startswith("["):
            return "a JSON array" if begin[1:].lstrip()[:1] in ("", "{", "]") else "JSON lines"
        if begin.startswith("{"):
            is_one_value = _loads(line)[1] == "" or _loads(after)[1] == ""
            return "JSON lines" if is_one_value or not _may_go_on(line) else "JSON objects"
        self.header, self._delimiter = _csv_header(line)
        return "CSV" if self.header else "JSON lines"

    def _next_line(self) -> str:
        """The next line, "" at the end; the rest of a line that is far too long is
        skipped.
        """
        line = self._ahead.pop(0) if self._ahead else ""
        if not line.endswith("\n") and not self._ahead:
            line += self._text.readline(LONGEST_RECORD_CHARACTERS - len(line))
            rest = line
            while len(rest) >= LONGEST_RECORD_CHARACTERS and not rest.endswith("\n"):
                rest = self._text.readline(LONGEST_RECORD_CHARACTERS)
        self._line += 1
        return line

    def _json_lines(self) -> Iterator[FileRecord]:
        while line := self._next_line():
            if line.strip():
                value, problem = _loads(line)
                if self._line == 1 and problem == "" and (listed := _listed(value)) is not None:
                    yield from (
                        _record(f"element {place}", entry) for place, entry in enumerate(listed, 1)
                    )
                else:
                    yield _record(f"line {self._line}", value, problem)

    def _csv(self) -> Iterator[FileRecord]:
        lines = iter(self._next_line, "")
        next(lines)
        rows = csv.reader(lines, delimiter=self._delimiter)
        while True:
            try:
                row = next(rows, None)
            except csv.Error as error:
                yield FileRecord(f"line {self._line}", None, f"not CSV ({error})")
                continue
            if row is None:
                return
            if not row:
                continue
            if len(row) != len(self.header):
                yield FileRecord(
                    f"line {self._line}", None, "a row with more or fewer fields than the header"
                )
                continue
            yield FileRecord(f"line {self._line}", dict(zip(self.header, row, strict=True)))

    def _array(self) -> Iterator[FileRecord]:
        for place, (value, problem) in enumerate(self._values("[", ",", "]"), 1):
            yield _record(f"element {place}", value, problem)

    def _objects(self) -> Iterator[FileRecord]:
        for place, (value, problem) in enumerate(self._values("", "", ""), 1):
            if place == 1 and problem == "" and (listed := _listed(value)) is not None:
                yield from (
                    _record(f"element {inner}", entry) for inner, entry in enumerate(listed, 1)
                )
            else:
                yield _record(f"object {place}", value, problem)

    def _values(self, begin: str, separator: str, end: str) -> Iterator[tuple[Any, str]]:
        """(value, "") of each JSON value, then (None, why) where the text breaks
        off.
        """
        decoder = json.JSONDecoder()
        buffer = "".join(self._ahead).lstrip().removeprefix(begin)
        self._ahead.clear()
        place, is_last = 0, False
        while True:
            place = cast(re.Match[str], _SPACE.match(buffer, place)).end()
            if end and buffer.startswith(end, place):
                return
            value, problem, after = _decode(decoder, buffer, place, separator, end)
            if after:
                yield value, ""
                place = after
            if problem == "":
                continue
            if place >= len(buffer) and is_last and not end:
                return
            if (
                is_last
                or problem != "incomplete"
                or len(buffer) - place > LONGEST_RECORD_CHARACTERS
            ):
                told = "the file is truncated" if problem == "incomplete" and is_last else problem
                yield None, f"not JSON from here on ({told})"
                return
            more = self._text.read(max(_CHUNK_CHARACTERS, len(buffer) - place))
            is_last = not more
            buffer, place = buffer[place:] + more, 0


def _decode(
    decoder: json.JSONDecoder, buffer: str, place: int, separator: str, end: str
) -> tuple[Any, str, int]:
    """(value, why not, place after the value and its separator; 0 where there is no
    value).

    Why not is "" for a value in order, and "incomplete" when more text may help.
    """
    try:
        value, after = decoder.raw_decode(buffer, place)
    except RecursionError:
        return None, "nested too deeply", 0
    except json.JSONDecodeError as error:
        cut = error.msg.startswith("Unterminated string") or error.pos >= len(buffer) - 16
        return None, "incomplete" if cut else f"{error.msg}, character {error.pos - place}", 0
    except ValueError as error:  # a number with more digits than Python reads
        return None, str(error), 0
    if not end:
        return value, "", after
    after = cast(re.Match[str], _SPACE.match(buffer, after)).end()
    if buffer.startswith(separator, after):
        return value, "", after + len(separator)
    if buffer.startswith(end, after):
        return value, "", after
    if after >= len(buffer):
        return None, "incomplete", 0
    return value, "a comma is missing", after


def _may_go_on(line: str) -> bool:
    return _decode(json.JSONDecoder(), line, 0, "", "")[1] == "incomplete"


def _loads(line: str) -> tuple[Any, str]:
    """(value, "") or (None, why)."""
    if len(line) >= LONGEST_RECORD_CHARACTERS:
        return None, f"a line longer than {LONGEST_RECORD_CHARACTERS // 1024**2} MiB"
    try:
        return json.loads(line), ""
    except RecursionError:
        return None, "nested too deeply"
    except ValueError:
        return None, "not JSON"


def _record(where: str, value: Any, problem: str = "") -> FileRecord:
    if problem:
        return FileRecord(where, None, problem)
    return (
        FileRecord(where, value)
        if isinstance(value, dict)
        else FileRecord(where, None, "not an object")
    )


def _listed(value: Any) -> list[Any] | None:
    """The list of records that one big object holds."""
    if not isinstance(value, dict):
        return None
    lists = [value[key] for key in _LIST_KEYS if isinstance(value.get(key), list)]
    return (
        lists[0] if len(lists) == 1 and any(isinstance(entry, dict) for entry in lists[0]) else None
    )


def _csv_header(line: str) -> tuple[tuple[str, ...], str]:
    """The column names and the delimiter where the first line names a time or a count;
    () otherwise.
    """
    if len(line) > csv.field_size_limit():
        return (), ","
    for delimiter in _DELIMITERS:
        names = tuple(name.strip() for name in next(csv.reader([line], delimiter=delimiter), []))
        if len(names) > 1 and sum(is_known_field(name) for name in names) > 1:
            return names, delimiter
    return (), ","


class _HashingReader(io.RawIOBase):
    """Passes bytes on and hashes them."""

    def __init__(self, inner: IO[bytes]) -> None:
        self._inner = inner
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        self.digest.update(data)
        return len(data)


@contextlib.contextmanager
def open_records(path: Path) -> Iterator[RecordFile]:
    """The file, closed afterwards. Raises UsageError when it cannot be opened or is not
    text.
    """
    try:
        inner = path.open("rb", buffering=0)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}). Name an existing file."
        ) from None
    with inner:
        if path.is_dir():
            raise UsageError(f"{path}: is a directory. Name a file.")
        yield RecordFile(path, _HashingReader(inner))


def _decoded(path: Path, raw: _HashingReader) -> io.TextIOWrapper:
    with _reading(path):
        stream: io.BufferedReader = io.BufferedReader(raw, _HEAD_BYTES)
        if stream.peek(2)[:2] == b"\x1f\x8b":
            stream = io.BufferedReader(
                cast(io.RawIOBase, gzip.GzipFile(fileobj=stream)), _HEAD_BYTES
            )
        head = stream.peek(4096)[:4096]
    for magic, (kind, command) in _PACKED.items():
        if head.startswith(magic):
            how = command.format(file=path)
            raise UsageError(
                f"{path}: is a {kind} file. Convert it to text first, for example: {how}"
            )
    encoding = _encoding(head)
    if encoding.startswith("utf-8") and b"\0" in head:
        raise UsageError(f"{path}: is a binary file. Give JSON lines, a JSON array or CSV.")
    return io.TextIOWrapper(stream, encoding=encoding, errors="replace")


def _encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head[1:2] == b"\0" and head[3:4] == b"\0":
        return "utf-16-le"
    if head[:1] == b"\0" and head[2:3] == b"\0":
        return "utf-16-be"
    return "utf-8-sig"


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors of the file system and of gzip in words."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(
            f"{path}: the gzip data is damaged or cut off ({error}). Copy the file again."
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}). Name a readable file."
        ) from None
