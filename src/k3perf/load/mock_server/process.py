"""The mock server in a separate process, so that it never shares an interpreter with
the client that it measures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from k3perf.errors import MeasurementInvalid
from k3perf.load.mock_server.behaviour import Behaviour

_STOP_TIMEOUT_S: Final = 5.0
_REQUEST_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class MockServer:
    """A running mock server."""

    base_url: str
    pid: int

    def behave(self, behaviour: Behaviour) -> None:
        """Use this behaviour from now on. Truth, counters and cache are cleared."""
        self._call("/behaviour", behaviour.model_dump_json().encode())

    def truth(self) -> list[dict[str, Any]]:
        """Records of all requests since the start or the last ``behave``
        (``truth.RequestTruth``).
        """
        requests: list[dict[str, Any]] = json.loads(self._call("/truth"))["requests"]
        return requests

    def metrics_text(self) -> str:
        """The text of ``/metrics``."""
        return self._call("/metrics").decode()

    def _call(self, path: str, body: bytes | None = None) -> bytes:
        return call_server(self.base_url, path, body)


def call_server(base_url: str, path: str, body: bytes | None = None) -> bytes:
    """The body of one answer."""
    request = urllib.request.Request(base_url + path, data=body)  # noqa: S310 - a loopback URL made here
    with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as response:  # noqa: S310
        answer: bytes = response.read()
    return answer


@contextmanager
def start_mock_server(
    behaviour: Behaviour | None = None, *, cpus: frozenset[int] = frozenset()
) -> Iterator[MockServer]:
    """Run a mock server on a free port for the duration of the block, pinned to
    ``cpus`` if given. Raises MeasurementInvalid.
    """
    command = [sys.executable, "-m", "k3perf.load.mock_server.main", "--port", "0"]
    if cpus:
        command += ["--cpus", ",".join(map(str, sorted(cpus)))]
    if behaviour is not None:
        command += ["--behaviour", behaviour.model_dump_json()]
    with _running(command) as (base_url, pid):
        yield MockServer(base_url, pid)


@contextmanager
def _running(command: list[str]) -> Iterator[tuple[str, int]]:
    """The base URL and the process id of a server that prints its URL first."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - asked for above
            line = process.stdout.readline().strip()
            if not line.startswith("http://"):
                raise MeasurementInvalid(
                    f"the mock server did not start: it said {line!r} and ended with status"
                    f" {process.wait()}"
                )
            yield line, process.pid
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclass(frozen=True, slots=True)
class FastMockServer:
    """A running fast mock server (``mock_server.fast``)."""

    base_url: str
    pid: int

    def play(self, **profile: float) -> None:
        """Use this profile from now on, and forget all requests."""
        call_server(self.base_url, "/profile", json.dumps(profile).encode())

    def truth(self) -> list[dict[str, Any]]:
        """Records of all requests since the last ``play``."""
        requests: list[dict[str, Any]] = json.loads(call_server(self.base_url, "/truth"))
        return requests


@contextmanager
def start_fast_server(*, cpus: frozenset[int] = frozenset()) -> Iterator[FastMockServer]:
    """Run a fast mock server on a free port for the duration of the block, pinned to
    ``cpus`` if given. Raises MeasurementInvalid.
    """
    command = [sys.executable, "-m", "k3perf.load.mock_server.fast"]
    if cpus:
        command = ["taskset", "-c", ",".join(map(str, sorted(cpus))), *command]
    with _running(command) as (base_url, pid):
        yield FastMockServer(base_url, pid)
