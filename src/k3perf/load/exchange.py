"""One request on its connection: bytes out, timed reads in. Parses only enough HTTP to
find the end of a response.

A read costs one clock call, one list append and one count. ``k3perf.load.decode``
handles JSON, server-sent events and counts after the round. This keeps 1,024 streams on
one core punctual (docs/studies/2026-11-29-client-cost.md).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final, cast

from k3perf.load.clock import Clock
from k3perf.load.gathering import Gatherer
from k3perf.records.samples import RequestStatus

_HEAD_END: Final = b"\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
# After the stream's end marker only the last chunk follows. JSON has no bare line end,
# so no token's text can look like this.
_DONE_AND_LAST_CHUNK: Final = b"data: [DONE]\n\n\r\n" + _LAST_CHUNK
_CHUNKED: Final = re.compile(rb"(?im)^transfer-encoding:.*\bchunked\b")
_CONTENT_LENGTH: Final = re.compile(rb"(?im)^content-length:[ \t]*(\d+)")
# more digits are not a size, and int() refuses thousands of them
_LONGEST_LENGTH: Final = 18
_CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,16}")
_CLOSING: Final = re.compile(rb"(?im)^connection:[ \t]*close\b|\AHTTP/1\.0")


class Exchange:
    """The bytes sent and read for the request at ``position`` of the plan.

    ``reads`` are (nanoseconds, bytes) in order. ``failure`` is None for a good
    exchange.
    """

    __slots__ = (
        "connection_closes",
        "end_ns",
        "endpoint_index",
        "failure",
        "position",
        "reads",
        "scheduled_ns",
        "sent_ns",
    )

    def __init__(self, position: int, scheduled_ns: int, endpoint_index: int) -> None:
        self.position = position
        self.scheduled_ns = scheduled_ns
        self.endpoint_index = endpoint_index
        self.sent_ns: int | None = None
        self.end_ns: int | None = None
        self.reads: list[tuple[int, bytes]] = []
        self.failure: tuple[RequestStatus, str] | None = None
        self.connection_closes = False


class Connection(asyncio.Protocol):
    """A kept-open connection that carries one exchange at a time.

    ``on_finished(connection, exchange)`` is called once per exchange, however it ends.
    ``on_idle_lost(connection)`` is called when the peer closes the connection between
    exchanges.
    """

    __slots__ = (
        "_body_left",
        "_chunked",
        "_clock",
        "_exchange",
        "_gatherer",
        "_on_finished",
        "_on_idle_lost",
        "_reads",
        "_tail",
        "endpoint_index",
        "free_since_ns",
        "served_count",
        "transport",
    )

    def __init__(
        self,
        endpoint_index: int,
        clock: Clock,
        gatherer: Gatherer,
        on_finished: Callable[[Connection, Exchange], None],
        on_idle_lost: Callable[[Connection], None],
    ) -> None:
        self.endpoint_index = endpoint_index
        self.transport: asyncio.Transport | None = None
        self.served_count = 0
        self.free_since_ns = clock()
        self._clock = clock
        self._gatherer = gatherer
        self._on_finished = on_finished
        self._on_idle_lost = on_idle_lost
        self._exchange: Exchange | None = None
        self._reads: list[tuple[int, bytes]] = []
        self._chunked = False
        self._body_left: int | None = None
        self._tail = b""

    @property
    def usable(self) -> bool:
        """Open and without an exchange."""
        return (
            self.transport is not None
            and not self.transport.is_closing()
            and self._exchange is None
        )

    def send(self, exchange: Exchange, request_bytes: bytes) -> None:
        """Write one whole HTTP request to the socket and note the time."""
        assert self.transport is not None  # noqa: S101 - a connection is handed out after connection_made
        self._exchange = exchange
        self._reads = exchange.reads
        self._chunked = False
        self._body_left = None
        self._tail = b""
        exchange.sent_ns = self._clock()
        self.transport.write(request_bytes)

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def fail(self, status: RequestStatus, detail: str) -> None:
        """End the current exchange as failed, and close the connection."""
        exchange = self._exchange
        if exchange is not None:
            exchange.failure = (status, detail)
            self._finish(self._clock())
        self.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's is one in all but its base class

    def data_received(self, data: bytes) -> None:
        """Note the time, keep the bytes, and look only for the end."""
        now_ns = self._clock()
        self._reads.append((now_ns, data))
        gatherer = self._gatherer
        gatherer.read_count += 1
        if now_ns >= gatherer.next_look_ns:
            gatherer.look(now_ns)
        if self._chunked:
            if data.endswith(_LAST_CHUNK) or len(data) < len(_LAST_CHUNK):
                self._look_for_last_chunk(now_ns)
        else:
            self._read_outside_chunks(data, now_ns)

    def eof_received(self) -> None:
        """Wait for ``connection_lost``, which follows the peer's end of stream."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End a body without a length. In the middle of an exchange this is a failure,
        between two it is harmless.
        """
        exchange = self._exchange
        if exchange is None:
            self._on_idle_lost(self)
            return
        exchange.connection_closes = True
        if exc is not None:
            exchange.failure = (RequestStatus.RESET, f"connection lost: {exc.__class__.__name__}")
        self._finish(self._clock())

    def _read_outside_chunks(self, data: bytes, now_ns: int) -> None:
        """Handle the response's head, and bodies that are not chunked (the
        slow path).
        """
        exchange = self._exchange
        if exchange is None:
            # unexpected bytes; the stream cannot be trusted any more
            self.abort()
            return
        if self._body_left is not None:
            self._body_left -= len(data)
        else:
            received = b"".join(part for _, part in self._reads)
            head, separator, body = received.partition(_HEAD_END)
            if not separator:
                return
            exchange.connection_closes = _CLOSING.search(head) is not None
            if _CHUNKED.search(head):
                self._chunked = True
                self._look_for_last_chunk(now_ns)
                return
            length = _CONTENT_LENGTH.search(head)
            if length is None:
                return  # the body ends with the connection
            digits = length.group(1)
            if len(digits) > _LONGEST_LENGTH:
                shown = digits[:_LONGEST_LENGTH].decode("ascii")
                self.fail(
                    RequestStatus.BAD_PAYLOAD,
                    f"Content-Length {shown}... has {len(digits)} digits and is not a size",
                )
                return
            self._body_left = int(digits) - len(body)
        if self._body_left <= 0:
            self._finish(now_ns)

    def _look_for_last_chunk(self, now_ns: int) -> None:
        """Finish if the chunked body is complete. A tail that only looks like the last
        chunk is recognised by walking the chunks.
        """
        if self._exchange is None:
            return
        tail = b""
        for _, part in reversed(self._reads):
            tail = part[-len(_DONE_AND_LAST_CHUNK) :] + tail
            if len(tail) >= len(_DONE_AND_LAST_CHUNK):
                break
        if not tail.endswith(_LAST_CHUNK):
            return
        if tail.endswith(_DONE_AND_LAST_CHUNK) or _chunks_are_complete(
            b"".join(part for _, part in self._reads)
        ):
            self._finish(now_ns)

    def _finish(self, now_ns: int) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        exchange.end_ns = now_ns
        self._exchange = None
        self._reads = []
        self._chunked = False
        self.served_count += 1
        self.free_since_ns = now_ns
        self._on_finished(self, exchange)


def _chunks_are_complete(response: bytes) -> bool:
    """Whether a chunked response ends exactly with its zero-length chunk. Malformed
    framing counts as incomplete.
    """
    position = response.find(_HEAD_END) + len(_HEAD_END)
    while True:
        line_end = response.find(b"\r\n", position)
        if line_end < 0:
            return False
        digits = response[position:line_end].split(b";", 1)[0].strip()
        if (
            _CHUNK_SIZE.fullmatch(digits) is None
        ):  # int() also accepts a sign, and would walk backwards for ever
            return False
        size = int(digits, 16)
        if size == 0:
            return True
        position = line_end + 2 + size + 2
        if position > len(response):
            return False
