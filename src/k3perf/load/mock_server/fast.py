"""A mock server that writes faster than a client reads, to calibrate clients.

``python -m k3perf.load.mock_server.fast --port 0``. It shares no code with the usual
mock server or with the client: plain sockets, one thread, replies formatted before
their first token is due. So it also checks both. It knows fixed delays only and no
faults.

    POST /v1/completions  a stream of vLLM's form, as the profile says
    POST /profile         the profile (JSON), and everything forgotten
    GET /truth            of each request: prompt, receipt, times and tokens of writes
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

HOST: Final = "127.0.0.1"
PROFILE: Final = {
    "ttft_ms": 20.0,
    "itl_ms": 5.0,
    "step_ms": 0.0,
    "spread_ms": 0.0,
    "chunk_tokens": 1,
    "segment_chunks": 1,
}
"""``itl_ms``: time per token. ``step_ms``: writes leave at multiples of it (0: at
once). ``spread_ms``: the streams' first tokens are spread over so long.
``chunk_tokens``: tokens of an event. ``segment_chunks``: events of one write.
"""
_LONGEST_SLEEP_NS: Final = 500_000
_SHORTEST_SLEEP_NS: Final = 60_000
_BACKLOG: Final = 16_384
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_LAST: Final = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Stream:
    """One connection, and the reply that it carries."""

    __slots__ = ("asked", "due_ns", "position", "received", "rest", "segments", "socket", "truth")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.received = b""
        self.segments: list[bytes] = []
        self.position = 0
        self.due_ns = 0
        self.rest = b""
        self.asked: dict[str, Any] = {}
        self.truth: dict[str, Any] = {}


class FastServer:
    """Everything of one process."""

    def __init__(self, port: int) -> None:
        self.profile: dict[str, float] = dict(PROFILE)
        self.truth: list[dict[str, Any]] = []
        self._listening = socket.create_server((HOST, port), backlog=_BACKLOG)
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        self._poll = select.epoll()
        self._poll.register(self._listening, select.EPOLLIN)
        self._streams: dict[int, Stream] = {}
        self._heap: list[tuple[int, int, Stream]] = []
        self._stuck: list[Stream] = []
        self._serial = 0

    def serve(self) -> None:
        """Until a signal raises."""
        while True:
            wait_s = self._sleep_before_next()
            for number, _ in self._poll.poll(wait_s):
                if number == self._listening.fileno():
                    self._accept()
                else:
                    self._read(self._streams[number])
            self._write_due()

    def _sleep_before_next(self) -> float:
        """Sleep until the next write, in short steps. Returns how long to wait for
        bytes: for ever if nothing is due.
        """
        if self._stuck:
            return 0.0
        if not self._heap:
            return -1.0
        left_ns = self._heap[0][0] - time.monotonic_ns()
        if left_ns > _SHORTEST_SLEEP_NS:
            time.sleep(min(left_ns - _SHORTEST_SLEEP_NS, _LONGEST_SLEEP_NS) / 1e9)
        return 0.0

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except BlockingIOError:
                return
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._streams[connected.fileno()] = Stream(connected)
            self._poll.register(connected, select.EPOLLIN)

    def _read(self, stream: Stream) -> None:
        try:
            data = stream.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(stream)
            return
        stream.received += data
        head, found, body = stream.received.partition(b"\r\n\r\n")
        if not found:
            return
        size = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length":
                size = int(value)
        if len(body) < size:
            return
        stream.received = body[size:]
        self._route(stream, head.split(b" ", 2), body[:size], time.monotonic_ns())

    def _route(self, stream: Stream, request: list[bytes], body: bytes, received_ns: int) -> None:
        path = request[1]
        if path == b"/v1/completions":
            self._begin(stream, json.loads(body), received_ns)
        elif path == b"/profile":
            unknown = set(json.loads(body)) - set(PROFILE)
            if unknown:
                self._answer(stream, b"400 Bad Request", f"unknown: {sorted(unknown)}".encode())
                return
            self.profile = PROFILE | json.loads(body)
            self.truth = []
            self._answer(stream, b"200 OK", json.dumps(self.profile).encode())
        elif path == b"/truth":
            self._answer(stream, b"200 OK", json.dumps(self.truth).encode())
        else:
            self._answer(stream, b"404 Not Found", b"{}")

    def _answer(self, stream: Stream, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        stream.socket.setblocking(True)
        stream.socket.sendall(head % (status, len(body)) + body)
        stream.socket.setblocking(False)

    def _begin(self, stream: Stream, asked: dict[str, Any], received_ns: int) -> None:
        profile = self.profile
        count = int(asked["max_tokens"])
        stream.segments, tokens = _segments(asked, count, profile)
        stream.position = 0
        ordinal = len(self.truth)
        stream.truth = {
            "ordinal": ordinal,
            "prompt": asked["prompt"],
            "received_ns": received_ns,
            "write_ns": [],
            "write_tokens": tokens,
        }
        self.truth.append(stream.truth)
        # the golden ratio spreads any number of streams evenly
        phase = ordinal * 0.6180339887498949 % 1.0 * profile["spread_ms"]
        stream.due_ns = self._on_grid(received_ns + round((profile["ttft_ms"] + phase) * 1e6))
        self._push(stream)

    def _on_grid(self, due_ns: int) -> int:
        step_ns = round(self.profile["step_ms"] * 1e6)
        return -(-due_ns // step_ns) * step_ns if step_ns else due_ns

    def _push(self, stream: Stream) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (stream.due_ns, self._serial, stream))

    def _write_due(self) -> None:
        if self._stuck:
            stuck, self._stuck = self._stuck, []
            for stream in stuck:
                self._send(stream, stream.rest)
        now_ns = time.monotonic_ns()
        heap = self._heap
        gap_ns = round(
            self.profile["itl_ms"]
            * self.profile["chunk_tokens"]
            * self.profile["segment_chunks"]
            * 1e6
        )
        while heap and heap[0][0] <= now_ns:
            stream = heapq.heappop(heap)[2]
            if stream.rest:  # the client has not taken the last write yet
                stream.due_ns = now_ns + gap_ns
                self._push(stream)
                continue
            stream.truth["write_ns"].append(time.monotonic_ns())
            data = stream.segments[stream.position]
            stream.position += 1
            if self._send(stream, data) and stream.position < len(stream.segments):
                stream.due_ns = self._on_grid(stream.due_ns + gap_ns)
                self._push(stream)

    def _send(self, stream: Stream, data: bytes) -> bool:
        try:
            sent = stream.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(stream)
            return False
        stream.rest = data[sent:]
        if stream.rest:
            self._stuck.append(stream)
        return True

    def _drop(self, stream: Stream) -> None:
        number = stream.socket.fileno()
        if number >= 0:
            self._poll.unregister(number)
            self._streams.pop(number, None)
            stream.socket.close()
        stream.segments = []
        stream.rest = b""


def _segments(
    asked: dict[str, Any], count: int, profile: dict[str, float]
) -> tuple[list[bytes], list[int]]:
    """The writes of one reply, and the tokens of each. The head leaves with the first
    token, and the end with the last.
    """
    prompt_count = len(asked["prompt"])
    events: list[tuple[bytes, int]] = []
    done = 0
    while done < count:
        tokens = min(int(profile["chunk_tokens"]), count - done)
        ids = list(range(done + 5, done + 5 + tokens))
        done += tokens
        text = " ".join(f"w{number}" for number in ids)
        payload = (
            '{"id":"cmpl-fast","object":"text_completion","created":1764000000,"model":"mock",'
            f'"choices":[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":null,'
            f'"token_ids":{ids}}}],"usage":{{"prompt_tokens":{prompt_count},'
            f'"total_tokens":{prompt_count + done},"completion_tokens":{done}}}}}'
        )
        data = f"data: {payload}\n\n".encode()
        events.append((b"%x\r\n%b\r\n" % (len(data), data), tokens))
    size = int(profile["segment_chunks"])
    writes: list[bytes] = []
    counts: list[int] = []
    for begin in range(0, len(events), size):
        part = events[begin : begin + size]
        writes.append(b"".join(data for data, _ in part))
        counts.append(sum(tokens for _, tokens in part))
    writes[0] = _HEAD + writes[0]
    writes[-1] += _LAST
    return writes, counts


def serve_fast(profile: Mapping[str, float], port: int, announce: Callable[[int], None]) -> None:
    """Serve until SIGINT or SIGTERM. ``announce`` gets the port. Raises OSError if the
    port is taken.
    """

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    server = FastServer(port)
    server.profile |= profile
    gc.disable()
    announce(server.port)
    try:
        server.serve()
    except KeyboardInterrupt:
        return


def main() -> int:
    """Serve until SIGINT or SIGTERM. The first line on stdout is the base URL."""
    parser = argparse.ArgumentParser(description="fast mock server with fixed delays")
    parser.add_argument("--port", type=int, default=0, help="port (default: a free one)")

    def announce(port: int) -> None:
        sys.stdout.write(f"http://{HOST}:{port}\n")
        sys.stdout.flush()

    serve_fast({}, parser.parse_args().port, announce)
    return 0


if __name__ == "__main__":
    sys.exit(main())
