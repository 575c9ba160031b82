"""Progress while engines start and rounds run: a few lines drawn again on a terminal,
calm lines in a log.

Nothing is drawn while a round is measured: drawing takes a millisecond or two of the
thread that sends the requests.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from k3perf.pytest_plugin.screen import Screen
from k3perf.run.progress import Progress, RoundDone, Step
from k3perf.run.time_left import TimeLeft, duration_text

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

_REDRAW_S: Final = 1.0
QUIET, NORMAL, VERBOSE = -1, 0, 1  # pytest's -q, none, -v


class LiveProgress(Progress):
    """Listener of a run that reports on ``screen``.

    On a terminal a status of a few lines is drawn below pytest's own line while
    ``drawing`` is entered. In a log, or with ``plain``, each stage is one line.
    ``verbosity`` is pytest's: with -q only cells and notes, with -v each round too.
    """

    def __init__(self, screen: Screen, *, plain: bool = False, verbosity: int = NORMAL) -> None:
        self._screen = screen
        self._lines = plain or not screen.live
        self._verbosity = verbosity
        self._started_s = time.monotonic()
        self._lock = threading.RLock()
        self._left = TimeLeft(())
        self._cell = ""
        self._engines: dict[str, str] = {}
        self._rounds = ""
        self._decided: Counter[str] = Counter()
        self._wanted = ""
        self._live: Live | None = None
        self._measuring = False
        self._ticker_stop = threading.Event()
        self._ticker: threading.Thread | None = None

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Around everything that reports: on every way out the status is taken away and
        pytest's line restored.
        """
        try:
            yield
        finally:
            self._hide()
            self._screen.leave()

    def planned(self, steps: Sequence[Step]) -> None:
        """The run's steps."""
        self._left = TimeLeft(steps)

    def started(self, cell: str) -> None:
        """A cell, or a recording's session of it, begins."""
        with self._lock:
            self._left.start(cell)
            self._cell, self._rounds, self._wanted = cell, "", ""
            self._engines = {
                name: stage for name, stage in self._engines.items() if stage == "ready"
            }
        self._show(f"{self._title()}{self._left_text(', ')}", QUIET)

    def stage(self, engine: str, stage: str) -> None:
        """An engine reached a stage."""
        with self._lock:
            self._engines[engine] = stage
            text = f"{engine}: {stage}"
            if stage == "stop":
                del self._engines[engine]
        self._show(text, NORMAL)

    def measuring(self, arm: str) -> None:
        """A round begins: draw once more, then keep still."""
        with self._lock:
            self._rounds = (
                self._rounds.partition(", measuring ")[0] + f", measuring {arm}"
                if self._rounds
                else f"measuring {arm}"
            )
        self._show("", VERBOSE)
        self._measuring = True

    def round(self, done: RoundDone) -> None:
        """A round ended."""
        self._measuring = False
        name = f"round {done.number}" if done.number else "warm-up"
        with self._lock:
            self._left.round(done)
            unit = "valid pairs of rounds" if done.arm_count > 1 else "valid rounds"
            self._rounds = (
                f"{done.valid_count} of {done.wanted_count} {unit}" if done.number else "warmed up"
            )
            if done.session_number > 1:
                self._rounds += f" in session {done.session_number}"
            if done.invalid:
                self._rounds += f", last one invalid: {done.invalid}"
        invalid = f" is invalid: {done.invalid}" if done.invalid else ""
        self._show(f"{done.cell}: {done.arm} {name}{invalid}", NORMAL if invalid else VERBOSE)

    def undecided(self, cell: str, sessions_count: int, rounds_count: int) -> None:
        """The gate asks for more."""
        with self._lock:
            self._left.want(sessions_count, rounds_count)
            more = (
                f"up to {rounds_count} rounds"
                if rounds_count
                else f"up to {sessions_count} sessions"
            )
            self._wanted = f"undecided, measuring {more}"
        self._show(f"{cell}: {self._wanted}", NORMAL)

    def finished(self, cell: str, outcome: str, *, measured: bool) -> None:
        """A cell, or a recording's session of it, ended."""
        self._measuring = False
        with self._lock:
            self._left.finish(measured=measured)
            self._decided[outcome] += 1
            self._rounds = self._wanted = ""
        self._show(
            f"{cell}: {outcome} ({self._left.number} of {self._left.count}{self._left_text(', ')})",
            QUIET,
        )

    def note(self, text: str) -> None:
        """Something worth a line that stays."""
        with self._lock:
            if self._live is not None:
                self._screen.wrote_lines()
                with contextlib.suppress(OSError, ValueError):
                    self._live.console.print(text, markup=False, soft_wrap=True)
            else:
                self._screen.line(f"{self._clock_prefix()}{text}" if self._lines else text)

    def close(self) -> None:
        """No more is reported."""
        self._hide()
        self._screen.leave()
        self._screen.close()

    def _show(self, text: str, verbosity: int) -> None:
        """``text`` as a line of a log where it belongs there at this verbosity; on a
        terminal the status again.
        """
        with self._lock:
            if not self._lines:
                self._draw()
            elif text and self._verbosity >= verbosity:
                self._screen.line(self._clock_prefix() + text)

    def _draw(self) -> None:
        if self._measuring:
            return
        from rich.console import ConsoleDimensions
        from rich.live import Live

        with contextlib.suppress(OSError, ValueError):
            if self._live is None:
                self._screen.enter()
                self._live = Live(
                    console=self._screen.console(),
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                    get_renderable=self._status,
                )
                self._live.start()
                self._ticker_stop.clear()
                self._ticker = threading.Thread(
                    target=self._tick, name="k3perf-progress", daemon=True
                )
                self._ticker.start()
            # rich would ask descriptors 0, 1 and 2 for the size, which are captured
            self._live.console.size = ConsoleDimensions(*self._screen.size)
            self._live.refresh()

    def _hide(self) -> None:
        self._ticker_stop.set()
        if self._ticker is not None:
            self._ticker.join(timeout=_REDRAW_S)
            self._ticker = None
        with self._lock:
            live, self._live, self._measuring = self._live, None, False
            if live is not None:
                with contextlib.suppress(OSError, ValueError):
                    live.stop()

    def _tick(self) -> None:
        """Draw the clock while engines start; still while a round is measured."""
        while not self._ticker_stop.wait(_REDRAW_S):
            with self._lock:
                if self._live is not None:
                    self._draw()

    def _status(self) -> Text:
        from rich.text import Text

        rows = [
            ("k3perf", f"{_clock(self._elapsed_s())} {self._title()}{self._left_text(', ')}"),
            (
                "engines",
                ", ".join(f"{name}: {stage}" for name, stage in sorted(self._engines.items())),
            ),
            ("rounds", "; ".join(part for part in (self._rounds, self._wanted) if part)),
            ("so far", ", ".join(f"{count} {outcome}" for outcome, count in self._decided.items())),
        ]
        text = Text(no_wrap=True, overflow="ellipsis")
        shown = [(name, value) for name, value in rows if value]
        for index, (name, value) in enumerate(shown):
            text.append(f"  {name:8}", style="bold cyan").append(value).append(
                "\n" if index + 1 < len(shown) else ""
            )
        return text

    def _title(self) -> str:
        count = f"{self._left.number} of {self._left.count}: " if self._left.count else ""
        return f"{count}{self._cell}" if self._cell else "starting"

    def _left_text(self, separator: str) -> str:
        left_s = self._left.seconds() if self._left.count else None
        return "" if not left_s else f"{separator}about {duration_text(left_s)} left"

    def _clock_prefix(self) -> str:
        return f"[k3perf {_clock(self._elapsed_s())}] "

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s


def _clock(duration_s: float) -> str:
    """``03:20``, with hours ``1:03:20``."""
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"
