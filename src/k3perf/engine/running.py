"""A started engine: where it listens, which processes it is, how it died if it did, and
its verified end.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from k3perf.engine import signals
from k3perf.engine.death_watch import DeathWatch, describe_exit, explained
from k3perf.engine.guardian import Guardian
from k3perf.engine.held_start import Gate
from k3perf.engine.launch import EngineLaunch
from k3perf.engine.log_reader import LogReader
from k3perf.engine.port import PortReservation, port_is_free
from k3perf.engine.process_tree import ProcessTree, command_of
from k3perf.engine.root_cause import RootCause
from k3perf.engine.shared_memory import SharedMemoryRecord
from k3perf.errors import EngineError
from k3perf.records.samples import StageTiming
from k3perf.units import MIB

KILL_DEADLINE_S: Final = 10.0
DEVICE_MEMORY_DEADLINE_S: Final = 30.0
DEVICE_MEMORY_SLACK_BYTES: Final = 256 * MIB
_POLL_S: Final = 0.05

DeviceUsedBytes = Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class StopReport:
    """What was proved after an engine's end. ``device_memory_returned`` None: no
    device, or it could not be read.
    """

    left_pids: tuple[int, ...]
    port_free: bool
    device_memory_returned: bool | None
    killed_pids: tuple[int, ...]
    removed_shared_memory: tuple[str, ...]
    duration_s: float

    @property
    def clean(self) -> bool:
        """No process, the port free, the device memory back as far as it can be
        read.
        """
        return not self.left_pids and self.port_free and self.device_memory_returned is not False

    @property
    def text(self) -> str:
        """One line: what is left, or that nothing is."""
        problems = []
        if self.left_pids:
            problems.append(
                "still running: "
                + ", ".join(f"{pid} ({command_of(pid)[:60]})" for pid in self.left_pids)
            )
        if not self.port_free:
            problems.append("the port is still taken")
        if self.device_memory_returned is False:
            problems.append("device memory did not come back")
        return "; ".join(problems) or "nothing left"


@dataclass(slots=True)
class EngineParts:
    """What a start has put together so far; ``Engine`` owns it. Not for callers of the
    supervisor.
    """

    launch: EngineLaunch
    process: subprocess.Popen[bytes]
    tree: ProcessTree
    guardian: Guardian
    reservation: PortReservation
    log: LogReader
    log_path: Path
    scratch: Path
    started_ns: int
    device_used_bytes: DeviceUsedBytes | None
    device_used_before_bytes: int | None
    shared_memory: SharedMemoryRecord
    gate: Gate | None = None
    environment: dict[str, str] = field(default_factory=dict)


class Engine:
    """One engine process tree, made by ``supervisor.start_engine``.

    Ended by ``stop``, by leaving its ``with`` block, at exit of the harness, or by its
    guardian when the harness is killed.
    """

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._start_watch: DeathWatch | None = None
        self._watch: DeathWatch | None = None
        self._report: StopReport | None = None
        self._stop_lock = threading.Lock()
        self.death_event = threading.Event()
        self.ready_ns = 0
        self.stages: tuple[StageTiming, ...] = ()
        self.compile_cache_warm: bool | None = None
        atexit.register(self.stop)

    @property
    def launch(self) -> EngineLaunch:
        """What was started."""
        return self._parts.launch

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT`` without a trailing slash."""
        return f"http://{self.launch.host}:{self.port}"

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        return self._parts.reservation.port

    @property
    def model_name(self) -> str:
        """The name to ask for in requests."""
        return self.launch.model_name

    @property
    def engine_id(self) -> str:
        """The mark that its processes carry in K3PERF_ENGINE_ID."""
        return self._parts.tree.engine_id

    @property
    def pid(self) -> int:
        """The API server's pid, which is also the session id."""
        return self._parts.process.pid

    @property
    def guardian_pid(self) -> int:
        """The process that ends this engine if the harness is killed."""
        return self._parts.guardian.pid

    @property
    def log(self) -> LogReader:
        """Its log, read as it grows."""
        return self._parts.log

    @property
    def logs(self) -> tuple[LogReader, ...]:
        """Every log of it: the one, as for each rank of a group."""
        return (self._parts.log,)

    @property
    def trees(self) -> tuple[ProcessTree, ...]:
        """Its process tree, as for each rank of a group."""
        return (self._parts.tree,)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that its process was started with."""
        return self._parts.environment

    @property
    def scratch(self) -> Path:
        """Its temporary directory: removed when it is stopped, by the guardian when the
        harness is killed.
        """
        return self._parts.scratch

    @property
    def log_path(self) -> Path:
        """Where its output goes."""
        return self._parts.log_path

    @property
    def started_ns(self) -> int:
        """When its process was started."""
        return self._parts.started_ns

    @property
    def imported_ahead(self) -> bool:
        """It was held at a gate after its imports: its start-up time is no start-up
        time of a service.
        """
        return self._parts.gate is not None

    def wait_at_gate(self) -> None:
        """Return when a held engine waits (or has ended). EngineError after the import
        stage's deadline.
        """
        if self._parts.gate is not None:
            self._parts.gate.wait_until_reached(
                deadline_s=self.launch.deadlines.import_s,
                ended=lambda: self.return_code() is not None,
            )

    def release_from_gate(self, on_stage: Callable[[str], None] | None) -> None:
        """Called once by the supervisor: from now on it starts like any other, its
        clocks and the device's memory read anew.
        """
        parts = self._parts
        if parts.gate is None:
            raise ValueError("this engine is not held")
        parts.device_used_before_bytes = (
            parts.device_used_bytes() if parts.device_used_bytes is not None else None
        )
        parts.started_ns = time.monotonic_ns()
        parts.log = LogReader(parts.log_path, start_ns=parts.started_ns, on_stage=on_stage)
        parts.gate.open()

    def pids(self) -> tuple[int, ...]:
        """Every running process of the tree, root first, reparented orphans
        included.
        """
        return self._parts.tree.pids()

    def mark_ready(self, ready_ns: int) -> None:
        """Called once by the supervisor: the engine is healthy and proved to be ours.
        Starts the death watch.
        """
        self.look()
        self._close_start_watch()
        self.ready_ns = ready_ns
        self.stages = self.log.stage_timings(ready_ns)
        self.compile_cache_warm = self.log.compile_cache_warm()
        self._watch = DeathWatch(
            self.pid, self.pids(), poll_root=self._parts.process.poll, event=self.death_event
        )

    def look(self) -> None:
        """Remember what the tree consists of and which shared memory it uses;
        milliseconds, so not inside measured windows.

        While the engine starts, the processes that it needs are watched from the first
        look that finds them.
        """
        pids = self.pids()
        self._parts.shared_memory.look(pids)
        if self._report is None and not self.ready_ns:
            if self._start_watch is None:
                self._start_watch = DeathWatch(
                    self.pid, pids, poll_root=self._parts.process.poll, event=threading.Event()
                )
            else:
                self._start_watch.add(pids)

    def _close_start_watch(self) -> None:
        if self._start_watch is not None:
            self._start_watch.close()

    def wait(self, duration_s: float) -> None:
        """Let time pass while the engine starts, with an eye on the shared memory that
        it makes.
        """
        self._parts.shared_memory.wait(duration_s, self.pids)

    def return_code(self) -> int | None:
        """The API server's ``Popen.returncode``; None while it runs."""
        return self._parts.process.poll()

    def alive(self) -> bool:
        """Ready, and none of the processes it needs has died."""
        return self._report is None and not self.death_event.is_set() and self.return_code() is None

    def failure(self) -> RootCause:
        """Why it died: its log's words, else which process was seen to end first and
        how, else how the API server ended.
        """
        watch = self._watch or self._start_watch
        return explained(
            self.log.cause(), watch.first if watch is not None else None, self.return_code()
        )

    def death_cause(self) -> str | None:
        """How it died and the root cause; None while it lives or when it was stopped on
        purpose.
        """
        how = self._how_it_died()
        return None if how is None else f"{how}; root cause: {self.failure().text}"

    def _how_it_died(self) -> str | None:
        return_code = None if self._report is not None else self.return_code()
        seen = self._watch.cause if self._watch is not None else None
        if seen is None and return_code is None:
            return None
        return seen or f"the API server ended with {describe_exit(return_code or 0)}"

    def death_error(self) -> EngineError:
        """The error to report for an engine that died in service."""
        how = self._how_it_died() or "the engine ended"
        return EngineError(
            f"engine died in service: {how}",
            stage="serving",
            root_cause=self.failure().text,
            log_tail=self.log.tail(),
        )

    def freeze(self) -> None:
        """Stop every process of the tree where it is (SIGSTOP), so that it takes no
        processor time.
        """
        self._parts.tree.freeze()

    def thaw(self) -> None:
        """Let a frozen tree go on."""
        self._parts.tree.thaw()

    def stop(self) -> StopReport:
        """End the whole tree and prove it: SIGTERM to a serving API server, after
        ``stop_s`` SIGKILL to every member.

        Never raises; idempotent. Ending signals are held back meanwhile.
        """
        with self._stop_lock, signals.deferred():
            if self._report is None:
                self._report = self._stop()
                atexit.unregister(self.stop)
            return self._report

    def _stop(self) -> StopReport:
        begin_s = time.monotonic()
        parts = self._parts
        self._close_start_watch()
        if self._watch is not None:
            self._watch.close()
        died_by_itself = self.death_event.is_set() or parts.process.poll() is not None
        self._parts.shared_memory.look(self.pids())
        if self.ready_ns and not died_by_itself:
            self._ask_to_end()
        # stopped processes make no more shared memory: what is seen now is all there is
        parts.tree.freeze()
        killed = parts.tree.pids()
        parts.shared_memory.look(killed)
        left = parts.tree.kill(deadline_s=KILL_DEADLINE_S, poll_root=parts.process.poll)
        removed = parts.shared_memory.remove()
        parts.shared_memory.close()
        parts.log.drain()
        parts.reservation.release()
        if parts.gate is not None:
            parts.gate.close()
        port_free = port_is_free(parts.launch.host, parts.reservation.port)
        device = self._device_memory_returned()
        shutil.rmtree(parts.scratch, ignore_errors=True)
        if not left:
            parts.guardian.release()
        return StopReport(left, port_free, device, killed, removed, time.monotonic() - begin_s)

    def _ask_to_end(self) -> None:
        """SIGTERM to the API server, and its time for an orderly end. An engine that is
        not serving yet has nothing to put in order.
        """
        process = self._parts.process
        self._parts.tree.thaw()
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        self._parts.tree.wait_gone(
            deadline_s=self._parts.launch.deadlines.stop_s, poll_root=process.poll
        )

    def _device_memory_returned(self) -> bool | None:
        before_bytes, read = self._parts.device_used_before_bytes, self._parts.device_used_bytes
        if before_bytes is None or read is None:
            return None
        end_s = time.monotonic() + DEVICE_MEMORY_DEADLINE_S
        while True:
            used_bytes = read()
            if used_bytes is None:
                return None
            if used_bytes <= before_bytes + DEVICE_MEMORY_SLACK_BYTES:
                return True
            if time.monotonic() >= end_s:
                return False
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Engine({self.base_url}, pid {self.pid}, {'alive' if self.alive() else 'ended'})"
