"""What a run asks of an engine that serves, of one process tree or of several hosts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Protocol

from k3perf.engine.log_reader import LogReader
from k3perf.engine.process_tree import ProcessTree
from k3perf.engine.running import StopReport
from k3perf.errors import EngineError
from k3perf.records.samples import StageTiming


class ServedEngine(Protocol):
    """``engine.running.Engine`` and ``engine.group.EngineGroup`` are such engines."""

    death_event: threading.Event

    @property
    def base_url(self) -> str:
        """Where it listens, without a trailing slash."""

    @property
    def model_name(self) -> str:
        """The name to ask for in requests."""

    @property
    def log(self) -> LogReader:
        """The log of rank 0."""

    @property
    def logs(self) -> tuple[LogReader, ...]:
        """The log of every rank."""

    @property
    def trees(self) -> tuple[ProcessTree, ...]:
        """The process tree of every rank."""

    @property
    def log_path(self) -> Path:
        """Where its output goes."""

    @property
    def scratch(self) -> Path:
        """A directory that its ranks can write into."""

    @property
    def stages(self) -> tuple[StageTiming, ...]:
        """The stages of its start."""

    @property
    def compile_cache_warm(self) -> bool | None:
        """Whether it found what it needs compiled. None: its log does not say."""

    @property
    def imported_ahead(self) -> bool:
        """It waited at a gate after its imports."""

    def pids(self) -> tuple[int, ...]:
        """Every running process."""

    def alive(self) -> bool:
        """No process that it needs has died."""

    def death_error(self) -> EngineError:
        """The error to report for its death, with the cause."""

    def freeze(self) -> None:
        """Stop every process where it is."""

    def thaw(self) -> None:
        """Let every process go on."""

    def stop(self) -> StopReport:
        """End every process and prove it. Idempotent."""
