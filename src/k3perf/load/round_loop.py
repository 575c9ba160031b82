"""One pass of a plan over open connections: when each request is sent, which one
follows which, and the time-outs.

Runs on one event loop in one thread. Produces exchanges. Decoding them into samples
happens afterwards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from k3perf.load.clock import Clock
from k3perf.load.decode import OK_STATUS
from k3perf.load.encoded import EncodedRequests
from k3perf.load.exchange import Connection, Exchange
from k3perf.load.gathering import Gatherer
from k3perf.load.live_counts import CountsListener, LiveCounts
from k3perf.load.pacing import LagProbe, Pacer
from k3perf.load.pool import ConnectionPool, tls_context
from k3perf.load.request_form import RequestForm
from k3perf.load.wire import Endpoint
from k3perf.records.samples import RequestStatus
from k3perf.units import NS_PER_S, s_to_ns
from k3perf.workload.request_plan import Plan

_SWEEP_S: Final = 0.1
_SENDS_PER_TURN: Final = (
    # then the loop reads pending bytes, so that a burst's replies are not timed late
    16
)
_SPARE_CONNECTIONS: Final = 8
_PEAK_WINDOW_NS: Final = 2 * NS_PER_S
_FAR_OFF_NS: Final = 1 << 63


class RoundLoop:
    """The mutable state of one round. ``exchanges[i]`` belongs to ``plan.requests[i]``.
    None means not begun.
    """

    def __init__(
        self,
        plan: Plan,
        endpoints: Sequence[Endpoint],
        *,
        model_name: str,
        form: RequestForm,
        clock: Clock,
        should_stop: Callable[[], bool],
        on_counts: CountsListener | None = None,
    ) -> None:
        self.exchanges: list[Exchange | None] = [None] * len(plan.requests)
        self.start_ns = 0
        self.end_ns = 0
        self.stopped = False
        self.lags_ns: list[int] = []
        self._plan = plan
        self._endpoints = endpoints
        self._form = form
        self._clock = clock
        self._should_stop = should_stop
        self._on_counts = on_counts
        self._failed_count = 0
        self._encoded = EncodedRequests(plan, endpoints, model_name, form)
        self._waiting: deque[tuple[int, int, bool]] = (
            deque()
        )  # (position, due_ns, delayed by the concurrency)
        self._slot_free_ns = 0
        # requests in flight, plus conversations with a thinking user
        self._user_count = 0
        self._active: dict[int, Connection] = {}
        self._unfinished = len(plan.requests)
        self._turn_is_booked = False
        self._request_timeout_ns = s_to_ns(plan.spec.request_timeout_s)
        self._stall_timeout_ns = s_to_ns(plan.spec.stall_timeout_s)

    async def run(self, start_at_ns: Callable[[], int]) -> None:
        """Open connections, call ``start_at_ns()`` for the start time (it may block),
        play the plan, close everything.
        """
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._pacer = Pacer(self._loop, self._on_due, self._clock)
        gatherer = self.gatherer = Gatherer(self._loop, self._clock, self._idle_until_ns)
        self._pools = [
            ConnectionPool(
                endpoint,
                index,
                clock=self._clock,
                gatherer=gatherer,
                on_finished=self._on_finished,
                on_crash=self._crash,
                spare=_SPARE_CONNECTIONS,
                tls=tls_context(self._form) if endpoint.secure else None,
            )
            for index, endpoint in enumerate(self._endpoints)
        ]
        self._loop.set_exception_handler(
            lambda _, context: self._crash(
                context.get("exception") or RuntimeError(context["message"])
            )
        )
        probe = LagProbe(self._loop, self._clock)
        sweeper: asyncio.Task[None] | None = None
        try:
            wanted = -(-_connections_wanted(self._plan) // len(self._pools))
            await asyncio.gather(*(pool.open(wanted) for pool in self._pools))
            self.start_ns = start_at_ns()
            sweeper = self._loop.create_task(self._sweep())
            probe.start()
            self._schedule_all()
            if self._unfinished:
                await self._finished
        finally:
            self.stopped = (
                self.stopped or self._unfinished > 0
            )  # after an early end nothing more may be sent
            self.end_ns = self._clock()
            self._report_counts()
            self.lags_ns = probe.lags_ns
            probe.close()
            self._pacer.close()
            if sweeper is not None:
                sweeper.cancel()
            await asyncio.gather(*(pool.close() for pool in self._pools))

    # sending

    def _schedule_all(self) -> None:
        first_turns = [
            (position, request)
            for position, request in enumerate(self._plan.requests)
            if request.previous_index is None
        ]
        self._pacer.fill(
            [
                (self.start_ns + (request.offset_ns or 0), position)
                for position, request in first_turns
            ]
        )

    def _on_due(self, position: int, due_ns: int) -> None:
        if self._plan.requests[position].previous_index is not None:
            # this user kept the slot while thinking
            self._send(position, due_ns)
            return
        limit = self._plan.concurrency
        held = limit is not None and self._user_count + len(self._waiting) >= limit
        self._waiting.append((position, due_ns, held))
        self._book_turn()

    def _book_turn(self) -> None:
        if not self._turn_is_booked:
            self._turn_is_booked = True
            self._loop.call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        """Send waiting requests while there are free slots. A request that the
        concurrency delayed is due when its slot became free.
        """
        self._turn_is_booked = False
        limit = self._plan.concurrency
        for _ in range(_SENDS_PER_TURN):
            if not self._waiting or (limit is not None and self._user_count >= limit):
                return
            position, due_ns, held = self._waiting.popleft()
            self._user_count += 1
            self._send(position, max(due_ns, self._slot_free_ns) if held else due_ns)
        self._book_turn()

    def _idle_until_ns(self) -> int:
        """The next time at which something must be sent: 0 while a request waits, far
        off if nothing is scheduled.
        """
        if self._turn_is_booked:
            return 0
        due_ns = self._pacer.next_due_ns
        return due_ns if due_ns is not None else _FAR_OFF_NS

    def _send(self, position: int, scheduled_ns: int) -> None:
        endpoint_index = self._encoded.endpoint_of[position]
        exchange = Exchange(position, scheduled_ns, endpoint_index)
        self.exchanges[position] = exchange
        pool = self._pools[endpoint_index]
        connection = pool.take()
        if connection is not None:
            self._send_on(connection, exchange)
        else:
            pool.connect_for(
                lambda opened: self._send_on(opened, exchange),
                lambda error: self._refused(exchange, error),
            )

    def _send_on(self, connection: Connection, exchange: Exchange) -> None:
        self._active[exchange.position] = connection
        connection.send(exchange, self._encoded.bytes_of(exchange.position))

    def _refused(self, exchange: Exchange, error: OSError) -> None:
        exchange.failure = (
            RequestStatus.REFUSED,
            f"cannot connect: {error.strerror or error.__class__.__name__}",
        )
        exchange.end_ns = self._clock()
        self._after(exchange)

    # following requests

    def _on_finished(self, connection: Connection, exchange: Exchange) -> None:
        self._active.pop(exchange.position, None)
        pool = self._pools[connection.endpoint_index]
        if exchange.failure is None and not exchange.connection_closes and connection.usable:
            pool.give(connection)
        else:
            pool.discard(connection)
        self._after(exchange)

    def _after(self, exchange: Exchange) -> None:
        assert exchange.end_ns is not None  # noqa: S101 - called at the end only
        self._unfinished -= 1
        if exchange.failure is not None or exchange.status_code != OK_STATUS:
            self._failed_count += 1
        if self._unfinished == 0 and not self._finished.done():
            self._finished.set_result(None)
        if self.stopped:
            return
        follower = self._encoded.follower_of.get(exchange.position)
        if follower is not None:
            self._encoded.take_reply(exchange)
            self._pacer.add(exchange.end_ns + self._plan.requests[follower].think_time_ns, follower)
            return
        self._user_count -= 1
        self._slot_free_ns = exchange.end_ns
        if self._waiting:
            self._send_waiting()

    # time-outs

    async def _sweep(self) -> None:
        while not self._finished.done():
            if self._should_stop():
                self._stop()
                return
            self._report_counts()
            now_ns = self._clock()
            for position, connection in tuple(self._active.items()):
                exchange = self.exchanges[position]
                if exchange is not None:
                    self._end_if_late(connection, exchange, now_ns)
            await asyncio.sleep(_SWEEP_S)

    def _report_counts(self) -> None:
        if self._on_counts is None:
            return
        ended = len(self._plan.requests) - self._unfinished
        self._on_counts(
            LiveCounts(
                sent=ended + len(self._active),
                ended=ended,
                failed=self._failed_count,
                read=self.gatherer.read_count,
            )
        )

    def _end_if_late(self, connection: Connection, exchange: Exchange, now_ns: int) -> None:
        sent_ns = exchange.sent_ns if exchange.sent_ns is not None else now_ns
        last_ns = max(
            exchange.last_read_ns or sent_ns, exchange.times_ns[-1] if exchange.times_ns else 0
        )
        if now_ns - sent_ns > self._request_timeout_ns:
            connection.fail(
                RequestStatus.TIMED_OUT,
                f"not finished within {self._plan.spec.request_timeout_s:g} s",
            )
        elif now_ns - last_ns > self._stall_timeout_ns:
            connection.fail(
                RequestStatus.STALLED, f"no byte for {self._plan.spec.stall_timeout_s:g} s"
            )

    def _crash(self, error: BaseException) -> None:
        """End the round loudly on a bug in this code. An exception in a callback would
        otherwise leave it waiting for ever.
        """
        if not self._finished.done():
            self._finished.set_exception(error)

    def _stop(self) -> None:
        self.stopped = True
        self._waiting.clear()
        self._pacer.clear()
        for connection in tuple(self._active.values()):
            connection.fail(RequestStatus.ABANDONED, "the round was stopped")
        if not self._finished.done():
            self._finished.set_result(None)


def _connections_wanted(plan: Plan) -> int:
    """The most requests that can be due at about one time: the concurrency, or the
    largest number within two seconds.
    """
    first_turns = [
        request.offset_ns or 0 for request in plan.requests if request.previous_index is None
    ]
    if plan.concurrency is not None:
        return min(plan.concurrency, len(first_turns))
    peak = start = 0
    for end, offset_ns in enumerate(first_turns):
        while offset_ns - first_turns[start] > _PEAK_WINDOW_NS:
            start += 1
        peak = max(peak, end - start + 1)
    return min(peak + _SPARE_CONNECTIONS, len(plan.requests))
