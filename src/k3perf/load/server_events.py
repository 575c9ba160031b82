"""Server-sent events from the pieces of a body. Pure.

Lines end with LF, CR or CRLF. A byte order mark at the start is skipped. Several data
lines of one event are joined by LF. An empty line ends the event
(HTML standard, section 9.2.6).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class EventReader:
    """Feed pieces in order. Each complete event is ``(type, data)``, and the type is
    empty for the default one.
    """

    __slots__ = ("_after_cr", "_data", "_pending", "_started", "_type")

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[bytes] = []
        self._type = b""
        self._started = False
        self._after_cr = False

    @property
    def between_events(self) -> bool:
        """Whether nothing of an event has been read yet."""
        return not (self._pending or self._data or self._type or self._after_cr)

    def feed(self, piece: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Events that this piece completes."""
        if self._after_cr and piece:
            self._after_cr = False
            # CR and LF of one line end came in two pieces
            piece = piece.removeprefix(b"\n")
        text = self._pending + piece
        if not self._started:
            if len(text) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(text):
                self._pending = text
                return
            text = text.removeprefix(_BYTE_ORDER_MARK)
            self._started = True
        lines = text.splitlines(keepends=True)
        self._pending = b"" if not lines or lines[-1][-1] in b"\r\n" else lines.pop()
        self._after_cr = not self._pending and text.endswith(b"\r")
        for line in lines:
            yield from self._take(line.rstrip(b"\r\n"))

    def end(self) -> Iterator[tuple[bytes, bytes]]:
        """The last event of a stream that lacks its empty line."""
        if self._pending:
            yield from self._take(self._pending)
            self._pending = b""
        yield from self._take(b"")

    def _take(self, line: bytes) -> Iterator[tuple[bytes, bytes]]:
        if line:
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value)
            elif name == b"event":
                self._type = value.strip()
            return
        if self._data:
            yield self._type, b"\n".join(self._data)
        self._data = []
        self._type = b""
