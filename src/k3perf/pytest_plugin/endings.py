"""What a pytest run ends with: one documented status out of verdicts, other failures
and pytest's own word.

Status 1 is a proven regression and nothing else. pytest gives it to every failed test,
and the interpreter to every traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from k3perf.errors import ExitStatus, K3PerfError, explain
from k3perf.records.outcome import Outcome, exit_status, join

ORDER: Final = (
    ExitStatus.REGRESSED,
    ExitStatus.INTERRUPTED,
    ExitStatus.CONFIG_DRIFT,
    ExitStatus.NO_BASELINE,
    ExitStatus.USAGE,
    ExitStatus.INTERNAL_ERROR,
    ExitStatus.INVALID,
    ExitStatus.SUSPECT,
    ExitStatus.INCONCLUSIVE,
)
"""If several apply, the first one is the run's. Those that a retry cannot change come
first.
"""


@dataclass
class Endings:
    """What was seen so far of a run's end. ``failures``: statuses of everything that
    failed and is not a verdict.
    """

    strict: bool = False
    checked: list[Outcome] = field(default_factory=list)
    verdict_failures: list[BaseException] = field(default_factory=list)
    failures: list[ExitStatus] = field(default_factory=list)
    interrupted: bool = False

    def fail_with(self, text: str) -> None:
        """Fail the calling test because of a verdict that is in ``checked``."""
        failure = pytest.fail.Exception(text, pytrace=False)
        self.verdict_failures.append(failure)
        raise failure

    def settle(self, outcomes: Iterable[Outcome]) -> None:
        """The run's last word on its cells: a REGRESSED that the noise of the whole run
        takes back is INVALID.
        """
        found = set(outcomes)
        if found and Outcome.REGRESSED not in found:
            self.checked = [
                Outcome.INVALID if one is Outcome.REGRESSED else one for one in self.checked
            ]

    def status(self, of_pytest: int) -> int:
        """The run's status. ``of_pytest``: what pytest would end with."""
        found: list[int] = [exit_status(join(self.checked), strict=self.strict), *self.failures]
        if self.interrupted:
            found.append(ExitStatus.INTERRUPTED)
        known = next((status for status in ORDER if status in found), None)
        if of_pytest in (
            ExitStatus.OK,
            ExitStatus.REGRESSED,
            ExitStatus.INTERRUPTED,
            ExitStatus.INTERNAL_ERROR,
        ):
            # 1 and no failed report that says why: a plugin counts its own failures
            unexplained = (
                ExitStatus.INTERNAL_ERROR if of_pytest == ExitStatus.REGRESSED else of_pytest
            )
            return unexplained if known is None else known
        if known is None or of_pytest not in ORDER:
            return of_pytest if known is None else known
        return min(known, ExitStatus(of_pytest), key=ORDER.index)

    def escaped(self, error: BaseException) -> int:
        """The status of an error at the run's very end, which it shows, unless the
        reader of the output is gone.
        """
        if isinstance(error, BrokenPipeError | KeyboardInterrupt):
            self.interrupted = True
            return self.status(ExitStatus.INTERRUPTED)
        if isinstance(error, K3PerfError | OSError):
            text, status = explain(error)
        else:
            text, status = (
                f"a plugin failed at the run's end: {type(error).__name__}: {error}",
                ExitStatus.INTERNAL_ERROR,
            )
        self.failures.append(_status_of(error, status))
        with suppress(OSError):
            sys.stderr.write(f"k3perf: {text}\n")
        return self.status(ExitStatus.OK)


class EndingHooks:
    """The hooks through which pytest reports failures: a separate plugin, since some of
    them name no configuration.
    """

    def __init__(self, endings: Endings) -> None:
        self._endings = endings

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A failure that is not a verdict has its own status."""
        report = yield
        self._note(report, call.excinfo, ExitStatus.INTERNAL_ERROR)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A module that cannot be imported is wrong use."""
        report = yield
        self._note(
            report, getattr(getattr(report, "call", None), "excinfo", None), ExitStatus.USAGE
        )
        return report

    def _note(
        self,
        report: Any,
        excinfo: pytest.ExceptionInfo[BaseException] | None,
        otherwise: ExitStatus,
    ) -> None:
        error = excinfo.value if excinfo is not None else None
        if not report.failed:
            return
        if any(error is failure for failure in self._endings.verdict_failures):
            # pytest's short summary repeats a whole message where CI is set
            if (crash := getattr(report.longrepr, "reprcrash", None)) is not None:
                crash.message = crash.message.partition("\n")[0]
            return
        # its message says all; a traceback would hide it
        if isinstance(error, K3PerfError):
            report.longrepr = f"{type(error).__name__}: {error}"
        self._endings.failures.append(_status_of(error, otherwise))

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """An exception in a hook, which ends the run. If the reader of the output is
        gone, whichever write noticed it, the run was interrupted.
        """
        if isinstance(excinfo.value, BrokenPipeError):
            self._endings.interrupted = True
            return
        self._endings.failures.append(_status_of(excinfo.value, ExitStatus.INTERNAL_ERROR))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """A signal, or ``pytest.exit`` without a status. pytest raises interrupts of
        its own for broken modules and --stepwise.
        """
        error = excinfo.value
        of_exit = isinstance(error, pytest.exit.Exception) and error.returncode is None
        self._endings.interrupted = (
            self._endings.interrupted or of_exit or type(error) is KeyboardInterrupt
        )


def _status_of(error: BaseException | None, otherwise: ExitStatus) -> ExitStatus:
    """Of a failure that is not a verdict: never that of a regression, whatever an error
    class says.
    """
    status = error.exit_status if isinstance(error, K3PerfError) else otherwise
    if isinstance(error, pytest.UsageError):
        return ExitStatus.USAGE
    return ExitStatus.INTERNAL_ERROR if status in (ExitStatus.REGRESSED, ExitStatus.OK) else status


def open_closed_streams() -> None:
    """Give a call whose standard output or error is closed (``>&-``) one that leads
    nowhere. pytest ends with status 1, a regression's, without them.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - lasts as long as the process
            setattr(sys, name, nowhere)
            setattr(sys, f"__{name}__", nowhere)


def settle_output() -> bool:
    """Flush standard output. Drop what is left if its reader is gone: pytest would end
    with status 1 for it. Whether anything was dropped for that reason.
    """
    if sys.stdout is None:
        return False
    try:
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        return isinstance(error, BrokenPipeError)
    return False
