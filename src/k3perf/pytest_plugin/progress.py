"""Live progress with rich while engines start and rounds run; plain lines where the output is no terminal."""

from __future__ import annotations

import sys
import time
from typing import Any


class LiveProgress:
    """Draws one status line with rich on a terminal, else writes a line per step to the real stderr."""

    def __init__(self, *, live: bool) -> None:
        self._started_s = time.monotonic()
        self._status: Any = None
        if live and sys.__stderr__ is not None and sys.__stderr__.isatty():
            from rich.console import Console

            self._status = Console(file=sys.__stderr__).status("starting")
            self._status.start()

    def stage(self, engine: str, stage: str) -> None:
        """An engine reached a stage."""
        self._say(f"{engine}: {stage}")

    def round(self, cell: str, arm: str, done_count: int, planned_count: int, detail: str) -> None:
        """A round ended."""
        suffix = f" - invalid: {detail}" if detail else ""
        what = "warm-up" if done_count == 0 else f"round {done_count} of at most {planned_count}"
        self._say(f"{cell}: {arm} {what}{suffix}")

    def note(self, text: str) -> None:
        """Something worth a line that stays."""
        if self._status is not None:
            self._status.console.print(text, markup=False, highlight=False)
        else:
            self._say(text)

    def close(self) -> None:
        """Take the status line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _say(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._started_s
        if self._status is not None:
            from rich.markup import escape

            self._status.update(escape(f"{elapsed_s:4.0f} s  {text}"))
        elif sys.__stderr__ is not None:
            sys.__stderr__.write(f"[k3perf {elapsed_s:4.0f} s] {text}\n")
            sys.__stderr__.flush()
