"""Signals of the harness's process: SIGTERM and SIGHUP become the clean end that SIGINT
already is, and short sections run undisturbed.

Handlers run in the main thread; from any other thread ``deferred`` does nothing,
because no handler can interrupt that thread.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def install(tell: Callable[[str], object] | None = None) -> Callable[[], None]:
    """Make SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt once; returns the
    function that restores what was there.

    The first signal raises, so that every ``finally`` and fixture runs and pytest ends
    with status 2. The second is only noted, since it would cut the clean end short;
    from the third on each raises again. A signal that was ignored at the start (nohup)
    stays ignored. ``tell`` shows the user a text from inside a signal handler; by
    default it goes to ``sys.stderr``.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    seen: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 2:
            (tell or sys.stderr.write)(
                f"\nk3perf: {signal.Signals(number).name} again. The engines are stopping; this"
                " takes seconds.\n"
            )
            return
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handle)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    return restore


@contextmanager
def deferred() -> Iterator[None]:
    """Hold back ending signals while the block runs; what came is delivered at its end.

    For the two moments in which an exception from nowhere would lose a process: between
    its start and its entry in the books, and its end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda received, _frame: held.append(received))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        for received in dict.fromkeys(held):
            signal.raise_signal(received)
