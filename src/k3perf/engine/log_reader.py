"""The engine's log file, read as it grows: lines with the time they were seen, the
stages of the start, compiles in service.

The engine writes to the file itself (a harness that dies or is slow never blocks it);
here it is only read. A line's time is therefore an interval: written after the look
before, and before the look that found it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from k3perf.engine import log_lines
from k3perf.engine.cause_choice import find_root_cause
from k3perf.engine.root_cause import RootCause
from k3perf.records.samples import StageTiming
from k3perf.units import ns_to_s

_KEPT_LINES: Final = 20_000
_LONGEST_LINE_BYTES: Final = (
    1 << 14
)  # the longest line that vLLM writes, its configuration, has some 6 KiB
_LEFT_OUT: Final = b" ... "
_BLOCK_BYTES: Final = 1 << 20
_SEARCHED_BYTES: Final = 1 << 24  # of the end of the log, for the cause of a death
_STAGE_RANK: Final = {stage: rank for rank, stage in enumerate(log_lines.STAGES)}


@dataclass(frozen=True, slots=True)
class SeenLine:
    """One complete line; it was written between ``after_ns`` and ``seen_ns``."""

    after_ns: int
    seen_ns: int
    text: str


class LogReader:
    """Reads complete lines of ``path`` when asked to (``drain``). Safe to call from
    several threads.
    """

    def __init__(
        self,
        path: Path,
        *,
        start_ns: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        on_stage: Callable[[str], None] | None = None,
    ) -> None:
        self.path = path
        self._clock_ns = clock_ns
        self._on_stage = on_stage
        self._lock = threading.Lock()
        self._offset = 0
        self._partial = b""
        self._last_look_ns = start_ns
        self._lines: deque[SeenLine] = deque(maxlen=_KEPT_LINES)
        self._compiles: deque[tuple[str, SeenLine]] = deque(maxlen=_KEPT_LINES)
        self._greetings_count = 0
        self._marks: list[tuple[str, int]] = [(log_lines.STAGES[0], start_ns)]
        self._last_progress_ns = start_ns
        self._names_stages = False
        self._cause_at: tuple[int, RootCause | None] = (
            0,
            None,
        )  # what the log said when it had so many bytes

    def drain(self) -> int:
        """Read what came since the last look. Returns the number of new lines."""
        opened: list[str] = []
        count = 0
        with self._lock:
            # before the size is read: whatever this look leaves to the next one is
            # written later than this
            look_ns = self._clock_ns()
            try:
                with self.path.open("rb") as handle:
                    handle.seek(self._offset)
                    # what is written while this reads is the next look's: an engine
                    # that never pauses would be read for ever
                    left_bytes = os.fstat(handle.fileno()).st_size - self._offset
                    while left_bytes > 0 and (data := handle.read(min(_BLOCK_BYTES, left_bytes))):
                        left_bytes -= len(data)
                        count += self._take_block(data, opened)
            except FileNotFoundError:
                pass
            self._last_look_ns = look_ns
        for stage in opened:
            if self._on_stage is not None:
                self._on_stage(stage)
        return count

    def _take_block(self, data: bytes, opened: list[str]) -> int:
        """Lines that the block completes, and an unfinished one that is longer than
        ``_LONGEST_LINE_BYTES``: a log without line ends must not fill the memory, and
        is progress all the same.
        """
        now_ns = self._clock_ns()
        self._offset += len(data)
        # a progress bar redraws its line with carriage returns: each redraw counts as a
        # line, so that it is progress too
        *complete, self._partial = (self._partial + data).replace(b"\r", b"\n").split(b"\n")
        if len(self._partial) > _LONGEST_LINE_BYTES:
            complete.append(self._partial)
            self._partial = b""
        for raw in complete:
            self._take(
                SeenLine(self._last_look_ns, now_ns, _shortened(raw).decode(errors="replace")),
                opened,
            )
        return len(complete)

    def _take(self, line: SeenLine, opened: list[str]) -> None:
        if not line.text.strip():
            return
        self._lines.append(line)
        if not log_lines.is_heartbeat(line.text):
            self._last_progress_ns = line.seen_ns
        self._take_compile(line)
        self._names_stages = self._names_stages or log_lines.is_informative(line.text)
        stage = log_lines.stage_opened_by(line.text)
        if stage is not None and _STAGE_RANK[stage] > _STAGE_RANK[self._marks[-1][0]]:
            self._marks.append((stage, line.seen_ns))
            opened.append(stage)

    def _take_compile(self, line: SeenLine) -> None:
        event = log_lines.compile_event(line.text)
        if event is not None:
            self._compiles.append((event, line))
        elif log_lines.is_monitor_greeting(line.text):
            self._greetings_count += 1

    @property
    def greetings_count(self) -> int:
        """How many workers have said in this log that their JIT monitor watches."""
        return self._greetings_count

    @property
    def stage(self) -> str:
        """The start stage that the engine is in, by its log."""
        return self._marks[-1][0]

    @property
    def last_progress_ns(self) -> int:
        """When the log last showed something new, without heartbeats."""
        return self._last_progress_ns

    @property
    def names_stages(self) -> bool:
        """Whether the log shows lines below a warning at all. Without them the stage is
        unknown: it stays at the first.
        """
        return self._names_stages

    def note_progress(self) -> None:
        """Something got on of which the log says nothing."""
        self._last_progress_ns = self._clock_ns()

    def stage_timings(self, ready_ns: int) -> tuple[StageTiming, ...]:
        """How long each seen stage took, up to ``ready_ns``. A stage the log never
        showed is missing, not 0.
        """
        ends = [at_ns for _, at_ns in self._marks[1:]] + [ready_ns]
        return tuple(
            StageTiming(stage, ns_to_s(max(end_ns - at_ns, 0)))
            for (stage, at_ns), end_ns in zip(self._marks, ends, strict=True)
        )

    def lines(self) -> tuple[str, ...]:
        """The last lines seen (at most 20,000)."""
        with self._lock:
            return tuple(line.text for line in self._lines)

    def tail(self, count: int = 10) -> tuple[str, ...]:
        """The last ``count`` lines, also an unfinished one, cut to 400 characters."""
        with self._lock:
            last = [line.text for line in list(self._lines)[-count:]] + self._unfinished()
        return tuple(text[:400] for text in last[-count:])

    def _unfinished(self) -> list[str]:
        """The last line while it has no end, in a list; nothing where there is none.
        Call it with the lock held.
        """
        return [self._partial.decode(errors="replace")] if self._partial.strip() else []

    def compiles_between(self, start_ns: int, end_ns: int) -> tuple[str, ...]:
        """One line for each compile that may have been reported inside the window;
        ``drain`` at its edges sharpens it.
        """
        self.drain()
        with self._lock:
            inside = [
                (name, line.text)
                for name, line in self._compiles
                if line.after_ns <= end_ns and line.seen_ns >= start_ns
            ]
        named = {name: text for name, text in reversed(inside) if name}
        return tuple(text for name, text in inside if not name or named[name] is text)

    def compile_cache_warm(self) -> bool | None:
        """Whether compiled graphs came from the cache. None without a compile."""
        return log_lines.compile_cache_warm(self.lines())

    def root_cause(self) -> str:
        """The text of ``cause``, empty where the log does not say."""
        found = self.cause()
        return found.text if found is not None else ""

    def cause(self) -> RootCause | None:
        """Why the engine died, by its log. None where the log does not say.

        Reads the file again: after a death each open request may write a traceback,
        more lines than are kept. A last line without an end counts, a process that dies
        while it writes leaves one.
        """
        self.drain()
        try:
            with self.path.open("rb") as handle:
                size_bytes = os.fstat(handle.fileno()).st_size
                if self._cause_at[0] != size_bytes:
                    handle.seek(max(size_bytes - _SEARCHED_BYTES, 0))
                    lines = handle.read(_SEARCHED_BYTES).split(b"\n")
                    self._cause_at = (
                        size_bytes,
                        find_root_cause(
                            _shortened(line).decode(errors="replace") for line in lines
                        ),
                    )
                return self._cause_at[1]
        except OSError:
            return find_root_cause((*self.lines(), *self.tail(1)))


def _shortened(raw: bytes) -> bytes:
    """At most ``_LONGEST_LINE_BYTES``: the head, where the process and the exception's
    name are, and the tail, where an error stands that was written behind a line without
    an end.
    """
    if len(raw) <= _LONGEST_LINE_BYTES:
        return raw
    tail_bytes = _LONGEST_LINE_BYTES // 4
    return raw[: _LONGEST_LINE_BYTES - tail_bytes - len(_LEFT_OUT)] + _LEFT_OUT + raw[-tail_bytes:]
