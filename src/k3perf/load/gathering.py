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
from collections.abc import Callable
from typing import Final

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
_NEVER_NS: Final = 1 << 63


class Gatherer:
    """Decide after each turn of reading whether the loop rests. All connections of a
    loop share one.

    A connection adds to ``read_count`` with every read, and calls ``look`` with the
    time of a read at or after ``next_look_ns``. So a read pays one addition and one
    comparison. ``idle_until_ns()`` is the time until which the loop has nothing else to
    do. A rest ends well before it, so that nothing is sent late.
    """

    __slots__ = (
        "_clock",
        "_counted",
        "_idle_until_ns",
        "_loop",
        "_since_ns",
        "busy",
        "next_look_ns",
        "read_count",
        "rest_count",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, idle_until_ns: Callable[[], int]
    ) -> None:
        self.read_count = 0
        self.rest_count = 0
        self.busy = False
        self.next_look_ns = 0
        self._loop = loop
        self._clock = clock
        self._idle_until_ns = idle_until_ns
        self._since_ns = clock()
        self._counted = 0

    def look(self, now_ns: int) -> None:
        """Judge the rate when it is time. While it is high, schedule the rest that
        follows this turn.
        """
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= _LOOK_NS:
            self.busy = (
                self.read_count - self._counted
            ) * NS_PER_S >= BUSY_READS_PER_S * elapsed_ns
            self._since_ns = now_ns
            self._counted = self.read_count
        if self.busy:
            self.next_look_ns = _NEVER_NS
            self._loop.call_soon(
                self._rest
            )  # runs when all sockets that are ready now have been read
        else:
            self.next_look_ns = self._since_ns + _LOOK_NS

    def _rest(self) -> None:
        self.next_look_ns = 0
        rest_ns = min(REST_NS, self._idle_until_ns() - _WAKING_NS - self._clock())
        if rest_ns >= _SHORTEST_REST_NS:
            self.rest_count += 1
            time.sleep(ns_to_s(rest_ns))
