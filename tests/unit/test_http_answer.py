"""Answers that are cut short or dripped, as seen by what reads them: counters of a
running server, and the health of a starting one.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from k3perf import http_answer
from k3perf.engine import health
from k3perf.errors import EngineError
from k3perf.telemetry.server import ServerProbe
from tests.processes import WAIT_S

BODY = b"vllm:num_preemptions_total 31.0\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
CUT = HEAD % len(BODY) + BODY[:-4]  # 31.0 is cut to 3
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n"
ENDLESS_HEAD = b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 60_000


@contextmanager
def speaking(answer: bytes, pause_s: float = 0.0) -> Iterator[int]:
    """A server that sends ``answer`` to every connection, byte by byte with pauses
    where one is given, and closes it; gives its port.
    """
    ended = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.recv(65536)
                for piece in (
                    [answer[at : at + 1] for at in range(len(answer))] if pause_s else [answer]
                ):
                    if ended.is_set():
                        return
                    connection.sendall(piece)
                    time.sleep(pause_s)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def counters(port: int, timeout_s: float = 10.0) -> dict[str, float]:
    return ServerProbe(f"http://127.0.0.1:{port}", timeout_s=timeout_s).counters()


def test_a_whole_answer_is_read_with_and_without_a_length() -> None:
    for answer in (
        HEAD % len(BODY) + BODY,
        b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
        CHUNKED + BODY + b"\r\n0\r\n\r\n",
    ):
        with speaking(answer) as port:
            assert counters(port) == {"vllm:num_preemptions_total": 31.0}
            assert health.is_healthy("127.0.0.1", port)


@pytest.mark.parametrize(
    "answer",
    [CUT, CHUNKED + BODY[:-4], CHUNKED + BODY],
    ids=["length", "in a chunk", "no last chunk"],
)
def test_an_answer_that_is_cut_is_no_reading(answer: bytes) -> None:
    with speaking(answer) as port:
        with pytest.raises(
            EngineError, match=r"GET /metrics of 127\.0\.0\.1:\d+: (ConnectionError|IncompleteRead)"
        ):
            counters(port)
        assert not health.is_healthy("127.0.0.1", port)
        assert health.served_models("127.0.0.1", port) is None


def test_a_cut_answer_says_how_much_is_missing() -> None:
    with (
        speaking(CUT) as port,
        pytest.raises(EngineError, match="cut off: 28 bytes came, 4 more were announced"),
    ):
        counters(port)


@pytest.mark.parametrize(
    "answer",
    [ENDLESS_HEAD, b"H" * 60_000, b"HTTP/1.1 100 Continue\r\n\r\n" * 2400],
    ids=["header", "status", "interim"],
)
def test_the_limit_covers_dripped_heads(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_TIMEOUT_S", 0.3)
    with speaking(answer, pause_s=0.01) as port:
        begin_s = time.monotonic()
        with pytest.raises(EngineError, match=r"TimeoutError: the answer did not end within 0.3 s"):
            counters(port, timeout_s=0.3)
        assert not health.is_healthy("127.0.0.1", port)
        assert time.monotonic() - begin_s < WAIT_S  # each whole answer takes 600 s


def test_the_limit_covers_a_request_that_nobody_reads() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(TimeoutError, match=r"within 0.3 s"),
    ):
        http_answer.answer(
            silent.getsockname()[:2], "POST", "/", "x" * (64 << 20), limit_s=0.3, largest_bytes=1
        )
