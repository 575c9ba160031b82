"""Ends that do not go by the book: the tree is gone all the same, and the report proves
it.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from k3perf.engine import running
from k3perf.engine.supervisor import start_engine
from tests.faults.bench import PATIENT, Bench
from tests.faults.matrix import Fault, Kind, of
from tests.processes import WAIT_S

ROWS = {fault.name: fault for fault in of(Kind.STOP)}
STOPS = PATIENT.model_copy(update={"stop_s": 0.5})


@pytest.mark.parametrize(
    "fault",
    [fault for fault in ROWS.values() if fault.outcome is None],
    ids=lambda fault: fault.name,
)
def test_the_end_leaves_nothing(bench: Bench, fault: Fault) -> None:
    # one that is thawed ends in an orderly way, however long a busy machine takes; the
    # others are killed after half a second
    deadlines = (
        PATIENT.model_copy(update={"stop_s": WAIT_S}) if fault.name == "frozen_at_stop" else STOPS
    )
    engine = start_engine(
        bench.launch(*fault.flags, deadlines=deadlines), work_directory=bench.work
    )
    running_before = len(bench.processes())
    # the guardian counts
    assert running_before >= (5 if fault.name == "process_escapes" else 4)
    if fault.name == "frozen_at_stop":
        engine.freeze()
    if fault.name == "dead_before_stop":
        os.kill(engine.pid, signal.SIGKILL)
    report = engine.stop()
    assert report.clean, report.text
    assert (report.killed_pids != ()) == (fault.name != "frozen_at_stop")
    assert (report.removed_shared_memory != ()) == (fault.name == "shared_memory_left")
    bench.assert_nothing_left(ports=(engine.port,))


def test_device_memory_that_does_not_come_back_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "DEVICE_MEMORY_DEADLINE_S", 0.2)
    readings = iter([1 << 30])
    engine = start_engine(
        bench.launch(), work_directory=bench.work, device_used_bytes=lambda: next(readings, 9 << 30)
    )
    report = engine.stop()
    assert report.device_memory_returned is False
    assert not report.clean
    assert ROWS["device_memory_kept"].shows in report.text


def test_device_memory_that_comes_back_late_is_waited_for(bench: Bench) -> None:
    readings = iter([1 << 30, 9 << 30, 9 << 30])
    engine = start_engine(
        bench.launch(), work_directory=bench.work, device_used_bytes=lambda: next(readings, 1 << 30)
    )
    assert engine.stop().device_memory_returned is True


def test_a_frozen_engine_takes_no_step_and_goes_on_after(bench: Bench) -> None:
    with start_engine(bench.launch(), work_directory=bench.work) as engine:
        pids = engine.pids()
        engine.freeze()
        end_s = time.monotonic() + WAIT_S
        while {state(pid) for pid in pids} != {
            "T"
        }:  # a process on the other core takes its signal a moment later
            assert time.monotonic() < end_s
            time.sleep(0.01)
        engine.thaw()
        assert "T" not in {state(pid) for pid in pids}
        assert engine.alive()


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as handle:  # noqa: PTH123
        return handle.read().rpartition(")")[2].split()[0]
