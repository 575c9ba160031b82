"""Every error the suite raises on purpose, and the exit status each one means.

    K3PerfError                     3   (never raised itself)
    +-- UsageError                  4   bad file, key, option or argument
    |   +-- ConfigFileError         4   one document, with file, key, value
    |   +-- UnknownNameError        4   a name that is not declared
    +-- MeasurementInvalid         10   the reading cannot be trusted
        +-- PreflightError         10   the machine is not fit to start
        +-- EngineError            10   the engine died, with its cause

Messages name the value, the limit and the next step. docs/exit-statuses.md is made
from ``STATUS_MEANINGS``. No error has status 1: that is a proven regression's alone,
and a verdict, not an error.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from socket import gaierror
from traceback import extract_tb
from typing import Final


class ExitStatus(IntEnum):
    """Exit statuses of ``pytest perf_tests`` and of ``k3perf``. 2, 3, 5 and 6 keep
    pytest's meaning.
    """

    OK = 0
    REGRESSED = 1
    INTERRUPTED = 2
    INTERNAL_ERROR = 3
    USAGE = 4
    NO_TESTS = 5
    MAX_WARNINGS = 6
    INVALID = 10
    NO_BASELINE = 11
    CONFIG_DRIFT = 12
    INCONCLUSIVE = 13
    SUSPECT = 14
    JUDGE_CHANGED = 15
    OBJECTIVE_MISSED = 16


STATUS_MEANINGS: Final = {
    ExitStatus.OK: "every cell is PASS or IMPROVED (INCONCLUSIVE too, without `--k3-strict`)",
    ExitStatus.REGRESSED: "a proven loss, and nothing else",
    ExitStatus.INTERRUPTED: (
        "SIGINT, SIGTERM or SIGHUP, `pytest.exit`, or the reader of pytest's output is gone"
    ),
    ExitStatus.INTERNAL_ERROR: (
        "a bug, or a test, fixture, hook or plugin of the suite that failed by itself"
    ),
    ExitStatus.USAGE: (
        "wrong use: an argument, a file, a key, a test module that cannot be imported"
    ),
    ExitStatus.NO_TESTS: "nothing was collected",
    ExitStatus.MAX_WARNINGS: "more warnings than pytest's `--max-warnings` allows",
    ExitStatus.INVALID: (
        "the machine, the engine, the network or a round was not fit to judge; of a script in"
        " `scripts/`: the set-up failed"
    ),
    ExitStatus.NO_BASELINE: "a cell has no baseline, or only candidates were selected",
    ExitStatus.CONFIG_DRIFT: "the resolved configuration differs from the approved one",
    ExitStatus.INCONCLUSIVE: (
        "the measurement plan ended before the evidence decided, and the estimate lies inside the"
        " tolerance, under `--k3-strict`"
    ),
    ExitStatus.SUSPECT: (
        "a loss beyond the tolerance was estimated and not proven with the sessions of the plan"
    ),
    ExitStatus.JUDGE_CHANGED: (
        "a change makes its own judge looser and no person acknowledged it"
        " (`k3perf ci check-judge`)"
    ),
    ExitStatus.OBJECTIVE_MISSED: (
        "an endpoint does not meet an objective (`k3perf load run --slo`)"
    ),
}


_SHOWN_CHARACTERS: Final = 200


def shortened(text: str) -> str:
    """``text`` as a message can hold it: what a file or a command line gives may be of
    any length.
    """
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


class K3PerfError(Exception):
    """Root of the tree; ``exit_status`` is what a command ends with when the error
    reaches its top.
    """

    exit_status: ExitStatus = ExitStatus.INTERNAL_ERROR


class UsageError(K3PerfError):
    """Invalid input from the caller."""

    exit_status = ExitStatus.USAGE


class ConfigFileError(UsageError):
    """A document cannot be used: names file, key, value, problem and next step.

    ``others``: further problems, in the same file or in others.
    """

    def __init__(
        self,
        path: Path | str,
        key: str,
        value: object,
        problem: str,
        next_step: str,
        *,
        others: tuple[ConfigFileError, ...] = (),
    ) -> None:
        super().__init__(problem)
        self.path = Path(path)
        self.key = key
        self.value = value
        self.problem = problem
        self.next_step = next_step
        self.others = others

    @property
    def problems(self) -> tuple[ConfigFileError, ...]:
        """This problem and the others, each alone."""
        alone = ConfigFileError(self.path, self.key, self.value, self.problem, self.next_step)
        return (alone, *(single for other in self.others for single in other.problems))

    def __str__(self) -> str:
        if not self.others:
            at = f" at {shortened(self.key)!r}" if self.key else ""
            return f"{self.path}{at}: {self._text}"
        files: dict[Path, list[ConfigFileError]] = {}
        for problem in self.problems:
            files.setdefault(problem.path, []).append(problem)
        blocks = []
        for path, found in files.items():
            lines = dict.fromkeys(
                f"  {f'at {shortened(one.key)!r}: ' if one.key else ''}{one._text}" for one in found
            )
            blocks.append(
                f"{path}: {len(lines)} problem{'s' if len(lines) > 1 else ''}\n" + "\n".join(lines)
            )
        return "\n".join(blocks)

    @property
    def _text(self) -> str:
        shown = "" if self.value is None else f" (value: {shortened(repr(self.value))})"
        return f"{self.problem}{shown}. {self.next_step}"


def raise_all(problems: Iterable[ConfigFileError]) -> None:
    """Raise one error that reports every one of ``problems``; do nothing where there
    are none.
    """
    every = [single for problem in problems for single in problem.problems]
    found = list({str(single): single for single in every}.values())
    if found:
        first = found[0]
        raise ConfigFileError(
            first.path,
            first.key,
            first.value,
            first.problem,
            first.next_step,
            others=tuple(found[1:]),
        )


class UnknownNameError(UsageError):
    """A name that was asked for is not declared. The message lists those that are, then
    ``next_step``.
    """

    def __init__(self, kind: str, name: str, known: tuple[str, ...], next_step: str = "") -> None:
        self.kind = kind
        self.name = name
        self.known = known
        listed = f"Use one of: {', '.join(known)}." if known else "There is none."
        super().__init__(f"unknown {kind} {shortened(name)!r}. {listed} {next_step}".rstrip())


class MeasurementInvalid(K3PerfError):
    """The measurement was spoiled; neither a regression nor a pass follows from it."""

    exit_status = ExitStatus.INVALID


class PreflightError(MeasurementInvalid):
    """The machine or device is not fit to start an engine; says what was read and what
    was needed.
    """


class EngineError(MeasurementInvalid):
    """The engine did not start, died or hung.

    ``root_cause`` is the first error of the deepest process in its log; ``log_tail``
    the last lines; ``stage`` where it was. ``log_path`` is the log, empty until the
    caller that started the engine adds it.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: str = "",
        root_cause: str = "",
        log_tail: tuple[str, ...] = (),
        log_path: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.root_cause = root_cause
        self.log_tail = log_tail
        self.log_path = log_path

    def __str__(self) -> str:
        parts = [self.message]
        if self.root_cause:
            parts.append(f"root cause: {self.root_cause}")
        if self.log_tail:
            parts.append(
                "last lines of the engine's log:\n"
                + "\n".join(f"  | {line}" for line in self.log_tail)
            )
        if self.log_path:
            parts.append(f"whole log: {self.log_path}")
        return "\n".join(parts)


