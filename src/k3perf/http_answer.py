"""One HTTP answer, whole and within one time limit: connection, request, status line,
headers and body together.

A socket's own time-out restarts with every byte, so a server that drips would never
run into it; and ``http.client`` reads a body that ends before its Content-Length
without a word. Both are errors here. Knows no route and no meaning of an answer;
nothing else of the suite is imported.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

FAILURES: Final = (OSError, http.client.HTTPException)
"""What ``answer`` raises: no connection, out of time (TimeoutError), too large, cut
short, or no HTTP.
"""

_READ_BYTES: Final = 1 << 16


def answer(
    address: tuple[str, int],
    method: str,
    path: str,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    limit_s: float,
    largest_bytes: int,
) -> tuple[int, bytes]:
    """Status and body of one request to ``address`` (host, port) on a connection of its
    own; raises one of ``FAILURES``.

    ``limit_s`` seconds cover everything but the look-up of a host's name. A body may
    have ``largest_bytes``.
    """
    connection = _TimedConnection(address, limit_s)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return response.status, _whole(response, largest_bytes)
    except TimeoutError:
        raise TimeoutError(f"the answer did not end within {limit_s:g} s") from None
    finally:
        connection.close()


def _whole(response: http.client.HTTPResponse, largest_bytes: int) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while part := response.read1(_READ_BYTES):
        parts.append(part)
        size_bytes += len(part)
        if size_bytes > largest_bytes:
            raise OSError(f"the answer is larger than {largest_bytes >> 20} MiB")
    # what Content-Length still promises; None without one (a chunked body that is cut
    # raises by itself)
    if response.length:
        raise ConnectionError(
            f"the answer was cut off: {size_bytes} bytes came, {response.length} more were"
            " announced"
        )
    return b"".join(parts)


class _TimedSocket(socket.socket):
    """A connected socket whose sends and reads all end at ``end_s``
    (``time.monotonic``).
    """

    end_s: float

    def sendall(self, *arguments: Any) -> None:
        """As the socket's; its time-out covers the whole of what is sent."""
        self.settimeout(_left_s(self.end_s))
        super().sendall(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        """As the socket's; every byte that ``http.client`` reads comes through here."""
        self.settimeout(_left_s(self.end_s))
        return super().recv_into(*arguments)


class _TimedConnection(http.client.HTTPConnection):
    def __init__(self, address: tuple[str, int], limit_s: float) -> None:
        super().__init__(*address)
        self._end_s = time.monotonic() + limit_s

    def connect(self) -> None:
        """Connect within what is left of the limit; each address of a host's name is
        given that.
        """
        plain = socket.create_connection((self.host, self.port), _left_s(self._end_s))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        timed = _TimedSocket(plain.family, plain.type, plain.proto, plain.detach())
        timed.end_s = self._end_s
        self.sock = timed


def _left_s(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
