"""Standard streams and signals of a command, so that neither a closed pipe nor a signal
changes what its exit status says.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, TextIO, cast

AFTER_IMPORT_S: Final = 0.05
"""How long a signal waits before it asks again whether the import has ended."""


class LastingStream:
    """A text stream that outlives its reader: what cannot be written is dropped, and
    ``problem`` says why.

    ``k3perf merge | head -1`` then still ends with the verdict's status, and a full
    disk is reported once, at the end.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.problem: OSError | None = None
        with suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined] # a terminal's encoding may lack a character

    def write(self, text: str) -> int:
        """As the stream's own."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def writelines(self, lines: Any) -> None:
        """As the stream's own."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """As the stream's own."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """What is buffered goes nowhere: the interpreter flushes once more when it
        ends, and would complain.
        """
        if self.problem is None:
            self.problem = error
        with suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_streams() -> Iterator[LastingStream]:
    """Standard output and error as ``LastingStream`` while the block runs. Yields the
    output. A closed stream is replaced.
    """
    before = sys.stdout, sys.stderr
    output, error = (
        LastingStream(stream if stream is not None else _nowhere()) for stream in before
    )
    sys.stdout, sys.stderr = cast(TextIO, output), cast(TextIO, error)
    try:
        yield output
    finally:
        output.flush()
        error.flush()
        sys.stdout, sys.stderr = before


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - lasts as long as the process


@contextmanager
def ending_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that they end a command in
    the same way. An import ends first.

    A signal that is ignored (nohup) stays ignored. Outside the main thread nothing is
    changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        if not _in_import(frame):
            raise KeyboardInterrupt(signal.Signals(number).name)
        again = threading.Timer(AFTER_IMPORT_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _in_import(frame: FrameType | None) -> bool:
    """Whether an import is under way in ``frame``.

    KeyboardInterrupt cannot end one cleanly. A compiled module turns it into a panic or
    an ImportError. In a string that is executed, as dataclasses do, CPython notes it
    and kills the process with SIGINT at its end (``run_eval_code_obj``).
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
            return True
        frame = frame.f_back
    return False
