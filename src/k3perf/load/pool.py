"""Kept-open connections to one endpoint, opened before the clock starts and replenished
in the background.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Final

from k3perf.errors import UsageError
from k3perf.load.clock import Clock
from k3perf.load.exchange import Connection, Exchange
from k3perf.load.gathering import Gatherer
from k3perf.load.request_form import RequestForm
from k3perf.load.wire import Endpoint
from k3perf.units import NS_PER_S

# Servers close connections that idle after a reply (uvicorn: 5 s). One that idled for
# longer than this is replaced. So a reset during a request is the engine's, and needs
# no silent retry.
IDLE_LIMIT_NS: Final = 2 * NS_PER_S
_OPENED_AT_ONCE: Final = 64
_CONNECT_TIMEOUT_S: Final = 10.0


def tls_context(form: RequestForm) -> ssl.SSLContext:
    """The TLS settings of a form. Raises UsageError for a file without certificates."""
    try:
        context = ssl.create_default_context(cafile=form.tls_ca_file or None)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(
            f"--tls-ca-file {form.tls_ca_file}: {error.strerror or error}. Give a PEM file of"
            " certificates."
        ) from None
    if not form.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class ConnectionPool:
    """Connections to one endpoint. ``spare`` idle ones are kept ready in addition to
    those in use.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        endpoint_index: int,
        *,
        clock: Clock,
        gatherer: Gatherer,
        on_finished: Callable[[Connection, Exchange], None],
        on_crash: Callable[[BaseException], None],
        spare: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._endpoint_index = endpoint_index
        self._clock = clock
        self._gatherer = gatherer
        self._on_finished = on_finished
        self._on_crash = on_crash
        self._spare = spare
        self._tls = tls
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = 0
        self._closed = False

    async def open(self, count: int) -> None:
        """Open ``count`` connections. Those that fail are tried again, and reported, by
        the requests that need them.
        """
        while count > 0:
            batch = min(count, _OPENED_AT_ONCE)
            opened = await asyncio.gather(
                *(self._connect() for _ in range(batch)), return_exceptions=True
            )
            failures = [result for result in opened if isinstance(result, BaseException)]
            self._idle.extend(result for result in opened if isinstance(result, Connection))
            if failures:
                return
            count -= batch

    def take(self) -> Connection | None:
        """An idle, fresh connection, or None."""
        now_ns = self._clock()
        taken = None
        while self._idle and taken is None:
            connection = self._idle.pop()
            stale = (
                connection.served_count > 0 and now_ns - connection.free_since_ns > IDLE_LIMIT_NS
            )
            if stale or not connection.usable:
                self.discard(connection)
            else:
                taken = connection
        if len(self._idle) + self._opening < self._spare and not self._closed:
            self._spawn(self._replenish())
        return taken

    def give(self, connection: Connection) -> None:
        """Return a connection after a complete exchange."""
        self._idle.append(connection)

    def discard(self, connection: Connection) -> None:
        """Close a connection for good."""
        self._open.discard(connection)
        connection.abort()

    def connect_for(
        self, on_open: Callable[[Connection], None], on_error: Callable[[OSError], None]
    ) -> None:
        """Open one more connection for a request that found none idle."""
        self._spawn(self._open_for(on_open, on_error))

    async def close(self) -> None:
        """Abort everything and wait until all tasks have ended."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in tuple(self._open):
            self.discard(connection)
        self._idle.clear()
        await asyncio.sleep(0)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash(error)

    async def _replenish(self) -> None:
        self._opening += 1
        try:
            self._idle.insert(0, await self._connect())
        except OSError:
            # a request that needs a connection gets the same error and reports it
            pass
        finally:
            self._opening -= 1

    async def _open_for(
        self, on_open: Callable[[Connection], None], on_error: Callable[[OSError], None]
    ) -> None:
        try:
            connection = await self._connect()
        except OSError as error:
            on_error(error)
        else:
            on_open(connection)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: Connection(
                    self._endpoint_index,
                    self._clock,
                    self._gatherer,
                    self._on_finished,
                    self._on_idle_lost,
                ),
                self._endpoint.host,
                self._endpoint.port,
                ssl=self._tls,
                server_hostname=self._endpoint.host if self._tls is not None else None,
            )
        self._open.add(connection)
        return connection

    def _on_idle_lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
