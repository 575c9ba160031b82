"""An engine's process started ahead of its turn: it imports vLLM and waits at a gate
until the device is its own.

Must not: let the waiting process touch the device, or count the time at the gate as a
start-up time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from k3perf.engine.launch import SERVER_MODULE, EngineLaunch
from k3perf.errors import EngineError

HELD_MODULE: Final = "k3perf_probe.held_start"
AT_GATE_SUFFIX: Final = (
    # k3perf_probe.held_start writes it; the harness does not import the probe
    ".reached"
)
_POLL_S: Final = 0.05


class Gate:
    """A named pipe that an engine's process waits at. Open for writing here from the
    start, so that neither side blocks in ``open``.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "gate"
        os.mkfifo(self.path, 0o600)
        self._descriptor: int | None = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    @property
    def reached(self) -> bool:
        """The process has imported what it can and waits."""
        return Path(f"{self.path}{AT_GATE_SUFFIX}").exists()

    def wait_until_reached(self, *, deadline_s: float, ended: Callable[[], bool]) -> None:
        """Return when the process waits at the gate or has ended (its start will say
        why). EngineError when it takes too long.
        """
        end_s = time.monotonic() + deadline_s
        while not self.reached and not ended():
            if time.monotonic() >= end_s:
                raise EngineError(
                    f"the engine's imports took over {deadline_s:g} s (stage_deadlines.import_s)",
                    stage="import",
                )
            time.sleep(_POLL_S)

    def open(self) -> None:
        """Let the process go on. Idempotent."""
        if self._descriptor is not None:
            os.write(self._descriptor, b"g")

    def close(self) -> None:
        """Give the pipe up; a process that still waits then ends. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def can_be_held(launch: EngineLaunch) -> bool:
    """Only vLLM's own server module, started by ``PYTHON -m``, is known to import
    without touching the device.
    """
    return (
        SERVER_MODULE in launch.argv and launch.argv[launch.argv.index(SERVER_MODULE) - 1] == "-m"
    )


def held(launch: EngineLaunch, gate: Path) -> EngineLaunch:
    """``launch`` with a gate before the server module, or ValueError."""
    if not can_be_held(launch):
        raise ValueError(f"the launch does not run {SERVER_MODULE} by -m: {launch.argv}")
    at = launch.argv.index(SERVER_MODULE)
    return replace(launch, argv=(*launch.argv[:at], HELD_MODULE, str(gate), *launch.argv[at:]))
