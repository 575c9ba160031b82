"""Moves the engine's front processes to their CPUs after the start; workers are
bound by vLLM itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from k3perf.engine.process_tree import command_of
from k3perf.errors import PreflightError

_FRONT: Final = re.compile(r"EngineCore|APIServer|DPCoordinator")


def pin_servers(root_pid: int, pids: Iterable[int], cpus: tuple[int, ...]) -> tuple[int, ...]:
    """Bind every thread of API server and EngineCore to ``cpus``; returns the pids that
    were bound. No ``cpus``: nothing is done.

    Affinity belongs to threads, so each one is moved; threads born later inherit it.
    Raises PreflightError for CPUs the machine does not have.
    """
    if not cpus:
        return ()
    pinned = []
    for pid in pids:
        if pid == root_pid or _FRONT.search(command_of(pid)):
            _pin(pid, cpus)
            pinned.append(pid)
    return tuple(pinned)


def _pin(pid: int, cpus: tuple[int, ...]) -> None:
    with suppress(ProcessLookupError, FileNotFoundError):
        for task in list(os.scandir(f"/proc/{pid}/task")):
            with suppress(ProcessLookupError):
                try:
                    os.sched_setaffinity(int(task.name), cpus)
                except OSError as error:
                    if isinstance(error, ProcessLookupError):
                        continue
                    raise PreflightError(
                        f"CPUs {cpus} cannot be used for pid {pid}: {error}; correct"
                        " pinning.server_cpus"
                    ) from error
