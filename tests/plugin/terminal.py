"""A real terminal for a command: a pty, what the command wrote to it and when, and what
a person would see.
"""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path

COLUMNS, LINES = 110, 40
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"
_CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|[^\x1b]|\x1b")


class TerminalRun:
    """A command on a pty of its own, which is also its controlling terminal: Ctrl-C
    reaches it as from a keyboard.
    """

    def __init__(self, command: list[str], *, cwd: Path, environment: dict[str, str]) -> None:
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(command[0], command, environment)  # noqa: S606
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.output = b""
        self._ended = False

    def read(self, seconds: float) -> None:
        """Whatever is written within ``seconds`` at most; returns at the first of it."""
        if not self._ended and select.select([self._descriptor], [], [], seconds)[0]:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except OSError:  # the last process has closed its end
                data = b""
            self._ended = not data
            self.output += data

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Return when ``text`` was written; AssertionError when the command ends or
        time passes without it.
        """
        deadline = time.monotonic() + seconds
        while text.encode() not in self.output:
            assert not self._ended, self.output.decode(errors="replace")
            assert time.monotonic() < deadline, self.output.decode(errors="replace")
            self.read(0.2)

    def type(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def end(self, seconds: float = 120) -> int:
        """Wait for the end; the exit status."""
        deadline = time.monotonic() + seconds
        while not self._ended:
            assert time.monotonic() < deadline, self.output.decode(errors="replace")
            self.read(0.5)
        os.close(self._descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def seen(self) -> list[str]:
        """The lines that are left on the screen, scrolled ones included."""
        return drawn(self.output.decode(errors="replace"))


def drawn(text: str) -> list[str]:
    """What a terminal shows after ``text``: the controls that rich and pytest use, on a
    screen without an end.
    """
    rows: list[list[str]] = [[]]
    row = column = 0
    for match in _CONTROL.finditer(text):
        character, count = match[0], int(match[1]) if (match[1] or "").isdigit() else 1
        if match[2] == "A":
            row -= count
            assert row >= 0, "the cursor left the screen"
        elif match[2] == "C":
            column += count
        elif match[2] == "K":
            rows[row] = []
        elif match[2]:
            # colours, and showing or hiding the cursor
            assert match[2] in "mhl", match[0]
        elif character == "\r":
            column = 0
        elif character == "\n":
            row += 1
            rows += [[] for _ in range(row + 1 - len(rows))]
        else:
            rows[row] += [" "] * (column + 1 - len(rows[row]))
            rows[row][column] = character
            column += 1
    return ["".join(characters).rstrip() for characters in rows]
