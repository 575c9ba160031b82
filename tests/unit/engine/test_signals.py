from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from k3perf.engine import signals


@pytest.fixture(autouse=True)
def same_handlers_after() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in signals.ENDING_SIGNALS}
    yield
    after = {number: signal.getsignal(number) for number in signals.ENDING_SIGNALS}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.mark.parametrize("number", signals.ENDING_SIGNALS)
def test_the_first_raises_the_second_is_told_the_third_raises(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    restore = signals.install()
    try:
        with pytest.raises(KeyboardInterrupt, match=number.name):
            signal.raise_signal(number)
        signal.raise_signal(number)
        assert "The engines are stopping" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    finally:
        restore()


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    restore = signals.install()
    try:
        signal.raise_signal(signal.SIGHUP)
        with signals.deferred():
            signal.raise_signal(signal.SIGHUP)
    finally:
        restore()
        signal.signal(signal.SIGHUP, before)


def test_a_deferred_signal_comes_at_the_end_of_the_block() -> None:
    reached = []

    def section() -> None:
        with signals.deferred():
            signal.raise_signal(signal.SIGINT)
            reached.append("inside")
        reached.append("after")

    with pytest.raises(KeyboardInterrupt):
        section()
    assert reached == ["inside"]


def test_deferral_nests() -> None:
    reached = []

    def section() -> None:
        with signals.deferred():
            with signals.deferred():
                signal.raise_signal(signal.SIGINT)
            reached.append("between")

    with pytest.raises(KeyboardInterrupt):
        section()
    assert reached == ["between"]


def test_other_threads_are_left_alone() -> None:
    done = []

    def work() -> None:
        restore = signals.install()
        with signals.deferred():
            done.append(True)
        restore()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
