"""Why an engine died: what a log, or an end that was seen, says of it."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_LIKELY: Final = {
    signal.SIGKILL: "often the kernel's out-of-memory killer",
    signal.SIGBUS: "often a full /dev/shm",
    signal.SIGILL: "often a CPU without the instructions that a library was built for",
}


@dataclass(frozen=True, slots=True)
class RootCause:
    """Why an engine died.

    ``text`` is one line of at most 600 characters. ``process`` is the one that failed
    first: a name, ``rank N``, or empty where nothing names it. ``exit_code`` is how it
    ended, as ``Popen.returncode`` counts. None where that is unknown. ``second_hand``:
    the one that failed left no word, and the text is what another says about it.
    """

    text: str
    process: str = ""
    pid: int | None = None
    exit_code: int | None = None
    second_hand: bool = False

    @property
    def died(self) -> str:
        """Who failed first and how it ended. Empty where neither is known."""
        who = self.process + (f" (pid {self.pid})" if self.process and self.pid is not None else "")
        if self.exit_code is None:
            return f"{who} failed first" if who else ""
        return f"{who or 'A process'} ended first: {describe_end(self.exit_code)}"


def describe_end(exit_code: int) -> str:
    """``exit status 1``, or ``killed by SIGKILL (often the kernel's ...)``."""
    if exit_code >= 0:
        return f"exit status {exit_code}"
    with suppress(ValueError):
        number = signal.Signals(-exit_code)
        hint = f" ({_LIKELY[number]})" if number in _LIKELY else ""
        return f"killed by {number.name}{hint}"
    return f"killed by signal {-exit_code}"
