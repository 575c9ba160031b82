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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from k3perf.engine import signals
from k3perf.engine.death_watch import DeathWatch, describe_exit, explained
from k3perf.engine.guardian import Guardian
from k3perf.engine.held_start import Gate
from k3perf.engine.launch import EngineLaunch
from k3perf.engine.log_reader import LogReader
from k3perf.engine.port import PortReservation, port_is_taken
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
        """No process, the port free, the device memory back where it can be read."""
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
            problems.append("device memory was not freed")
        return "; ".join(problems) or "nothing left"


@dataclass(eq=False, repr=False)
class Engine:
    """One engine process tree, made by ``supervisor.start_engine``.

    Ended by ``stop``, by leaving its ``with`` block, at exit of the harness, or by its
    guardian when the harness is killed. ``environment`` holds the variables that its
    process was started with. ``scratch`` is its temporary directory, which goes with
    it.
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
    gate: Gate | None
    environment: dict[str, str]

    def __post_init__(self) -> None:
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
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT`` without a trailing slash."""
        return f"http://{self.launch.host}:{self.port}"

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        return self.reservation.port

    @property
    def model_name(self) -> str:
        """The name to ask for in requests."""
        return self.launch.model_name

    @property
    def pid(self) -> int:
        """The API server's pid, which is also the session id."""
        return self.process.pid

    @property
    def logs(self) -> tuple[LogReader, ...]:
        """Its log alone. A group has one for each rank."""
        return (self.log,)

    @property
    def trees(self) -> tuple[ProcessTree, ...]:
        """Its process tree alone. A group has one for each rank."""
        return (self.tree,)

    @property
    def imported_ahead(self) -> bool:
        """It waited after its imports: its start-up time is not a service's."""
        return self.gate is not None

    def wait_at_gate(self) -> None:
        """Return when a held engine waits (or has ended). EngineError after the import
        stage's deadline.
        """
        if self.gate is not None:
            self.gate.wait_until_reached(
                deadline_s=self.launch.deadlines.import_s,
                ended=lambda: self.return_code() is not None,
            )

    def release_from_gate(self, on_stage: Callable[[str], None] | None) -> None:
        """Called once by the supervisor: from now on it starts like any other, its
        clocks and the device's memory read again.
        """
        if self.gate is None:
            raise ValueError("this engine is not held")
        self.device_used_before_bytes = (
            self.device_used_bytes() if self.device_used_bytes is not None else None
        )
        self.started_ns = time.monotonic_ns()
        self.log = LogReader(self.log_path, start_ns=self.started_ns, on_stage=on_stage)
        self.gate.open()

    def pids(self) -> tuple[int, ...]:
        """Every running process of the tree, root first, with reparented orphans."""
        return self.tree.pids()

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
            self.pid, self.pids(), poll_root=self.process.poll, event=self.death_event
        )

    def look(self) -> None:
        """Remember what the tree consists of and which shared memory it uses;
        milliseconds, so not inside measured windows.

        While the engine starts, the processes that it needs are watched from the first
        look that finds them.
        """
        pids = self.pids()
        self.shared_memory.look(pids)
        if self._report is None and not self.ready_ns:
            if self._start_watch is None:
                self._start_watch = DeathWatch(
                    self.pid, pids, poll_root=self.process.poll, event=threading.Event()
                )
            else:
                self._start_watch.add(pids)

    def _close_start_watch(self) -> None:
        if self._start_watch is not None:
            self._start_watch.close()

    def wait(self, duration_s: float) -> None:
        """Let time pass during the start, with an eye on new shared memory."""
        self.shared_memory.wait(duration_s, self.pids)

    def return_code(self) -> int | None:
        """The API server's ``Popen.returncode``; None while it runs."""
        return self.process.poll()

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
        """How it died and why. None while it lives or when it was stopped."""
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
        """Stop every process of the tree (SIGSTOP), so that it takes no CPU time."""
        self.tree.freeze()

    def thaw(self) -> None:
        """Let a frozen tree go on."""
        self.tree.thaw()

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
        self._close_start_watch()
        if self._watch is not None:
            self._watch.close()
        died_by_itself = self.death_event.is_set() or self.process.poll() is not None
        self.shared_memory.look(self.pids())
        if self.ready_ns and not died_by_itself:
            self._ask_to_end()
        # stopped processes make no more shared memory: what is seen now is all there is
        self.tree.freeze()
        killed = self.tree.pids()
        self.shared_memory.look(killed)
        left = self.tree.kill(deadline_s=KILL_DEADLINE_S, poll_root=self.process.poll)
        removed = self.shared_memory.remove()
        self.shared_memory.close()
        self.log.drain()
        self.reservation.release()
        if self.gate is not None:
            self.gate.close()
        port_free = not port_is_taken(self.launch.host, self.reservation.port)
        device = self._device_memory_returned()
        shutil.rmtree(self.scratch, ignore_errors=True)
        if not left:
            self.guardian.release()
        return StopReport(left, port_free, device, killed, removed, time.monotonic() - begin_s)

    def _ask_to_end(self) -> None:
        """SIGTERM to the API server, and its time for an orderly end. An engine that is
        not serving yet has nothing to put in order.
        """
        self.tree.thaw()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        self.tree.wait_gone(deadline_s=self.launch.deadlines.stop_s, poll_root=self.process.poll)

    def _device_memory_returned(self) -> bool | None:
        before_bytes, read = self.device_used_before_bytes, self.device_used_bytes
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
