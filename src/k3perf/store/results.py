"""What a run measured, appended to one JSON-lines file as it happens, and read back
after any end of the run.

Line kinds: ``session`` (a SessionRecord without its rounds, when the engine is ready),
``sample``, ``round`` (a RoundRecord without its samples), ``session_end`` (the
session's final reasons), ``cell`` (done, needs no more measuring). All but ``sample``
are synced to disk. A line is whole or it is the file's last: a partly written last line
is dropped by the reader and cut off by the next writer. Samples without their ``round``
line belong to a round that never ended, and are not used.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import orjson

from k3perf.documents import DocumentProblem, Misfit, json_of, validated
from k3perf.errors import ConfigFileError, MeasurementInvalid
from k3perf.records.samples import InvalidReason, RequestSample, RoundRecord, SessionRecord

RESULTS_SCHEMA_VERSION: Final = 1
_SAMPLE_BEGIN: Final = b'{"kind":"sample"'
_CHECK_PATH: Final = (
    "Check the path: a run writes results.jsonl into its results directory, which --k3-results"
    " names."
)


@dataclass(frozen=True, slots=True)
class CellKey:
    """What makes two measurements of a cell the same work: names, mode and the plan's
    digest.
    """

    target: str
    config: str
    workload: str
    mode: str
    plan_digest: str


@dataclass(frozen=True, slots=True)
class FinishedCell:
    """A cell that was measured to its end. ``outcome`` as the gate named it; an INVALID
    cell is measured again by a resumed run.

    ``lost``: a sentence for each session that died and was measured again.
    """

    key: CellKey
    outcome: str
    session_ids: tuple[str, ...]
    valid: bool
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _RunLine:
    """The file's first line."""

    schema_version: int
    run_id: str
    experiment: dict[str, str] = field(default_factory=dict)


