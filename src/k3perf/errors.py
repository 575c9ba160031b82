"""Every error the suite raises on purpose, and the exit status each one means.

    K3PerfError                     1   (never raised itself)
    +-- UsageError                  4   bad input: a file, key, option or argument
    |   +-- ConfigFileError         4   one YAML or JSON document, with file, key and value
    |   +-- UnknownNameError        4   a target, config, workload or metric nobody declared
    +-- MeasurementInvalid         10   the reading cannot be trusted; not the engine's fault or not provably so
    |   +-- PreflightError         10   the machine is not fit to start
    |   +-- EngineError            10   the engine died, hung or refused; carries the root cause
    +-- BaselineMissing            11   no committed baseline for a cell
    +-- ConfigDrift                12   the engine resolved another configuration than the approved one
    +-- Inconclusive               13   only with --k3-strict

Messages name the value, the limit and the next step. ``ExitStatus`` is the documented table (docs/operating.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path


class ExitStatus(IntEnum):
    """Exit statuses of ``pytest perf_tests`` and of ``k3perf``; 2, 3 and 5 keep pytest's own meaning."""

    OK = 0
    REGRESSED = 1
    INTERRUPTED = 2
    INTERNAL_ERROR = 3
    USAGE = 4
    NO_TESTS = 5
    INVALID = 10
    NO_BASELINE = 11
    CONFIG_DRIFT = 12
    INCONCLUSIVE = 13


class K3PerfError(Exception):
    """Root of the tree; ``exit_status`` is what a command ends with when the error reaches its top."""

    exit_status: ExitStatus = ExitStatus.REGRESSED


class UsageError(K3PerfError):
    """Something the caller wrote cannot be meant."""

    exit_status = ExitStatus.USAGE


class ConfigFileError(UsageError):
    """A document of the suite cannot be used: names the file, the key, the value and what to do next.

    ``others``: further problems, of the same file or of others, that this stop reports too.
    """

    def __init__(
        self, path: Path | str, key: str, value: object, problem: str, next_step: str, *, others: tuple[ConfigFileError, ...] = ()
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
            at = f" at {self.key!r}" if self.key else ""
            return f"{self.path}{at}: {self._text}"
        files: dict[Path, list[ConfigFileError]] = {}
        for problem in self.problems:
            files.setdefault(problem.path, []).append(problem)
        blocks = []
        for path, found in files.items():
            lines = dict.fromkeys(f"  {f'at {one.key!r}: ' if one.key else ''}{one._text}" for one in found)
            blocks.append(f"{path}: {len(lines)} problem{'s' if len(lines) > 1 else ''}\n" + "\n".join(lines))
        return "\n".join(blocks)

    @property
    def _text(self) -> str:
        shown = "" if self.value is None else f" (value: {self.value!r})"
        return f"{self.problem}{shown}. {self.next_step}"


def raise_all(problems: Iterable[ConfigFileError]) -> None:
    """Raise one error that reports every one of ``problems``; do nothing where there are none."""
    every = [single for problem in problems for single in problem.problems]
    found = list({str(single): single for single in every}.values())
    if found:
        first = found[0]
        raise ConfigFileError(first.path, first.key, first.value, first.problem, first.next_step, others=tuple(found[1:]))


class UnknownNameError(UsageError):
    """A name that was asked for is not declared. The message lists those that are, then ``next_step``."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...], next_step: str = "") -> None:
        self.kind = kind
        self.name = name
        self.known = known
        listed = f"Use one of: {', '.join(known)}." if known else "There is none."
        super().__init__(f"unknown {kind} {name!r}. {listed} {next_step}".rstrip())


class MeasurementInvalid(K3PerfError):
    """The measurement was spoiled; neither a regression nor a pass follows from it."""

    exit_status = ExitStatus.INVALID


class PreflightError(MeasurementInvalid):
    """The machine or device is not fit to start an engine; says what was read and what was needed."""


class EngineError(MeasurementInvalid):
    """The engine did not start, died or hung.

    ``root_cause`` is the first error of the deepest process in its log; ``log_tail`` the last lines; ``stage`` where it was.
    ``log_path`` is the log, empty until whoever started the engine adds it.
    """

    def __init__(self, message: str, *, stage: str = "", root_cause: str = "", log_tail: tuple[str, ...] = (), log_path: str = "") -> None:
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
            parts.append("last lines of the engine's log:\n" + "\n".join(f"  | {line}" for line in self.log_tail))
        if self.log_path:
            parts.append(f"whole log: {self.log_path}")
        return "\n".join(parts)


class BaselineMissing(K3PerfError):
    """No committed baseline; the message holds the command that makes one."""

    exit_status = ExitStatus.NO_BASELINE


class ConfigDrift(K3PerfError):
    """The engine resolved another configuration than the one approved."""

    exit_status = ExitStatus.CONFIG_DRIFT


class Inconclusive(K3PerfError):
    """The budget ended before the evidence decided."""

    exit_status = ExitStatus.INCONCLUSIVE
