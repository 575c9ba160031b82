"""The stated end of a fault, asserted once for the fake engine and for vLLM's own:
cause, stage, exit status, nothing left.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from k3perf.engine.launch import EngineLaunch
from k3perf.engine.running import Engine
from k3perf.engine.supervisor import start_engine
from k3perf.errors import EngineError, ExitStatus
from tests.faults.bench import Bench
from tests.faults.matrix import Fault
from tests.processes import WAIT_S


def expect_failed_start(
    bench: Bench, fault: Fault, launch: EngineLaunch, work_directory: Path
) -> EngineError:
    """The start fails as the row says."""
    with pytest.raises(EngineError) as caught:
        start_engine(launch, work_directory=work_directory)
    assert re.search(fault.shows, str(caught.value)), str(caught.value)
    assert caught.value.exit_status is fault.exit_status is ExitStatus.INVALID
    assert caught.value.stage == fault.stage
    assert len(caught.value.log_tail) <= 10
    bench.assert_nothing_left()
    return caught.value


def expect_death(bench: Bench, engine: Engine, fault: Fault, *, wait_s: float = WAIT_S) -> None:
    """The engine is dead within ``wait_s``, as the row says."""
    assert engine.death_event.wait(wait_s)
    assert not engine.alive()
    error = engine.death_error()
    assert re.search(fault.shows, str(error)), str(error)
    assert error.exit_status is fault.exit_status is ExitStatus.INVALID
    report = engine.stop()
    assert report.clean, report.text
    bench.assert_nothing_left(ports=(engine.port,))
    assert engine.stop() is report
