"""Client and mock server on one event loop whose clock stands still while they work.

Time moves only when nobody has anything to do, and then to the next timer. What the
client reports can so be compared with the server's truth to the nanosecond, on a
machine as busy as it likes. The protocol code, the pacing and the decoding are the real
ones; the sockets are Unix ones, which deliver at once where the loopback device may
take its time. What this cannot show is how fast the client is: that is what the tests
on the machine's own clock are for.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import selectors
from types import SimpleNamespace
from typing import Any

import pytest

from k3perf.load import clock as clock_module
from k3perf.load import gathering, generator
from k3perf.load.generator import run_round
from k3perf.load.mock_server import Behaviour
from k3perf.load.mock_server.http_service import HttpConnection, Service
from k3perf.load.mock_server.player import Player
from k3perf.load.round_samples import RoundSamples
from k3perf.workload.request_plan import Plan

_BEGIN_S = 100.0  # small, so that a float holds nanoseconds
_numbers = itertools.count()


class _Selector(selectors.DefaultSelector):
    """Never waits for a timer: time jumps to it once the sockets are quiet."""

    now_s = _BEGIN_S

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now_s += max(timeout, 0.0)
        return ready


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock of its own."""

    def __init__(self) -> None:
        self.quiet = _Selector()
        self.address = f"\0k3perf-{os.getpid()}-{next(_numbers)}"
        self.server: asyncio.Server | None = None
        self.rests_s: list[float] = []
        super().__init__(self.quiet)

    def close(self) -> None:
        """The server's sockets with the loop."""
        if self.server is not None:
            self.server.close()
            self.run_until_complete(asyncio.sleep(0))
        super().close()

    async def create_connection(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        """To the server of this loop, whatever host and port are named."""
        return await self.create_unix_connection(protocol_factory, self.address)

    def time(self) -> float:
        """Seconds of the loop's own clock."""
        return self.quiet.now_s

    def now_ns(self) -> int:
        """The same in nanoseconds, as the load layer's clocks are."""
        return round(self.quiet.now_s * 1e9)

    def sleep(self, duration_s: float) -> None:
        """What ``time.sleep`` is to a loop that blocks itself."""
        self.rests_s.append(duration_s)
        self.quiet.now_s += duration_s


class Simulation:
    """Plays rounds against a mock server on a loop of its own. ``rests_s``: the
    client's rests in the last round.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(
            clock_module, "_open_timerfd", lambda: None
        )  # its alarms ring on the machine's clock

    def play(self, plan: Plan, behaviour: Behaviour) -> tuple[RoundSamples, list[dict[str, Any]]]:
        """(the round, the server's truth)."""
        loop = StillLoop()
        self.rests_s = loop.rests_s
        self._monkeypatch.setattr(generator, "_new_event_loop", lambda: loop)
        self._monkeypatch.setattr(gathering, "time", SimpleNamespace(sleep=loop.sleep))
        service = Service(behaviour, Player(loop, loop.now_ns), loop.now_ns)
        serving = loop.create_unix_server(
            lambda: HttpConnection(service), loop.address, backlog=1024
        )
        loop.server = loop.run_until_complete(serving)
        seen = run_round(plan, base_url="http://127.0.0.1:1", model_name="mock", clock=loop.now_ns)
        return seen, service.truth.as_json()["requests"]
