"""Run the mock server in this process until a signal ends it. Loopback only."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable
from typing import Final

from k3perf.load.clock import monotonic_ns
from k3perf.load.mock_server.behaviour import Behaviour
from k3perf.load.mock_server.http_service import HttpConnection, Service
from k3perf.load.mock_server.player import Player

HOST: Final = "127.0.0.1"
_BACKLOG: Final = 4096


def serve(behaviour: Behaviour, port: int, announce: Callable[[int], None]) -> None:
    """Serve on ``port`` (0: a free one) until SIGINT or SIGTERM. ``announce`` gets the
    port. Raises OSError if it is taken.
    """
    import uvloop

    gc.freeze()
    # a collection would delay writes by milliseconds
    gc.disable()
    listening = socket.create_server((HOST, port), backlog=_BACKLOG)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_until_signal(behaviour, listening, announce))


async def _serve_until_signal(
    behaviour: Behaviour, listening: socket.socket, announce: Callable[[int], None]
) -> None:
    loop = asyncio.get_running_loop()
    told_to_end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told_to_end.set)
    player = Player(loop, monotonic_ns)
    service = Service(behaviour, player, monotonic_ns)
    server = await loop.create_server(
        lambda: HttpConnection(service), sock=listening, backlog=_BACKLOG
    )
    announce(listening.getsockname()[1])
    await told_to_end.wait()
    player.close()
    server.close()
