"""The live display of a load run: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from k3perf.load.live_counts import LiveCounts

_LINE_EVERY_S: Final = 10.0
_REDRAWS_PER_S: Final = 4


class LoadDisplay:
    """Shows the counts of the level in progress on stderr. The client has another
    process, so a redraw does not delay a read.
    """

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._console = Console(stderr=True, highlight=False)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._name = ""
        self._total = 0
        self._began_s = 0.0
        self._shown_s = 0.0

    def __enter__(self) -> LoadDisplay:
        if self._live:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[counts]}"),
                TimeElapsedColumn(),
                console=self._console,
                refresh_per_second=_REDRAWS_PER_S,
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def line(self, text: str) -> None:
        """One line above the bar."""
        if self._progress is not None:
            self._progress.console.print(text, markup=False, soft_wrap=True)
        else:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def begin(self, name: str, request_count: int) -> None:
        """A level begins."""
        self._name, self._total = name, request_count
        self._began_s = self._shown_s = time.monotonic()
        if self._progress is not None:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(name, total=request_count, counts="")
        else:
            self.line(f"{name}: sending {request_count} requests")

    def update(self, counts: LiveCounts) -> None:
        """New counts of the level."""
        if self._progress is not None and self._task is not None:
            self._progress.update(
                self._task, completed=counts.ended, counts=self._counts_text(counts)
            )
        elif time.monotonic() - self._shown_s >= _LINE_EVERY_S:
            self._shown_s = time.monotonic()
            self.line(f"{self._name}: {self._counts_text(counts)}")

    def _counts_text(self, counts: LiveCounts) -> str:
        elapsed_s = max(time.monotonic() - self._began_s, 1e-3)
        failed = f", {counts.failed} failed" if counts.failed else ""
        return (
            f"{counts.ended}/{self._total} done, {counts.sent - counts.ended} in flight{failed},"
            f" {counts.read / elapsed_s:,.0f} chunks/s"
        )
