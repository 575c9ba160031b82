"""The journal of a tuning run: one line for each session, synced as it ends, and read
back after any end of the run.

The first line holds the fingerprint: whatever decides the numbers. A run is resumed
under the same fingerprint only. A line is whole or it is the last, which the next
writer cuts off.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import orjson

from k3perf.documents import DocumentProblem, json_of, validated
from k3perf.errors import ConfigFileError, MeasurementInvalid, UsageError
from k3perf.records.tuning import TuningReading, TuningResult, TuningTrial
from k3perf.store.atomic import replace_file
from k3perf.store.results import cut_partial_line

JOURNAL_FILE: Final = "tuning.jsonl"
RESULT_FILE: Final = "tuning.json"
JOURNAL_SCHEMA_VERSION: Final = 1
_NEXT_STEP: Final = "Name another --results directory to measure again from nothing."


@dataclass(frozen=True, slots=True)
class _Header:
    """The file's first line."""

    schema_version: int
    run_id: str
    fingerprint: dict[str, str]


class TuningJournal:
    """Appends readings and answers what is known. One writer at a time, by a lock on
    the file.
    """

    def __init__(self, directory: Path, *, run_id: str, fingerprint: Mapping[str, str]) -> None:
        """Open or continue. Raises UsageError for another fingerprint or a second
        writer, ConfigFileError for a damaged line, MeasurementInvalid for a full disk.
        """
        self.path = directory / JOURNAL_FILE
        self.run_id = run_id
        self.fingerprint = dict(fingerprint)
        self.known: dict[str, TuningReading] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be written: {error.strerror}. Name another --results"
                " directory."
            ) from error
        try:
            self._lock()
            cut_partial_line(self.path)
            if os.fstat(self._descriptor).st_size:
                self._read(fingerprint)
            else:
                header = _Header(JOURNAL_SCHEMA_VERSION, run_id, dict(fingerprint))
                self._append("tuning", header)
        except BaseException:
            self.close()
            raise

    def source(
        self, measure: Callable[[TuningTrial], TuningReading]
    ) -> Callable[[TuningTrial], TuningReading]:
        """Answers from the journal, else measures and keeps the reading."""

        def read_or_measure(trial: TuningTrial) -> TuningReading:
            reading = self.known.get(trial.key)
            if reading is None:
                reading = measure(trial)
                self._append("reading", reading)
                self.known[trial.key] = reading
            return reading

        return read_or_measure

    def close(self) -> None:
        """Give the file back. Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"{self.path}: another process is writing this run. Wait for it, or name another"
                " --results directory."
            ) from None

    def _read(self, fingerprint: Mapping[str, str]) -> None:
        *lines, _ = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                entry = json_of(line)
                if number == 1:
                    self._take_header(validated(_Header, _content(entry, "tuning")), fingerprint)
                    continue
                reading = validated(TuningReading, _content(entry, "reading"))
            except (DocumentProblem, KeyError, TypeError, ValueError) as error:
                kept = f"`head -n {number - 1}` keeps the {number - 1} lines before it"
                raise ConfigFileError(
                    self.path,
                    f"line {number}",
                    None,
                    f"is not a line of a tuning journal ({str(error).splitlines()[0]})",
                    f"{kept}. {_NEXT_STEP}" if number > 1 else _NEXT_STEP,
                ) from error
            if reading.trial.key in self.known:
                raise ConfigFileError(
                    self.path,
                    f"line {number}",
                    reading.trial.key,
                    "appears twice, so a session would count twice",
                    _NEXT_STEP,
                )
            self.known[reading.trial.key] = reading

    def _take_header(self, header: _Header, fingerprint: Mapping[str, str]) -> None:
        if header.schema_version != JOURNAL_SCHEMA_VERSION:
            raise ValueError(
                f"schema_version {header.schema_version}, this release reads"
                f" {JOURNAL_SCHEMA_VERSION}"
            )
        names = sorted(set(header.fingerprint) | set(fingerprint))
        for name in names:
            was, now = header.fingerprint.get(name, "absent"), fingerprint.get(name, "absent")
            if was != now:
                raise UsageError(
                    f"{self.path} was measured with {name} {was!r}, this run has {now!r}."
                    f" {_NEXT_STEP}"
                )
        self.run_id = header.run_id

    def _append(self, kind: str, content: object) -> None:
        line = orjson.dumps({"kind": kind, "content": content}, option=orjson.OPT_APPEND_NEWLINE)
        size_before = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, line) != len(line):
                os.ftruncate(self._descriptor, size_before)
                raise OSError(0, "short write")
            os.fsync(self._descriptor)
        except OSError as error:
            raise MeasurementInvalid(
                f"{self.path} cannot be written: {error.strerror}. What was measured before can be"
                " continued by the same command."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def write_result(directory: Path, result: TuningResult) -> Path:
    """Replace ``tuning.json`` in one step. Raises OSError."""
    path = directory / RESULT_FILE
    replace_file(path, orjson.dumps(result, option=orjson.OPT_INDENT_2))
    return path


def read_result(directory: Path) -> TuningResult:
    """The result of a finished run. Raises ConfigFileError."""
    from k3perf.documents import read_record

    return read_record(
        TuningResult,
        directory / RESULT_FILE,
        "Give the --results directory of a finished k3perf tune or k3perf sweep.",
        "a tuning result",
    )


def read_readings(directory: Path) -> tuple[TuningReading, ...]:
    """The readings of a run in order. Raises ConfigFileError."""
    path = directory / JOURNAL_FILE
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigFileError(
            path, "", None, f"cannot be read: {error.strerror}", _NEXT_STEP
        ) from (error)
    found = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            found.append(validated(TuningReading, _content(json_of(line), "reading")))
        except (DocumentProblem, KeyError, TypeError, ValueError) as error:
            raise ConfigFileError(
                path, f"line {number}", None, "is not a line of a tuning journal", _NEXT_STEP
            ) from error
    return tuple(found)


def _content(entry: Any, kind: str) -> Any:
    if not isinstance(entry, dict) or entry.get("kind") != kind:
        raise ValueError(f"a line of kind {kind!r} is expected here")
    return entry["content"]
