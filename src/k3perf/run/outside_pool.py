"""Engines that k3perf did not start: servers at given addresses, in the place of the
pool that starts and stops engines.

Each session of a cell uses the next server. What cannot be seen of a server is named in
the cell's notes, and is neither compared nor taken for good.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil

from k3perf import http_answer
from k3perf.engine.jit_monitor import JitMonitor, monitor_of
from k3perf.engine.log_reader import LogReader
from k3perf.engine.process_tree import ProcessTree
from k3perf.engine.running import StopReport
from k3perf.errors import EngineError
from k3perf.records.samples import StageTiming
from k3perf.run.live import LiveEngine, engine_identity, utc_now
from k3perf.run.pool import EnginePool, Wanted
from k3perf.run.progress import Progress
from k3perf.run.settings import RunSettings
from k3perf.telemetry.outside_server import OutsideServer, SeenServer

_HEALTH_S: Final = 5.0
_LARGEST_BYTES: Final = 1 << 20


class OutsideEngine:
    """A ``ServedEngine`` that is only talked to: freezing and stopping do nothing."""

    logs: tuple[LogReader, ...] = ()
    trees: tuple[ProcessTree, ...] = ()
    stages: tuple[StageTiming, ...] = ()
    compile_cache_warm: bool | None = None
    imported_ahead = False

    def __init__(self, seen: SeenServer) -> None:
        self.base_url = seen.base_url
        self.model_name = seen.served_name
        self.death_event = threading.Event()
        self.log_path = Path()
        self.scratch = Path()
        self._pids = local_pids(seen.base_url)

    @property
    def log(self) -> LogReader:
        """Raises EngineError: the log of such a server is not here."""
        raise EngineError(f"the log of {self.base_url} is not visible")

    def pids(self) -> tuple[int, ...]:
        """Its processes if it runs on this machine and shows them, else none."""
        return self._pids

    def alive(self) -> bool:
        """Whether ``/health`` answers."""
        parts = urlsplit(self.base_url)
        try:
            status, _ = http_answer.answer(
                (parts.hostname or "", parts.port or 80),
                "GET",
                "/health",
                limit_s=_HEALTH_S,
                largest_bytes=_LARGEST_BYTES,
            )
        except http_answer.FAILURES:
            return False
        return status < 500

    def death_error(self) -> EngineError:
        """The server does not answer."""
        return EngineError(
            f"the server at {self.base_url} does not answer /health. Check that it runs and is"
            " healthy."
        )

    def freeze(self) -> None:
        """Nothing: the server is not the suite's."""

    def thaw(self) -> None:
        """Nothing: the server is not the suite's."""

    def stop(self) -> StopReport:
        """Nothing: the server goes on."""
        return StopReport((), True, None, (), (), 0.0)


class OutsidePool(EnginePool):
    """As ``EnginePool``, over the servers of ``RunSettings.servers``."""

    def __init__(self, settings: RunSettings, progress: Progress) -> None:
        super().__init__(settings, progress)
        self._addresses = settings.servers
        self._used_count = 0
        self._seen: dict[str, SeenServer] = {}

    def acquire(self, wanted: Sequence[Wanted]) -> list[LiveEngine]:
        """The next server for the one wanted engine. Raises EngineError if it does not
        answer.
        """
        (item,) = wanted
        if item.key not in self._live:
            address = self._addresses[self._used_count % len(self._addresses)]
            self._used_count += 1
            self._progress.stage(f"{item.target.name}-{item.config.name}", f"connect to {address}")
            self._live[item.key] = self._attach(item, address)
        return [self._live[item.key]]

    def stop(self, live: LiveEngine) -> None:
        """Leave the server. It goes on."""
        self._live.pop((live.target, live.config, live.arm), None)

    def engines_count(self) -> int:
        """None of the suite's own."""
        return 0

    def seen_servers(self) -> tuple[SeenServer, ...]:
        """Every server that a session was measured on, once."""
        return tuple(self._seen.values())

    def used_again(self) -> bool:
        """Whether several sessions were measured on one server."""
        return self._used_count > len(self._addresses)

    def _attach(self, item: Wanted, address: str) -> LiveEngine:
        server = OutsideServer(address)
        seen = server.seen()
        self._seen[seen.base_url] = seen
        engine = OutsideEngine(seen)
        found = {**seen.identity, "host": urlsplit(seen.base_url).hostname}
        return LiveEngine(
            session_id=uuid.uuid4().hex[:12],
            arm=item.arm,
            target=item.target.name,
            config=item.config.name,
            engine=engine,
            probe=server,
            identity=engine_identity(found, self._settings.hardware_class(item.target)),
            resolved_config=seen.resolved_config,
            kv_capacity_tokens=seen.kv_capacity_tokens,
            kv_max_concurrency_ratio=seen.kv_max_concurrency_ratio,
            started_at_utc=utc_now(),
            environment=seen.environment,
            monitor=_monitor(server),
            outside=True,
        )


def _monitor(server: OutsideServer) -> JitMonitor:
    try:
        return monitor_of(server.server_info()["vllm_config"])
    except (EngineError, KeyError):
        return JitMonitor(offered=False, verbose=False)


def local_pids(base_url: str) -> tuple[int, ...]:
    """The processes behind an address of this machine: the listener and its children.
    Empty for another machine, and where the listener belongs to another user.
    """
    parts = urlsplit(base_url)
    try:
        address = ipaddress.ip_address(socket.gethostbyname(parts.hostname or ""))
    except (OSError, ValueError):
        return ()
    if not address.is_loopback:
        return ()
    found: set[int] = set()
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return ()
    for connection in connections:
        port = connection.laddr.port if connection.laddr else None
        listens = connection.status == psutil.CONN_LISTEN and port == parts.port
        if listens and connection.pid:
            found.add(connection.pid)
            try:
                children = psutil.Process(connection.pid).children(recursive=True)
            except psutil.Error:
                continue
            found.update(child.pid for child in children)
    return tuple(sorted(found))
