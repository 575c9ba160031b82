"""Play the steps of many replies at their due times, with one heap and one precise
timer.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
import struct
from collections.abc import Callable, Iterator

from k3perf.load.clock import Clock, PreciseTimer
from k3perf.load.mock_server.script import Step, Then
from k3perf.load.mock_server.truth import RequestTruth


class Playing:
    """One active reply on one connection."""

    __slots__ = ("due_ns", "on_finished", "step", "steps", "transport", "truth")

    def __init__(
        self,
        transport: asyncio.Transport,
        steps: Iterator[Step],
        truth: RequestTruth,
        on_finished: Callable[[], None],
    ) -> None:
        self.transport = transport
        self.steps = steps
        self.step = next(steps)
        self.truth = truth
        self.due_ns = truth.received_ns + self.step.gap_ns
        self.on_finished = on_finished


class Player:
    """Send each step when it is due. Due times follow from the previous due time, so
    that lateness never adds up.

    ``step_ns`` above 0 moves every due time to the next multiple of it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.step_ns = 0
        self._clock = clock
        self._heap: list[tuple[int, int, Playing]] = []
        self._serial = 0
        self._timer = PreciseTimer(loop, self._play_due, clock)

    def play(self, playing: Playing) -> None:
        """Begin one reply. Steps that are due now are sent now."""
        playing.due_ns = self._on_grid(playing.due_ns)
        if playing.due_ns <= self._clock():
            self._advance(playing, playing.due_ns)
        else:
            self._push(playing)
        if self._heap:
            self._timer.arm(self._heap[0][0])

    def close(self) -> None:
        """Send no more."""
        self._heap.clear()
        self._timer.close()

    def _on_grid(self, due_ns: int) -> int:
        return -(-due_ns // self.step_ns) * self.step_ns if self.step_ns else due_ns

    def _push(self, playing: Playing) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (playing.due_ns, self._serial, playing))

    def _play_due(self) -> None:
        now_ns = self._clock()
        while self._heap and self._heap[0][0] <= now_ns:
            self._advance(heapq.heappop(self._heap)[2], now_ns)
        if self._heap:
            self._timer.arm(self._heap[0][0])

    def _advance(self, playing: Playing, now_ns: int) -> None:
        """Send the step, and those that are due at the same time."""
        while True:
            step = playing.step
            if playing.transport.is_closing():
                playing.steps = iter(())
                return
            if step.token_count:
                playing.truth.write_ns.append(self._clock())
                playing.truth.write_tokens.append(step.token_count)
            if step.data:
                playing.transport.write(step.data)
            if step.then is not Then.GO_ON:
                _end(playing, step.then)
                return
            playing.step = next(playing.steps)
            playing.due_ns = self._on_grid(playing.due_ns + playing.step.gap_ns)
            if playing.due_ns > now_ns:
                self._push(playing)
                return


def _end(playing: Playing, then: Then) -> None:
    transport = playing.transport
    if then is Then.FINISHED:
        playing.on_finished()
    elif then is Then.CLOSE:
        transport.close()
    elif then is Then.RESET:
        connected: socket.socket = transport.get_extra_info("socket")
        connected.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )  # closing now sends RST, not FIN
        transport.abort()
