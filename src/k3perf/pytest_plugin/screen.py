"""The terminal or log that pytest reports to, reached past pytest's capture.

While a test runs, pytest's default capture points descriptors 1 and 2 at a temporary
file. What is written there is seen only when the test fails. A duplicate made while
nothing is captured stays what it was.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    import pytest
    from rich.console import Console

FALLBACK_SIZE: Final = os.terminal_size((80, 25))


class Screen:
    """Writes whole lines between what pytest writes. ``live``: a terminal on which
    lines can be drawn again.

    Never raises: a screen that cannot be written to (a closed pipe, a full disk) is
    written to no more.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin(
            "terminalreporter"
        )
        self._open_line, self._column = "", 0
        self._wrote_lines = False
        self._away = False
        with _uncaptured(config):
            stream = sys.stdout if self._reporter is not None else sys.stderr
            self.file, self._owned = _duplicate(stream)
        self.color = self._reporter is not None and self._reporter.hasmarkup
        self.live = (
            self._owned
            and self.file.isatty()
            and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
        )

    @property
    def size(self) -> os.terminal_size:
        """The terminal's columns and lines now; 80 by 25 where they are unknown."""
        try:
            found = os.get_terminal_size(self.file.fileno())
        except (OSError, ValueError):
            return FALLBACK_SIZE
        return found if all(found) else FALLBACK_SIZE

    def enter(self) -> None:
        """Leave pytest's unfinished line (``test_latency.py ``) and go to the next one.
        Idempotent until ``leave``.
        """
        if self._away:
            return
        self._away, self._wrote_lines = True, False
        writer = self._reporter._tw if self._reporter is not None else None
        self._open_line = getattr(writer, "_current_line", "")
        self._column = writer.width_of_current_line if writer is not None else 0
        if self._open_line:
            self.write("\n")

    def leave(self) -> None:
        """Go back to pytest's unfinished line, or write it again below lines that were
        written meanwhile.
        """
        if not self._away:
            return
        self._away = False
        if not self._open_line:
            return
        if self.live and not self._wrote_lines:
            column = self._column % self.size.columns
            self.write(f"\r\x1b[A\x1b[{column}C" if column else "\r\x1b[A")
        else:
            # results that it ends with are on the screen already: writing them twice
            # would look like more tests
            self.write(self._open_line if self._open_line.endswith(" ") else " " * self._column)

    def line(self, text: str) -> None:
        """One line that stays."""
        self.enter()
        self._wrote_lines = True
        self.write(text + "\n")

    def write(self, text: str) -> None:
        """``text`` as it is, at once."""
        with contextlib.suppress(OSError, ValueError):
            self.file.write(text)
            self.file.flush()

    def urgent(self, text: str) -> None:
        """``text`` from a signal handler: past every buffer, since the interrupted code
        may be in the midst of one.
        """
        with contextlib.suppress(OSError, ValueError):
            os.write(self.file.fileno(), text.encode())

    def console(self) -> Console:
        """rich's console on this screen. It never hides the cursor, so no way out can
        leave it hidden.
        """
        from rich.console import Console

        class Terminal(Console):
            def show_cursor(self, show: bool = True) -> bool:
                """Only ever shows it."""
                return super().show_cursor(True) if show else False

        return Terminal(
            file=self.file,
            color_system="auto" if self.color else None,
            force_terminal=True,
            force_interactive=True,
            highlight=False,
        )

    def wrote_lines(self) -> None:
        """Lines that stay were written through ``console``."""
        self._wrote_lines = True

    def close(self) -> None:
        """Give the duplicate back."""
        if self._owned:
            with contextlib.suppress(OSError, ValueError):
                self.file.close()


def _uncaptured(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    capture = config.pluginmanager.get_plugin("capturemanager")
    return contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled()


def _duplicate(stream: TextIO) -> tuple[TextIO, bool]:
    """A new stream on the same file, and True; ``stream`` itself and False where
    it has no descriptor.
    """
    try:
        stream.flush()
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError, io.UnsupportedOperation):
        return stream, False
    return os.fdopen(descriptor, "w", encoding=stream.encoding, errors="replace"), True
