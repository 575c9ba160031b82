"""What a run ends with, over every combination of what can be known at its end."""

from __future__ import annotations

import itertools

import pytest

from k3perf.errors import (
    ExitStatus,
    K3PerfError,
    MeasurementInvalid,
    UsageError,
    explain,
)
from k3perf.pytest_plugin.endings import ORDER, Endings
from k3perf.records.outcome import Outcome

OF_PYTEST = [*range(7), 77]
FAILURES = [
    None,
    ExitStatus.USAGE,
    ExitStatus.INTERNAL_ERROR,
    ExitStatus.INVALID,
    ExitStatus.CONFIG_DRIFT,
]


def ending(
    outcome: Outcome | None, failure: ExitStatus | None, *, interrupted: bool, strict: bool
) -> Endings:
    checked = [Outcome.PASS] if outcome is None else [outcome, Outcome.PASS]
    return Endings(
        strict, checked, failures=[] if failure is None else [failure], interrupted=interrupted
    )


@pytest.mark.parametrize("of_pytest", OF_PYTEST)
def test_status_1_is_a_proven_regression_and_a_proven_regression_is_status_1(
    of_pytest: int,
) -> None:
    for outcome, failure, interrupted, strict in itertools.product(
        [None, *Outcome], FAILURES, (False, True), (False, True)
    ):
        status = ending(outcome, failure, interrupted=interrupted, strict=strict).status(of_pytest)
        assert (status == ExitStatus.REGRESSED) == (outcome is Outcome.REGRESSED), (
            outcome,
            failure,
            interrupted,
        )
        failed = (
            failure is not None
            or interrupted
            or outcome not in (None, Outcome.PASS, Outcome.IMPROVED, Outcome.INCONCLUSIVE)
        )
        assert status or not (failed or of_pytest), "a failure is never status 0"


def test_the_first_of_the_order_is_the_runs() -> None:
    outcomes = {
        ExitStatus.REGRESSED: Outcome.REGRESSED,
        ExitStatus.CONFIG_DRIFT: Outcome.CONFIG_DRIFT,
        ExitStatus.NO_BASELINE: Outcome.NO_BASELINE,
        ExitStatus.INVALID: Outcome.INVALID,
        ExitStatus.SUSPECT: Outcome.SUSPECT,
        ExitStatus.INCONCLUSIVE: Outcome.INCONCLUSIVE,
    }
    for first, second in itertools.combinations(ORDER, 2):
        checked = [outcomes[status] for status in (second, first) if status in outcomes]
        failures = [
            status
            for status in (second, first)
            if status in (ExitStatus.USAGE, ExitStatus.INTERNAL_ERROR)
        ]
        interrupted = ExitStatus.INTERRUPTED in (first, second)
        # two verdicts are joined by the gate's own order
        if first in outcomes and second in outcomes and second is ExitStatus.INCONCLUSIVE:
            continue
        assert (
            Endings(True, checked, failures=failures, interrupted=interrupted).status(1) == first
        ), (first, second)


@pytest.mark.parametrize(
    ("of_pytest", "status"),
    [(0, 0), (1, 3), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (10, 10), (77, 77)],
)
def test_where_nothing_was_checked_pytests_own_word_holds_but_for_1(
    of_pytest: int, status: int
) -> None:
    assert Endings().status(of_pytest) == status


class Own(K3PerfError):
    exit_status = ExitStatus.REGRESSED


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("x"), 4),
        (MeasurementInvalid("x"), 10),
        (Own("x"), 3),
        (ValueError("x"), 3),
        (FileNotFoundError(2, "no such file", "x"), 4),
        (OSError(28, "no space", "x"), 10),
        (KeyboardInterrupt(), 2),
        (BrokenPipeError(), 2),
    ],
)
def test_an_error_at_the_very_end(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Endings().escaped(error) == status
    assert Endings(checked=[Outcome.REGRESSED]).escaped(error) == ExitStatus.REGRESSED
    told = capsys.readouterr().err
    assert len(told.splitlines()) == (0 if status == 2 else 2)


def test_every_error_class_has_a_documented_status_that_is_not_1() -> None:
    import k3perf.engine.bundle.wheels  # noqa: F401 - has a class of its own

    def below(kind: type[K3PerfError]) -> set[type[K3PerfError]]:
        return {kind}.union(
            *(below(sub) for sub in kind.__subclasses__() if sub.__module__.startswith("k3perf"))
        )

    for kind in below(K3PerfError):
        assert kind.exit_status in set(ExitStatus) - {ExitStatus.OK, ExitStatus.REGRESSED}, kind


def test_an_error_without_a_class_of_its_own_says_where_it_came_from() -> None:
    try:
        {}["gone"]
    except KeyError as error:
        text, status = explain(error)
    assert status == ExitStatus.INTERNAL_ERROR
    assert text.startswith("internal error: KeyError: 'gone' at test_endings.py:")
    assert "K3PERF_TRACEBACK=1" in text


def test_a_regression_that_the_runs_noise_takes_back_is_no_status_1() -> None:
    endings = ending(Outcome.REGRESSED, None, interrupted=False, strict=False)
    endings.settle([])
    endings.settle([Outcome.REGRESSED, Outcome.INVALID])
    assert endings.status(1) == ExitStatus.REGRESSED
    endings.settle([Outcome.INVALID, Outcome.PASS])
    assert endings.status(1) == ExitStatus.INVALID