TRACEBACK_VARIABLE: Final = "K3PERF_TRACEBACK"
"""Set in the environment, it makes the commands show a traceback instead of one line.
"""

# What a machine lacks, whichever file it was noticed at.
MACHINE_ERRNOS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EAGAIN}
)


_PAGE: Final = re.compile(r"docs/([\w-]+)\.md")
_SITE: Final = "https://github.com/k3perf/k3perf/blob/main/"


def with_reachable_pages(text: str) -> str:
    """``text`` with addresses for pages that this machine lacks: an installed wheel
    holds no ``docs/``.
    """
    return _PAGE.sub(lambda page: page[0] if Path(page[0]).is_file() else f"{_SITE}{page[0]}", text)


def explain(error: BaseException) -> tuple[str, ExitStatus]:
    """One message and the exit status for any error that ends a command or a run."""
    if isinstance(error, K3PerfError):
        return with_reachable_pages(str(error)), error.exit_status
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted{f' by {error}' if str(error) else ''}", ExitStatus.INTERRUPTED
    if isinstance(error, OSError):
        next_step, status = _os_advice(error)
        return f"{shortened(str(error))}. {next_step}", status
    if isinstance(error, MemoryError):
        return (
            "out of memory. End other processes, or use a machine with more memory.",
            ExitStatus.INVALID,
        )
    frames = extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    said = shortened(" ".join(str(error).split()))
    text = (
        f"internal error: {type(error).__name__}{f': {said}' if said else ''}{place}. Set"
        f" {TRACEBACK_VARIABLE}=1 to see the traceback, and report it."
    )
    return text, ExitStatus.INTERNAL_ERROR


def _os_advice(error: OSError) -> tuple[str, ExitStatus]:
    """What to do next and the exit status: only an error that names a file is about
    what the caller wrote.
    """
    if isinstance(error, ConnectionError | TimeoutError | gaierror):
        return (
            "Check that the server runs and listens on the given host and port.",
            ExitStatus.INVALID,
        )
    if error.filename is not None and error.errno not in MACHINE_ERRNOS:
        return "Name a usable file or directory.", ExitStatus.USAGE
    return (
        (
            "The system refused the operation: check free disk space, memory and open files, and"
            " run the command again."
        ),
        ExitStatus.INVALID,
    )
