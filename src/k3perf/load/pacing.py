"""When things are due: a heap of due times on one precise timer, and a probe of the
event loop's lateness.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from k3perf.load.clock import Clock, PreciseTimer

# A probe wakes the loop as a token does, and costs more. At one stream of 1,000 tokens
# per second, twenty-five a second cost about 5 %.
_PROBE_GAP_NS: Final = 32_000_000
_PROBE_STEP_NS: Final = (
    # the golden ratio of the spread: probes visit every phase of a periodic load
    9_888_544
)
_PROBE_SPREAD_NS: Final = 16_000_000


class Pacer:
    """Call ``on_due(index, due_ns)`` for each added item at its time, in order."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_due: Callable[[int, int], None], clock: Clock
    ) -> None:
        self._clock = clock
        self._on_due = on_due
        self._heap: list[tuple[int, int]] = []
        self._timer = PreciseTimer(loop, self._ring, clock)

    def add(self, due_ns: int, index: int) -> None:
        """Schedule one item."""
        heapq.heappush(self._heap, (due_ns, index))
        if self._heap[0][1] == index:
            self._timer.arm(due_ns)

    def fill(self, items: list[tuple[int, int]]) -> None:
        """Schedule many ``(due_ns, index)`` at once."""
        self._heap.extend(items)
        heapq.heapify(self._heap)
        if self._heap:
            self._timer.arm(self._heap[0][0])

    @property
    def next_due_ns(self) -> int | None:
        """The time of the next item, or None."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Remove everything that is not due yet."""
        self._heap.clear()
        self._timer.disarm()

    def close(self) -> None:
        """Close the timer."""
        self._timer.close()

    def _ring(self) -> None:
        now_ns = self._clock()
        while self._heap and self._heap[0][0] <= now_ns:
            due_ns, index = heapq.heappop(self._heap)
            self._on_due(index, due_ns)
        if self._heap:
            self._timer.arm(self._heap[0][0])


class LagProbe:
    """Measure how long a due event waits for the loop. A byte that arrives on a socket
    waits as long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.lags_ns: list[int] = []
        self._clock = clock
        self._due_ns = 0
        self._timer = PreciseTimer(loop, self._ring, clock)

    def start(self) -> None:
        """Begin probing."""
        self._arm_next(self._clock())

    def close(self) -> None:
        """Stop probing."""
        self._timer.close()

    def _ring(self) -> None:
        now_ns = self._clock()
        self.lags_ns.append(max(now_ns - self._due_ns, 0))
        self._arm_next(now_ns)

    def _arm_next(self, now_ns: int) -> None:
        self._due_ns = (
            now_ns + _PROBE_GAP_NS + len(self.lags_ns) * _PROBE_STEP_NS % _PROBE_SPREAD_NS
        )
        self._timer.arm(self._due_ns)
