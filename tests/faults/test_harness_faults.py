"""Something happens to pytest itself, at any stage: the exit status is right and the
engine ends, by itself if need be.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3perf.errors import ExitStatus
from tests.faults.bench import PATIENT, Bench
from tests.faults.inner import inner_command, write_inner_suite
from tests.faults.matrix import Fault, Kind, of
from tests.processes import WAIT_S, kept_bytecode

ROWS = of(Kind.HARNESS)
SIGNALLED = [
    fault
    for fault in ROWS
    if fault.exit_status is ExitStatus.INTERRUPTED and fault.name != "sigint_twice_in_stop"
]
KILLED = [fault for fault in ROWS if fault.exit_status is None]
Wait = Callable[..., None]


class InnerRun:
    """A pytest run of its own process group around the bench's engine."""

    def __init__(self, bench: Bench, fault: Fault) -> None:
        self.bench = bench
        launch = bench.launch(*fault.flags)
        deadlines = {**PATIENT.model_dump(), "stop_s": 1.5}
        write_inner_suite(
            bench.work,
            {"argv": launch.argv, "model_name": launch.model_name, "deadlines": deadlines},
        )
        command = inner_command(bench.work)
        self.output = (bench.work / "output").open("wb")
        environment = {
            **os.environ,
            "TMPDIR": str(bench.temporary),
            "PYTEST_ADDOPTS": "",
            **kept_bytecode(),
        }
        self.process = subprocess.Popen(
            command,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=bench.work,
            start_new_session=True,
        )

    def reached(self, stage: str) -> bool:
        assert self.process.poll() is None, self.text()
        path = self.bench.work / "stages"
        return path.exists() and stage in path.read_text().split()

    def text(self) -> str:
        self.output.flush()
        return (self.bench.work / "output").read_text()


@pytest.fixture
def run(bench: Bench, request: pytest.FixtureRequest, wait_for: Wait) -> Iterator[InnerRun]:
    fault: Fault = request.param
    inner = InnerRun(bench, fault)
    wait_for(lambda: inner.reached("serving" if fault.stage == "stop" else fault.stage))
    if fault.stage == "import":
        wait_for(lambda: any("fake_engine.py" in text for text in bench.processes().values()))
    yield inner
    inner.process.kill()
    inner.process.wait()
    inner.output.close()


BY_DEFAULT = {
    "sigint_at_load",
    "sigterm_at_serving",
    "sighup_at_serving",
    "sigkill_at_serving",
    "sigint_with_shared_memory",
}


def grid(faults: list[Fault]) -> list[object]:
    """A few by default, the others with the slow tests: each is a pytest run."""
    marks = [() if fault.name in BY_DEFAULT else (pytest.mark.slow,) for fault in faults]
    return [
        pytest.param(fault, fault, id=fault.name, marks=mark)
        for fault, mark in zip(faults, marks, strict=True)
    ]


def lock_files(bench: Bench) -> list[Path]:
    return list((bench.work / "locks").glob("*"))


@pytest.mark.parametrize(("run", "fault"), grid(SIGNALLED), indirect=["run"])
def test_an_interrupt_ends_everything(run: InnerRun, fault: Fault) -> None:
    run.process.send_signal(getattr(signal, fault.name.split("_")[0].upper()))
    assert run.process.wait(WAIT_S) == fault.exit_status == 2, run.text()
    run.bench.assert_nothing_left()
    assert lock_files(run.bench) == []


TWICE = next(fault for fault in ROWS if fault.name == "sigint_twice_in_stop")


@pytest.mark.parametrize("run", [TWICE], indirect=True, ids=[TWICE.name])
def test_a_second_interrupt_does_not_cut_the_end_short(run: InnerRun) -> None:
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(WAIT_S) == TWICE.exit_status
    run.bench.assert_nothing_left()
    assert lock_files(run.bench) == []


@pytest.mark.parametrize(("run", "fault"), grid(KILLED), indirect=["run"])
def test_a_killed_harness_takes_its_engine_along(run: InnerRun, fault: Fault) -> None:
    if fault.name == "sigkill_of_the_group":
        os.killpg(run.process.pid, signal.SIGKILL)
    else:
        run.process.kill()
    assert run.process.wait(WAIT_S) == -signal.SIGKILL
    run.bench.assert_nothing_left(within_s=WAIT_S)
    assert lock_files(run.bench) == []
