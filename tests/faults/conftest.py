"""Fixtures of the fault tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from k3perf.engine import process_tree, supervisor
from k3perf.engine.port import PortReservation
from tests.faults.bench import Bench
from tests.faults.real_engine import RealLaunch, real_engine_launch
from tests.processes import WAIT_S


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake engine starts and ends sooner than one that loads weights; hundreds of
    starts would wait for the next look.
    """
    monkeypatch.setattr(supervisor, "_POLL_S", 0.05)
    monkeypatch.setattr(process_tree, "_ORDERLY_POLL_S", 0.02)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A clean bench; whatever a failing test leaves is ended by pid afterwards."""
    temporary = Path(tempfile.mkdtemp(prefix="k3b-"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    made = Bench(f"fake-{uuid.uuid4().hex[:10]}", tmp_path, temporary)
    yield made
    shutil.rmtree(temporary, ignore_errors=True)
    for pid in made.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def real_launch(bench: Bench, engine_python: Path) -> RealLaunch:
    """Launches of vLLM's own CPU engine in the bench; the test is skipped where there
    is no such engine.
    """
    return partial(real_engine_launch, bench, engine_python)


@pytest.fixture
def wait_for() -> Callable[[Callable[[], object], float], None]:
    """Poll a condition until it holds; fail with its name otherwise."""

    def wait(condition: Callable[[], object], within_s: float = WAIT_S) -> None:
        end_s = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < end_s, f"{condition} did not come true within {within_s} s"
            time.sleep(0.02)

    return wait


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A version 1 memory cgroup of 96 MiB, or skip: version 2 and unprivileged machines
    are not offered one here.
    """
    group = Path("/sys/fs/cgroup/memory") / f"k3perf-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(96 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group
    end_s = time.monotonic() + WAIT_S
    while (
        (group / "cgroup.procs").read_text().split() and time.monotonic() < end_s
    ):  # a failing test leaves its engine to the bench
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)
    group.rmdir()


@contextmanager
def stranger_on(port: int, model: str = "") -> Iterator[None]:
    """Another program that listens on the port; it answers /health and /v1/models like
    an engine of ``model`` would: only whose process it is tells it from ours.
    """
    listed = json.dumps({"object": "list", "data": [{"id": model}]}).encode()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen(8)

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    body = listed if b"/v1/models" in connection.recv(4096) else b""
                    connection.sendall(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                    )

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.fixture
def steal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[int]]]:
    """Let a stranger, one that serves ``model`` where it is named, take the first N
    reserved ports; returns the ports that were reserved.
    """
    with ExitStack() as strangers:

        def arm(count: int, model: str = "") -> list[int]:
            ports: list[int] = []

            class Stolen(PortReservation):
                def __init__(self, host: str) -> None:
                    super().__init__(host)
                    ports.append(self.port)
                    if len(ports) <= count:
                        strangers.enter_context(stranger_on(self.port, model))

            monkeypatch.setattr(supervisor, "PortReservation", Stolen)
            return ports

        yield arm
