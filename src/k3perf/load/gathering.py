"""Under load, read everything that arrives within a quarter of a millisecond in one go.

A punctual client wakes up for nearly every token, and a wake-up costs several times as
much as reading the token (docs/studies/2026-11-29-client-cost.md). So under load the
loop rests for ``REST_NS`` after each turn of reading. Bytes that arrive meanwhile wait
in their sockets and are read, and timed, at the end of the rest. So a time is late by
at most ``REST_NS``. At low rates nothing rests.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from k3perf.load.clock import Clock
from k3perf.units import NS_PER_MS, NS_PER_S, NS_PER_US, ns_to_s

REST_NS: Final = 250 * NS_PER_US
BUSY_READS_PER_S: Final = (
    NS_PER_S // REST_NS
)  # one read per rest: below this a rest has nothing to gather
_LOOK_NS: Final = 10 * NS_PER_MS
_WAKING_NS: Final = (
    100 * NS_PER_US
)  # what a sleep may take longer than requested (timer slack 50 us, and the wake-up)
_SHORTEST_REST_NS: Final = 50 * NS_PER_US
# a poll that finds bytes at once, and the first read after it, take no longer
_POLL_NS: Final = 50 * NS_PER_US


class Gatherer:
    """Decide after each turn of reading whether the loop rests, and record how long the
    turns took. All connections of a loop share one.

    A connection adds to ``read_count`` with every read, and calls ``look`` with the
    time of a read while ``looks`` is true, which is the first read of a turn.
    ``idle_until_ns()`` is the time until which the loop has nothing else to do. A rest
    ends well before it, so that nothing is sent late.
    """

    __slots__ = (
        "_clock",
        "_counted",
        "_idle_until_ns",
        "_loop",
        "_since_ns",
        "_turn_end_ns",
        "busy",
        "looks",
        "read_count",
        "rest_count",
        "turns",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, idle_until_ns: Callable[[], int]
    ) -> None:
        self.read_count = 0
        self.rest_count = 0
        self.busy = False
        self.looks = True
        self.turns = ReadTurns()
        self._loop = loop
        self._clock = clock
        self._idle_until_ns = idle_until_ns
        self._since_ns = clock()
        self._counted = 0
        self._turn_end_ns = 0

    def look(self, now_ns: int) -> None:
        """Begin a turn, and judge the rate when it is time."""
        self.looks = False
        self.turns.add(now_ns, unwatched=now_ns - self._turn_end_ns <= _POLL_NS)
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= _LOOK_NS:
            self.busy = (
                self.read_count - self._counted
            ) * NS_PER_S >= BUSY_READS_PER_S * elapsed_ns
            self._since_ns = now_ns
            self._counted = self.read_count
        # runs when all sockets that are ready now have been read
        self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        now_ns = self._clock()
        self.looks = True
        self._turn_end_ns = now_ns
        if not self.busy:
            return
        rest_ns = min(REST_NS, self._idle_until_ns() - _WAKING_NS - now_ns)
        if rest_ns >= _SHORTEST_REST_NS:
            self.rest_count += 1
            time.sleep(ns_to_s(rest_ns))
            self._turn_end_ns = self._clock()


class ReadTurns:
    """When each turn of reading began, and how long its bytes may have waited before.

    All sockets of a turn were ready when it began, so a read is late by its distance
    from there. If the loop did not wait for the turn, bytes may have come at any time
    since the turn before.
    """

    __slots__ = ("_backlogs_ns", "_starts_ns")

    def __init__(self) -> None:
        self._starts_ns = array("q")
        self._backlogs_ns = array("q")

    def add(self, start_ns: int, *, unwatched: bool) -> None:
        """Note a turn. ``unwatched``: the loop did not wait for it."""
        backlog_ns = start_ns - self._starts_ns[-1] if unwatched and self._starts_ns else 0
        self._starts_ns.append(start_ns)
        self._backlogs_ns.append(backlog_ns)

    def lags_ns(self, times_ns: Sequence[int]) -> npt.NDArray[np.int64]:
        """The most by which each read can be late. ``times_ns`` are times of reads."""
        times = np.asarray(times_ns, dtype=np.int64)
        if not len(times) or not self._starts_ns:
            return np.zeros(len(times), dtype=np.int64)
        starts = np.frombuffer(self._starts_ns, dtype=np.int64)
        backlogs = np.frombuffer(self._backlogs_ns, dtype=np.int64)
        turns = np.maximum(np.searchsorted(starts, times, side="right") - 1, 0)
        return times - starts[turns] + backlogs[turns]