class ResultWriter:
    """Appends records to ``path``. A failing disk raises MeasurementInvalid: numbers
    that cannot be kept are no result.
    """

    def __init__(
        self, path: Path, *, run_id: str, experiment: Mapping[str, str] | None = None
    ) -> None:
        """``experiment``: what else decides the numbers (commit, engine, injected
        faults); kept with the run, for resuming it.
        """
        self.path = path
        self.run_id = run_id
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            cut_partial_line(path)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise MeasurementInvalid(
                f"results cannot be written to {path}: {error}. Name another --k3-results directory"
            ) from error
        if os.fstat(self._descriptor).st_size == 0:
            self._append(
                "run",
                {
                    "schema_version": RESULTS_SCHEMA_VERSION,
                    "run_id": run_id,
                    "experiment": dict(experiment or {}),
                },
                sync=True,
            )

    def session(self, record: SessionRecord) -> None:
        """A session began; its rounds follow."""
        self._append("session", {**_shallow(record), "rounds": []}, sync=True)

    def round(self, session_id: str, record: RoundRecord) -> None:
        """A round ended: its samples and the record, then fsync."""
        for sample in record.samples:
            self._append(
                "sample",
                {"session_id": session_id, "round_index": record.round_index, "sample": sample},
                sync=False,
            )
        self._append(
            "round",
            {
                "session_id": session_id,
                "sample_count": len(record.samples),
                "round": {**_shallow(record), "samples": []},
            },
            sync=True,
        )

    def session_end(self, session_id: str, invalid_reasons: tuple[InvalidReason, ...]) -> None:
        """The engine was stopped; what was found about the whole session."""
        self._append(
            "session_end", {"session_id": session_id, "invalid_reasons": invalid_reasons}, sync=True
        )

    def cell(self, cell: FinishedCell) -> None:
        """A cell is done."""
        self._append("cell", cell, sync=True)

    def close(self) -> None:
        """Sync and close."""
        if self._descriptor >= 0:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, kind: str, content: object, *, sync: bool) -> None:
        line = orjson.dumps({"kind": kind, "content": content}, option=orjson.OPT_APPEND_NEWLINE)
        size_before = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, line)
            if written != len(line):
                raise OSError(
                    errno.ENOSPC, os.strerror(errno.ENOSPC)
                )  # a short write to a file means just that
            if sync:
                os.fsync(self._descriptor)
        except OSError as error:
            with suppress(OSError):
                # no half line in front of a later one
                os.ftruncate(self._descriptor, size_before)
            raise MeasurementInvalid(
                f"results cannot be written to {self.path}: {error}. What was measured can be"
                " resumed"
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


@dataclass(slots=True)
class RunResults:
    """All of a results file."""

    path: Path
    run_id: str
    experiment: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    ended_sessions: set[str] = field(default_factory=set)
    cells: dict[CellKey, FinishedCell] = field(default_factory=dict)

    def finished(self, key: CellKey) -> FinishedCell | None:
        """The valid result of this cell and plan, which a resumed run need not measure
        again. None without it, and where the end of one of its sessions is missing.
        """
        cell = self.cells.get(key)
        if cell is None or not cell.valid or not cell.session_ids:
            return None
        whole = self.ended_sessions.issuperset(cell.session_ids)
        return cell if whole else None

    def cell_sessions(self, key: CellKey) -> tuple[SessionRecord, ...]:
        """The sessions that a finished cell's result rests on, in order of time."""
        cell = self.cells.get(key)
        names = cell.session_ids if cell is not None else ()
        return tuple(self.sessions[name] for name in names if name in self.sessions)


def read_results(path: Path) -> RunResults:
    """Read a results file of a finished or a killed run. ConfigFileError names the
    damaged line and what the lines before it hold.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigFileError(path, "", None, "file not found", _CHECK_PATH) from None
    except OSError as error:
        raise ConfigFileError(
            path, "", None, f"cannot be read: {error.strerror}", _CHECK_PATH
        ) from error
    results = RunResults(path=path, run_id="")
    pending: dict[tuple[str, int], list[RequestSample]] = {}
    *lines, _ = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        kind = ""
        try:
            kind, content = _entry(line)
            if (kind == "run") != (number == 1):
                raise ValueError(
                    "a results file holds one run: it begins with that run's line and has no other"
                )
            _take(results, pending, kind, content)
        except (
            DocumentProblem,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            raise _damaged(results, number, len(lines), kind, error) from error
    return results


def _entry(line: bytes) -> tuple[str, Any]:
    """A line's kind and content. Samples are most of a file: one that is as the writer
    writes it is read without a closer look.
    """
    entry = None
    if line.startswith(_SAMPLE_BEGIN):
        with suppress(ValueError):
            entry = orjson.loads(line)
    if entry is None or orjson.dumps(entry) != line:
        entry = json_of(line)
    return str(entry["kind"]), entry["content"]


def _damaged(
    results: RunResults, number: int, line_count: int, kind: str, error: Exception
) -> ConfigFileError:
    """``number``: of the damaged line; ``results`` hold the lines before it."""
    problem = str(error).splitlines()[0]
    if isinstance(error, Misfit) and error.place:
        problem += f" at {error.place}"
    if not kind:
        problem = f"not a JSON record ({problem})"
    elif isinstance(error, KeyError):
        problem = (
            f"not a record of this kind (it lacks {problem}, or a line before it that names that)"
        )
    else:
        problem = f"not a record of this kind ({problem})"
    line = partial(ConfigFileError, results.path, f"line {number}", kind or None)
    ended_count = len(results.ended_sessions)
    if number == 1:
        return line(
            problem,
            "It is not a results file, or not its beginning. Give results.jsonl of the interrupted"
            " run, or the run's directory.",
        )
    ended = f"{ended_count} session{'' if ended_count == 1 else 's'} that ended"
    problem += (
        f"; the {number - 1} before it can be read and hold {ended}, {line_count - number} follow"
    )
    if not ended_count:
        return line(problem, "Nothing usable is left: measure again, into another directory.")
    kept = (
        f"`head -n {number - 1} {shlex.quote(str(results.path))} > NEW`, then put NEW in its place"
    )
    return line(
        problem,
        f"To use them, keep only them: {kept}. Otherwise measure again.",
    )


def _take(
    results: RunResults,
    pending: dict[tuple[str, int], list[RequestSample]],
    kind: str,
    content: Any,
) -> None:
    if kind == "run":
        run = validated(_RunLine, content)
        if run.schema_version != RESULTS_SCHEMA_VERSION:
            raise ValueError(
                f"schema_version {run.schema_version}, this release reads {RESULTS_SCHEMA_VERSION}"
            )
        results.run_id = run.run_id
        results.experiment = run.experiment
    elif kind == "session":
        session = validated(SessionRecord, content)
        before = results.sessions.get(
            session.session_id
        )  # a later line holds the readings at the end, not the rounds again
        results.sessions[session.session_id] = (
            session if before is None else replace(session, rounds=before.rounds)
        )
    elif kind == "sample":
        sample = validated(RequestSample, content["sample"])
        if sample.sequence_count < 1:
            raise ValueError(
                f"sequence_count is {sample.sequence_count}, a request has at least one sequence"
            )
        pending.setdefault((content["session_id"], content["round_index"]), []).append(sample)
    elif kind == "round":
        _take_round(results, pending, content)
    elif kind == "session_end":
        reasons = validated(tuple[InvalidReason, ...], content["invalid_reasons"])
        results.sessions[content["session_id"]] = replace(
            results.sessions[content["session_id"]], invalid_reasons=reasons
        )
        results.ended_sessions.add(content["session_id"])
    elif kind == "cell":
        cell = validated(FinishedCell, content)
        results.cells[cell.key] = cell
    else:
        raise ValueError("unknown kind")


def _take_round(
    results: RunResults, pending: dict[tuple[str, int], list[RequestSample]], content: Any
) -> None:
    record = validated(RoundRecord, content["round"])
    samples = tuple(pending.pop((content["session_id"], record.round_index), ()))
    # a killed run may have left samples of the same round: the last ones count
    samples = samples[max(len(samples) - content["sample_count"], 0) :]
    if len(samples) != content["sample_count"]:
        raise ValueError(
            f"round {record.round_index} has {len(samples)} samples, its record says"
            f" {content['sample_count']}"
        )
    session = results.sessions[content["session_id"]]
    if any(known.round_index == record.round_index for known in session.rounds):
        raise ValueError(
            f"round {record.round_index} of session {session.session_id} appears twice: it would"
            " count twice"
        )
    results.sessions[session.session_id] = replace(
        session, rounds=(*session.rounds, replace(record, samples=samples))
    )


def cut_partial_line(path: Path) -> bool:
    """Cut a partly written last line off; True when there was one."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    data = path.read_bytes()
    if data.endswith(b"\n"):
        return False
    os.truncate(path, data.rfind(b"\n") + 1)
    return True


def _shallow(record: Any) -> dict[str, Any]:
    return {part.name: getattr(record, part.name) for part in fields(record)}
