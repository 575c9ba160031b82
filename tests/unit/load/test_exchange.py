"""The end of a response, found from its framing alone, however the bytes arrive."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest

from k3perf.load.exchange import Connection, Exchange
from k3perf.load.gathering import Gatherer
from k3perf.records.samples import RequestStatus

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire:
    """Stand-in for a transport."""

    def __init__(self):
        self.sent = b""
        self.closed = False

    def write(self, data):
        self.sent += data

    def is_closing(self):
        return self.closed

    def abort(self):
        self.closed = True


@pytest.fixture
def line():
    ticks = count(1)
    finished = []
    lost = []
    loop = SimpleNamespace(call_soon=lambda _: None)
    gatherer = Gatherer(loop, lambda: 0, lambda: 0)  # a few reads never make it busy
    connection = Connection(
        0, lambda: next(ticks), gatherer, lambda _, exchange: finished.append(exchange), lost.append
    )
    connection.connection_made(Wire())
    connection.send(Exchange(0, 0, 0), b"POST / HTTP/1.1\r\n\r\n")
    return connection, finished, lost


def feed(connection, data, size):
    for start in range(0, len(data), size):
        connection.data_received(data[start : start + size])


def assert_ended_by_its_last_byte(line, reply, size):
    connection, finished, _ = line
    feed(connection, reply[:-1], size)
    assert finished == []
    connection.data_received(reply[-1:])
    assert [exchange.failure for exchange in finished] == [None]
    assert connection.usable


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 1000])
def test_a_chunked_reply_ends_with_its_last_chunk(line, size):
    assert_ended_by_its_last_byte(
        line, HEAD + b"5\r\nhello\r\n" + b"a;x=y\r\n0123456789\r\n" + b"0\r\n\r\n", size
    )


@pytest.mark.parametrize("size", [1, 3, 5, 1000])
def test_the_streams_end_marker_and_the_last_chunk_end_a_reply(line, size):
    assert_ended_by_its_last_byte(
        line, HEAD + b"6\r\nhello!\r\n" + b"e\r\ndata: [DONE]\n\n\r\n" + b"0\r\n\r\n", size
    )


def test_the_end_marker_without_a_last_chunk_ends_nothing(line):
    connection, finished, _ = line
    connection.data_received(HEAD + b"e\r\ndata: [DONE]\n\n\r\n")
    connection.data_received(b"5\r\n0\r\n\r\n")
    assert finished == []


def test_bytes_that_only_look_like_the_end_are_no_end(line):
    connection, finished, _ = line
    connection.data_received(HEAD + b"7\r\nab0\r\n\r\n")
    assert finished == []
    connection.data_received(b"\r\n" + b"0\r\n\r\n")
    assert len(finished) == 1


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_reply_with_a_length_ends_there(line, size):
    connection, finished, _ = line
    feed(connection, b"HTTP/1.1 429 No\r\nContent-Length: 6\r\n\r\n0\r\n\r\n", size)
    assert finished == []
    connection.data_received(b"!")
    assert len(finished) == 1


def test_a_reply_without_a_length_ends_with_the_connection(line):
    connection, finished, _ = line
    connection.data_received(b"HTTP/1.0 200 OK\r\n\r\nall")
    assert finished == []
    connection.connection_lost(None)
    assert finished[0].failure is None
    assert finished[0].connection_closes


def test_a_lost_connection_is_a_reset(line):
    connection, finished, _ = line
    connection.data_received(HEAD)
    connection.connection_lost(ConnectionResetError())
    assert finished[0].failure == (RequestStatus.RESET, "connection lost: ConnectionResetError")


def test_a_connection_lost_between_exchanges_is_nobodys_failure(line):
    connection, finished, lost = line
    connection.data_received(HEAD + b"0\r\n\r\n")
    connection.connection_lost(ConnectionResetError())
    assert [exchange.failure for exchange in finished] == [None]
    assert lost == [connection]


def test_unasked_bytes_end_the_connection(line):
    connection, _, _ = line
    connection.data_received(HEAD + b"0\r\n\r\n")
    connection.data_received(b"HTTP/1.1 200 OK\r\n")
    assert not connection.usable


def test_times_are_those_of_the_reads(line):
    connection, finished, _ = line
    connection.data_received(HEAD + b"5\r\nhello\r\n")
    connection.data_received(b"5\r\nworld\r\n1\r\n!\r\n")
    connection.data_received(b"0\r\n\r\n")
    exchange = finished[0]
    assert exchange.sent_ns < exchange.times_ns[0] < exchange.times_ns[1] < exchange.end_ns
    assert exchange.pieces == [b"hello", b"world", b"!"]
    assert exchange.times_ns[1] == exchange.times_ns[2] == exchange.end_ns - 1


def test_failing_an_exchange_closes_its_connection(line):
    connection, finished, _ = line
    connection.fail(RequestStatus.TIMED_OUT, "late")
    assert finished[0].failure == (RequestStatus.TIMED_OUT, "late")
    assert not connection.usable
    connection.connection_lost(None)
    assert len(finished) == 1


@pytest.mark.parametrize("size", [b"-6", b"+5", b"0x", b"1_0", b"", b"g", b"f" * 5000])
def test_a_chunk_size_that_is_none_ends_the_exchange_at_once(line, size):
    connection, finished, _ = line
    connection.data_received(HEAD)
    connection.data_received(size + b"\r\n" + b"0\r\n\r\n")
    status, detail = finished[0].failure
    assert status is RequestStatus.BAD_PAYLOAD
    assert "invalid HTTP in the reply" in detail
    assert not connection.usable


@pytest.mark.parametrize("digits", [b"9" * 20, b"9" * 5000, b"-1", b"x"])
def test_a_length_that_is_not_a_size_is_refused(line, digits):
    connection, finished, _ = line
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: " + digits + b"\r\n\r\n0")
    status, detail = finished[0].failure
    assert status is RequestStatus.BAD_PAYLOAD
    assert "Content-Length" in detail
    assert not connection.usable


CHUNKS = b"5\r\nhello\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "reply",
    [
        HEAD + CHUNKS + b"0;a=b\r\n\r\n",
        HEAD + CHUNKS + b"0\r\nX-Checksum: 7\r\nContent-Type: text/odd\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + CHUNKS + b"0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HEAD + CHUNKS + b"0\r\n\r\n",
        HEAD + CHUNKS + b"000\r\n\r\n",
        HEAD.replace(b"chunked", b"Chunked") + CHUNKS + b"0\r\n\r\n",
    ],
    ids=["extension", "trailers", "100", "103", "zeros", "case"],
)
def test_every_legal_end_is_seen_at_its_last_byte(line, reply, size):
    assert_ended_by_its_last_byte(line, reply, size)
    exchange = line[1][0]
    assert (exchange.status_code, exchange.content_type) == (200, "text/event-stream")
    assert b"".join(exchange.pieces) == b"hello"


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("head", [b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 Not Modified"])
def test_a_reply_without_a_body_ends_with_its_head(line, head, size):
    assert_ended_by_its_last_byte(line, head + b"\r\nServer: x\r\n\r\n", size)


def test_a_changed_protocol_is_refused(line):
    connection, finished, _ = line
    connection.data_received(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
    assert finished[0].failure[0] is RequestStatus.HTTP_STATUS
    assert not connection.usable


def test_bytes_after_the_end_of_a_reply_close_the_connection(line):
    connection, finished, _ = line
    connection.data_received(HEAD + b"0\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert finished[0].failure is None
    assert finished[0].connection_closes
