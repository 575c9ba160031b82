"""One request on its connection: bytes out, timed pieces of the reply's body in.

httptools parses each reply once, while it is read: its end, its head and its body come
from the same parser. A read costs one clock call, one parse and two list appends.
``k3perf.load.decode`` handles events, JSON and counts after the round. This keeps 1,024
streams on one core punctual (docs/studies/2026-11-29-client-cost.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import httptools

from k3perf.load.clock import Clock
from k3perf.load.gathering import Gatherer
from k3perf.records.samples import RequestStatus

_FIRST_BYTES: Final = 200
_FIRST_FINAL_STATUS: Final = 200
_SWITCHING_PROTOCOLS: Final = 101


class Exchange:
    """What was sent and read for the request at ``position`` of the plan.

    ``pieces`` are the parts of the body in order, without HTTP's framing, and
    ``times_ns[i]`` is when ``pieces[i]`` was read. ``last_read_ns`` is the time of the
    last byte. ``failure`` is None for a good exchange. ``complete`` is true once the
    reply has ended by its framing.
    """

    __slots__ = (
        "complete",
        "connection_closes",
        "content_encoding",
        "content_type",
        "end_ns",
        "endpoint_index",
        "failure",
        "first_bytes",
        "last_read_ns",
        "on_body",
        "parse",
        "parser",
        "pieces",
        "position",
        "scheduled_ns",
        "sent_ns",
        "status_code",
        "times_ns",
    )

    def __init__(self, position: int, scheduled_ns: int, endpoint_index: int) -> None:
        self.position = position
        self.scheduled_ns = scheduled_ns
        self.endpoint_index = endpoint_index
        self.sent_ns: int | None = None
        self.end_ns: int | None = None
        self.last_read_ns: int | None = None
        self.pieces: list[bytes] = []
        self.times_ns: list[int] = []
        self.first_bytes = b""
        self.failure: tuple[RequestStatus, str] | None = None
        self.complete = False
        self.connection_closes = False
        self.status_code = 0
        self.content_type = ""
        self.content_encoding = ""
        # the parser calls the list's own append: no Python code runs for a piece
        self.on_body: Callable[[bytes], None] = self.pieces.append
        self.parser: Any = httptools.HttpResponseParser(self)
        self.parse: Callable[[bytes], None] = self.parser.feed_data

    def feed(self, now_ns: int, data: bytes) -> None:
        """Parse one read. Sets ``failure`` for bytes that are not HTTP, and
        ``complete`` at the end of the reply.
        """
        if not self.status_code and len(self.first_bytes) < _FIRST_BYTES:
            self.first_bytes += data[:_FIRST_BYTES]
        try:
            self.parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.refuse(error)
        self.note_time(now_ns)

    def note_time(self, now_ns: int) -> None:
        """Give the time to every piece of the last read."""
        self.last_read_ns = now_ns
        missing = len(self.pieces) - len(self.times_ns)
        if missing:
            self.times_ns.extend([now_ns] * missing)

    def forget_parser(self) -> None:
        """Release the parser of an exchange that has ended. It refers back here."""
        self.parser = self.parse = self.on_body = cast("Any", None)

    def refuse(self, error: Exception) -> None:
        """Note what the parser objects to."""
        self.connection_closes = True
        if self.complete or self.failure is not None:
            return  # the bytes came after the reply; only the connection is unusable
        if isinstance(error, httptools.HttpParserUpgrade):
            self.status_code = _SWITCHING_PROTOCOLS
            self.failure = (RequestStatus.HTTP_STATUS, "101: the server changed the protocol")
        elif self.status_code == 0:
            shown = self.first_bytes.decode("utf-8", "replace").strip()
            self.failure = (RequestStatus.BAD_PAYLOAD, f"not an HTTP response ({error}): {shown}")
        else:
            self.failure = (RequestStatus.BAD_PAYLOAD, f"invalid HTTP in the reply: {error}")

    # httptools' callbacks

    def on_message_begin(self) -> None:
        """A second reply was not requested, so the connection is out of step."""
        if self.complete:
            self.connection_closes = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what decides how the body is read. Trailers change nothing."""
        if self.status_code:
            return
        lowered = name.lower()
        if lowered == b"content-type":
            self.content_type = value.decode("latin-1")
        elif lowered == b"content-encoding":
            self.content_encoding = value.decode("latin-1").strip().lower()

    def on_headers_complete(self) -> None:
        """Note the status of the final head. 1xx heads come before it."""
        status_code = self.parser.get_status_code()
        if status_code < _FIRST_FINAL_STATUS or self.complete:
            self.content_type = self.content_encoding = ""
            return
        self.status_code = status_code
        if not self.parser.should_keep_alive():
            self.connection_closes = True

    def on_message_complete(self) -> None:
        """The end of the reply, unless it was an interim one."""
        if self.status_code:
            self.complete = True


class Connection(asyncio.Protocol):
    """A kept-open connection that carries one exchange at a time.

    ``on_finished(connection, exchange)`` is called once per exchange, however it ends.
    ``on_idle_lost(connection)`` is called when the peer closes the connection between
    exchanges.
    """

    __slots__ = (
        "_clock",
        "_exchange",
        "_gatherer",
        "_on_finished",
        "_on_idle_lost",
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
            self._finish(exchange, self._clock())
        self.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's is one in all but its base class

    def data_received(self, data: bytes) -> None:
        """Note the time, parse, and look for the end."""
        now_ns = self._clock()
        gatherer = self._gatherer
        gatherer.read_count += 1
        if gatherer.looks:
            gatherer.look(now_ns)
        exchange = self._exchange
        if exchange is None:
            # unexpected bytes; the stream cannot be trusted any more
            self.abort()
            return
        if not exchange.status_code:
            self._read_head(exchange, data, now_ns)
            return
        times_ns = exchange.times_ns
        times_ns.append(now_ns)
        try:
            exchange.parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            times_ns.pop()
            exchange.refuse(error)
        if len(times_ns) != len(exchange.pieces) or exchange.complete or exchange.failure:
            self._after_unusual_read(exchange, now_ns)

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
        self._finish(exchange, self._clock())

    def _read_head(self, exchange: Exchange, data: bytes, now_ns: int) -> None:
        exchange.feed(now_ns, data)
        if exchange.complete or exchange.failure:
            self._end(exchange, now_ns)

    def _after_unusual_read(self, exchange: Exchange, now_ns: int) -> None:
        """A read that held no piece or several, or that ended the reply."""
        missing = len(exchange.pieces) - len(exchange.times_ns)
        if missing < 0:
            exchange.times_ns.pop()
        exchange.note_time(now_ns)
        if exchange.complete or exchange.failure:
            self._end(exchange, now_ns)

    def _end(self, exchange: Exchange, now_ns: int) -> None:
        self._finish(exchange, now_ns)
        if exchange.failure:
            self.abort()

    def _finish(self, exchange: Exchange, now_ns: int) -> None:
        exchange.end_ns = now_ns
        exchange.forget_parser()
        self._exchange = None
        self.served_count += 1
        self.free_since_ns = now_ns
        self._on_finished(self, exchange)
