"""One engine over several hosts' processes, supervised as one: the death of any rank
ends all, log lines carry their rank.

Rank 0 is the head and serves; it is an ``Engine`` like any other. The other ranks are
followers: trees without a port, which vLLM calls headless. vLLM's head does not notice
a follower that is killed (a request then hangs), so the watch is kept here.

A follower on another host is a local process that stands for it (``srun``, ``ip netns
exec``, ``ssh -tt``): ending it must end what it started there. What is proved gone is
what runs under this machine's process list.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from k3perf.engine.death_watch import DeathWatch, describe_exit, explained
from k3perf.engine.guardian import Guardian
from k3perf.engine.launch import EngineLaunch
from k3perf.engine.log_reader import LogReader
from k3perf.engine.port import PortReservation
from k3perf.engine.process_tree import (
    ENGINE_ID_VARIABLE,
    ProcessTree,
    become_subreaper,
    new_engine_id,
    start_root,
)
from k3perf.engine.running import DeviceUsedBytes, Engine, StopReport
from k3perf.engine.supervisor import start_engine
from k3perf.errors import EngineError

MASTER_PORT_PLACEHOLDER: Final = "{master_port}"
KILL_DEADLINE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class GroupLaunch:
    """Launches by rank, rank 0 first; ``{master_port}`` in their ``argv`` is filled in
    with a free port of ``master_host``.
    """

    ranks: tuple[EngineLaunch, ...]
    master_host: str = "127.0.0.1"


class Follower:
    """The process tree of one rank above 0."""

    def __init__(self, rank: int, launch: EngineLaunch, work_directory: Path) -> None:
        work_directory.mkdir(parents=True, exist_ok=True)
        self.rank = rank
        self._stop_s = launch.deadlines.stop_s
        self._watch: DeathWatch | None = None
        engine_id = new_engine_id()
        config_file = work_directory / "engine.yaml"
        config_file.write_text(launch.config_file_text)
        self._guardian = Guardian(engine_id)
        environment: dict[str, str | None] = {
            **os.environ,
            **launch.environment,
            ENGINE_ID_VARIABLE: engine_id,
            "SPT_NOENV": "1",
        }
        started_ns = time.monotonic_ns()
        log_path = work_directory / "engine.log"
        try:
            argv = launch.rendered_argv(config_file=str(config_file), port=0)
            self._process = start_root(argv, environment, log_path)
        except OSError as error:
            self._guardian.release()
            raise EngineError(
                f"rank {rank} could not be started: {error}", stage="spawn"
            ) from error
        self._guardian.add_session(self._process.pid)
        self.tree = ProcessTree(engine_id, self._process.pid)
        self.log = LogReader(log_path, start_ns=started_ns)

    def poll(self) -> int | None:
        """Its root's return code; None while it runs."""
        return self._process.poll()

    def watch(self, event: threading.Event) -> None:
        """Set ``event`` when the root or a worker of this rank dies from now on."""
        self._watch = DeathWatch(
            self._process.pid, self.tree.pids(), poll_root=self.poll, event=event
        )

    def death(self) -> str | None:
        """How it died, with the root cause from its log; None while it lives."""
        return_code = self.poll()
        seen = self._watch.cause if self._watch is not None else None
        if seen is None and return_code is None:
            return None
        how = seen or f"ended with {describe_exit(return_code or 0)}"
        cause = explained(
            self.log.cause(), self._watch.first if self._watch is not None else None, return_code
        )
        return f"rank {self.rank}: {how}; root cause: {cause.text}"

    def stop(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """SIGTERM to the root, after ``stop_s`` SIGKILL to every member. Gives the pids
        (left, killed).
        """
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self.tree.thaw()
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
            self.tree.wait_gone(deadline_s=self._stop_s, poll_root=self.poll)
        killed = self.tree.pids()
        left = self.tree.kill(deadline_s=KILL_DEADLINE_S, poll_root=self.poll)
        self.log.drain()
        if not left:
            self._guardian.release()
        return left, killed


class EngineGroup:
    """A head and its followers with the surface of an ``Engine``. Made by
    ``start_group`` once the head is ready. ``log`` is the head's, ``log_tail`` has the
    end of every rank's. Followers on other hosts cannot write into ``scratch``.
    """

    def __init__(
        self, head: Engine, followers: tuple[Follower, ...], master_port: PortReservation
    ) -> None:
        self.head = head
        self.followers = followers
        self.death_event = head.death_event
        self.base_url = head.base_url
        self.model_name = head.model_name
        self.port = head.port
        self.pid = head.pid
        self.log = head.log
        self.log_path = head.log_path
        self.scratch = head.scratch
        self.stages = head.stages
        self.imported_ahead = head.imported_ahead
        self.compile_cache_warm = head.compile_cache_warm
        self._master_port = master_port
        self._report: StopReport | None = None
        self._cause: str | None = None
        self._stop_lock = threading.Lock()
        for follower in followers:
            follower.watch(self.death_event)
        self._reaper = threading.Thread(
            target=self._end_all_at_first_death, name="k3perf-group-watch", daemon=True
        )
        self._reaper.start()

    @property
    def logs(self) -> tuple[LogReader, ...]:
        """Every rank's log, the head's first."""
        return (*self.head.logs, *(follower.log for follower in self.followers))

    @property
    def trees(self) -> tuple[ProcessTree, ...]:
        """Every rank's process tree on this machine, the head's first."""
        return (*self.head.trees, *(follower.tree for follower in self.followers))

    def pids(self) -> tuple[int, ...]:
        """Every running process of every rank, the head's first."""
        return (
            *self.head.pids(),
            *(pid for follower in self.followers for pid in follower.tree.pids()),
        )

    def alive(self) -> bool:
        """No process that any rank needs has died."""
        return self.head.alive() and all(follower.poll() is None for follower in self.followers)

    def death_cause(self) -> str | None:
        """The first death seen, with its rank; None while all live."""
        if self._cause is None and self._report is None:
            self._cause = _first_death(self.head, self.followers)
        return self._cause

    def death_error(self) -> EngineError:
        """The error to report: which rank died, how, and the end of every rank's
        log.
        """
        return EngineError(
            f"engine died in service: {self.death_cause() or 'a rank ended'}",
            stage="serving",
            log_tail=self.log_tail(),
        )

    def log_tail(self, count: int = 10) -> tuple[str, ...]:
        """The last ``count`` lines of each rank's log, each line with its rank."""
        return _tails(self.head, self.followers, count)

    def freeze(self) -> None:
        """Stop every process of every rank."""
        self.head.freeze()
        for follower in self.followers:
            follower.tree.freeze()

    def thaw(self) -> None:
        """Let every rank go on."""
        for follower in self.followers:
            follower.tree.thaw()
        self.head.thaw()

    def stop(self) -> StopReport:
        """End every rank, the head first, and prove it. Never raises; idempotent."""
        with self._stop_lock:
            if self._report is None:
                self._cause = self._cause or _first_death(self.head, self.followers)
                report = self.head.stop()
                ends = [follower.stop() for follower in self.followers]
                self._master_port.release()
                self._report = replace(
                    report,
                    left_pids=report.left_pids + tuple(pid for left, _ in ends for pid in left),
                    killed_pids=report.killed_pids
                    + tuple(pid for _, killed in ends for pid in killed),
                )
                self.death_event.set()  # lets the watching thread end
        return self._report

    def _end_all_at_first_death(self) -> None:
        """Nothing is left to save once a rank is gone: kill the others at once, so that
        no request waits for a dead rank.
        """
        self.death_event.wait()
        if self._report is not None or self._stop_lock.locked():
            return
        self._cause = self._cause or _first_death(self.head, self.followers)
        ProcessTree(self.head.tree.engine_id, self.head.pid).kill(
            deadline_s=KILL_DEADLINE_S, poll_root=self.head.return_code
        )
        for follower in self.followers:
            follower.tree.kill(deadline_s=KILL_DEADLINE_S, poll_root=follower.poll)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start_group(
    launch: GroupLaunch,
    *,
    work_directory: Path,
    on_stage: Callable[[str], None] | None = None,
    device_used_bytes: DeviceUsedBytes | None = None,
    companion_failed: Callable[[], EngineError | None] = lambda: None,
) -> EngineGroup:
    """Start every rank and return when the head is healthy and proved to be ours.

    Each rank has a folder ``rank-N`` under ``work_directory``. Raises EngineError after
    ending every rank when one dies or makes no progress; the error names the rank and
    carries the end of every rank's log. ``companion_failed``: as for ``start_engine``.
    """
    become_subreaper()
    reservation = PortReservation(launch.master_host)
    ranks = [_with_master_port(rank, reservation.port) for rank in launch.ranks]
    followers: list[Follower] = []

    def rank_failed() -> EngineError | None:
        if (given := companion_failed()) is not None:
            return given
        death = next(
            (found for follower in followers if (found := follower.death()) is not None), None
        )
        return (
            None
            if death is None
            else EngineError(f"engine ended during its start: {death}", stage="start")
        )

    try:
        for number, rank in enumerate(ranks[1:], start=1):
            followers.append(Follower(number, rank, work_directory / f"rank-{number}"))
        head = start_engine(
            # another port would need other followers, so the head gets one attempt
            replace(ranks[0], port_attempts=1),
            work_directory=work_directory / "rank-0",
            on_stage=on_stage,
            device_used_bytes=device_used_bytes,
            companion_failed=rank_failed,
        )
        try:
            return EngineGroup(head, tuple(followers), reservation)
        except BaseException:  # no descriptor left to watch a rank with, a follower gone since
            head.stop()
            raise
    except BaseException as error:
        for follower in followers:
            follower.stop()
        reservation.release()
        if isinstance(error, EngineError):
            raise _with_follower_tails(error, followers) from error
        raise


def _with_follower_tails(error: EngineError, followers: Sequence[Follower]) -> EngineError:
    """The same failure with the end of every follower's log."""
    return EngineError(
        str(error).partition("\n")[0],
        stage=error.stage,
        root_cause=error.root_cause,
        log_tail=error.log_tail + _follower_tails(followers, 10),
    )


def _with_master_port(launch: EngineLaunch, port: int) -> EngineLaunch:
    return replace(
        launch, argv=tuple(part.replace(MASTER_PORT_PLACEHOLDER, str(port)) for part in launch.argv)
    )


def _first_death(head: Engine, followers: tuple[Follower, ...]) -> str | None:
    """A follower's death before the head's: the head ends because of it, and not the
    other way round, whenever both are gone.
    """
    deaths = [found for follower in followers if (found := follower.death()) is not None]
    if deaths:
        return deaths[0]
    own = head.death_cause()
    return None if own is None else f"rank 0: {own}"


def _tails(head: Engine, followers: tuple[Follower, ...], count: int) -> tuple[str, ...]:
    head.log.drain()
    return tuple(f"rank 0 | {line}" for line in head.log.tail(count)) + _follower_tails(
        followers, count
    )


def _follower_tails(followers: Sequence[Follower], count: int) -> tuple[str, ...]:
    lines: list[str] = []
    for follower in followers:
        follower.log.drain()
        lines += [f"rank {follower.rank} | {line}" for line in follower.log.tail(count)]
    return tuple(lines)
