"""Whole ``pytest perf_tests`` runs against the fake engine: the stated outcome, the
documented exit status, nothing left.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3perf.engine.lock import device_lock
from k3perf.errors import ExitStatus
from tests.faults.bench import Bench
from tests.faults.fake_environment import fake_python, shrink_suite
from tests.faults.inner import LEFT_OUT_PLUGINS
from tests.faults.matrix import Fault, Kind, of
from tests.plugin.sites import IMPORTED, Forks
from tests.processes import PATIENCE_S, WAIT_S, kept_bytecode

ROWS = {fault.name: fault for fault in of(Kind.SUITE)}
SUITE = Path(__file__).parents[2] / "perf_tests"
BY_DEFAULT = {"suite_engine_dies_mid_round", "suite_dies_at_load", "suite_compiles_in_silence"}
BY_FLAGS = [
    fault
    for fault in ROWS.values()
    if fault.flags and fault.exit_status is ExitStatus.INVALID and "config" not in fault.name
]


class SuiteRun:
    """One pytest run of a shrunken copy of the suite; candidate and base are the fake
    engine, the candidate with faults.
    """

    def __init__(
        self, bench: Bench, forks: Forks, *faults: str, load_s: float = PATIENCE_S
    ) -> None:
        self.bench = bench
        self._forks = forks
        self.root = bench.work / "repository"
        shutil.copytree(SUITE, self.root / "perf_tests")
        # short only where it is to pass: a busy machine may take long for what does not
        # hang
        hangs, stalls = (
            any("hang" in fault for fault in faults),
            any("stall" in fault for fault in faults),
        )
        shrink_suite(
            self.root / "perf_tests",
            load_s=2 if hangs and load_s == PATIENCE_S else load_s,
            stall_s=2 if stalls else 60,
        )
        marked = (
            "note:" + bench.model,
        )  # a fault of no effect that puts the bench's name on every command line
        fake_python(self.root / "candidate", *faults, *marked)
        fake_python(self.root / "base", *marked)
        self.results = self.root / "results"
        self.output = bench.work / "output"
        self.process: subprocess.Popen[bytes] | None = None

    def words(self, *options: str, cells: str) -> list[str]:
        quiet = [
            part
            for plugin in LEFT_OUT_PLUGINS
            if plugin != "benchmark"
            for part in ("-p", f"no:{plugin}")
        ]
        words = [
            "perf_tests/test_throughput.py",
            "-q",
            *quiet,
            "--k3-plain",
            "--k3-target",
            "cpu-gqa",
        ]
        words += [
            "-k",
            cells,
            "--k3-engine-python",
            "candidate/bin/python",
            "--k3-ab-base",
            "base",
        ]
        if "--k3-results" not in options:
            words += ["--k3-results", str(self.results)]
        return [*words, *options]

    def environment(self) -> dict[str, str]:
        own = {"TMPDIR": str(self.bench.temporary), "PYTEST_ADDOPTS": ""}
        return {**os.environ, **kept_bytecode(), **own}

    def start(self, *options: str, cells: str = "default-chat") -> subprocess.Popen[bytes]:
        """A process that a signal may end."""
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *self.words(*options, cells=cells)],
                cwd=self.root,
                env=self.environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.process

    def run(self, *options: str, cells: str = "default-chat") -> int:
        return self._forks.status(
            "pytest",
            [*self.words(*options, cells=cells), *IMPORTED],
            cwd=self.root,
            environment=self.environment(),
            output=self.output,
        )

    @property
    def text(self) -> str:
        return self.output.read_text()

    @property
    def own_text(self) -> str:
        """The output without the lines that it quotes from an engine's log."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("    | "))

    def verdict(self) -> dict[str, Any]:
        return dict(json.loads((self.results / "verdict.json").read_text()))

    def results_text(self) -> str:
        path = self.results / "results.jsonl"
        return path.read_text() if path.exists() else ""

    def waiting(self) -> bool:
        return any(
            "waiting at the gate" in log.read_text()
            for log in self.results.glob("engines/*/engine.log")
        )

    def engine_starts(self) -> int:
        """Engines that the run started, by their work directories."""
        return sum(1 for _ in self.results.glob("engines/*/engine.log"))


@pytest.fixture
def suite_run(
    bench: Bench, forks: Forks, request: pytest.FixtureRequest
) -> Callable[..., SuiteRun]:
    made: list[SuiteRun] = []

    def make(*faults: str, load_s: float = PATIENCE_S) -> SuiteRun:
        made.append(SuiteRun(bench, forks, *faults, load_s=load_s))
        return made[-1]

    request.addfinalizer(  # noqa: PT021
        lambda: [
            (run.process.kill(), run.process.wait()) for run in made if run.process is not None
        ]
    )
    return make


def slow_unless_default(faults: list[Fault]) -> list[object]:
    return [
        pytest.param(
            fault, id=fault.name, marks=() if fault.name in BY_DEFAULT else (pytest.mark.slow,)
        )
        for fault in faults
    ]


def expect(run: SuiteRun, fault: Fault, status: int) -> None:
    assert status == fault.exit_status, run.text
    assert re.search(fault.shows, run.text), run.text
    assert "Traceback" not in run.own_text, run.text
    run.bench.assert_nothing_left(lock_directory=True)


def test_without_a_fault_the_run_is_judged(suite_run: Callable[..., SuiteRun]) -> None:
    run = suite_run()
    assert run.run() == ExitStatus.OK, run.text
    assert {cell["outcome"] for cell in run.verdict()["cells"]} <= {
        "PASS",
        "IMPROVED",
        "INCONCLUSIVE",
    }
    run.bench.assert_nothing_left(lock_directory=True)


@pytest.mark.parametrize("fault", slow_unless_default(BY_FLAGS))
def test_a_fault_of_the_engine_is_invalid(suite_run: Callable[..., SuiteRun], fault: Fault) -> None:
    run = suite_run(*fault.flags)
    expect(run, fault, run.run())
    assert run.verdict()["outcome"] == "INVALID"
    assert run.engine_starts() <= 4  # two arms, two tries


@pytest.mark.slow
def test_one_config_crashes_and_the_others_go_on(suite_run: Callable[..., SuiteRun]) -> None:
    fault = ROWS["suite_one_config_crashes"]
    run = suite_run(*fault.flags)
    expect(run, fault, run.run(cells="default-chat or block_size_32-chat"))
    outcomes = {cell["config"]: cell["outcome"] for cell in run.verdict()["cells"]}
    assert outcomes["block_size_32"] == "INVALID"
    assert outcomes["default"] in {"PASS", "IMPROVED", "INCONCLUSIVE"}


@pytest.mark.slow
def test_results_that_cannot_be_written(suite_run: Callable[..., SuiteRun]) -> None:
    run = suite_run()
    expect(run, ROWS["suite_results_read_only"], run.run("--k3-results", "/proc/k3perf/results"))


@pytest.mark.slow
def test_another_suite_holds_the_device(suite_run: Callable[..., SuiteRun], bench: Bench) -> None:
    run = suite_run()
    with device_lock("cpu", directory=bench.temporary / "k3perf-locks"):
        status = run.run()
        assert run.engine_starts() == 0
    expect(run, ROWS["suite_second_suite"], status)
    assert f"pid {os.getpid()} on" in run.text


def wait_until(condition: Callable[[], object], within_s: float = WAIT_S) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def is_running(run: SuiteRun, stage: str) -> bool:
    """Two engines loading, or a round's requests being answered."""
    assert run.process is not None
    assert run.process.poll() is None, run.text
    engines = [log.read_text() for log in run.results.glob("engines/*/engine.log")]
    line = "Starting to load" if stage == "load" else "serving a request"
    return any(line in text for text in engines)


INTERRUPTS = [fault for fault in ROWS.values() if fault.exit_status is ExitStatus.INTERRUPTED]


@pytest.mark.slow
@pytest.mark.parametrize("fault", INTERRUPTS, ids=lambda fault: fault.name)
def test_an_interrupted_run(suite_run: Callable[..., SuiteRun], fault: Fault) -> None:
    # the end must not wait for a start that hangs
    run = suite_run(*fault.flags, load_s=300)
    process = run.start()
    wait_until(lambda: is_running(run, fault.stage))
    process.send_signal(getattr(signal, fault.name.split("_")[1].upper()))
    expect(run, fault, process.wait(WAIT_S))


@pytest.mark.slow
def test_a_killed_run_can_be_resumed(suite_run: Callable[..., SuiteRun], bench: Bench) -> None:
    fault = ROWS["suite_killed_and_resumed"]
    gate = bench.work / "gate"  # block_size_32's requests wait for it; default's do not
    run = suite_run(f"wait_for:{gate}", "wait_with:block-size")
    both = "default-chat or block_size_32-chat"
    process = run.start(cells=both)
    wait_until(lambda: '"kind":"cell"' in run.results_text() and run.waiting())
    process.kill()
    assert process.wait() == -signal.SIGKILL
    run.bench.assert_nothing_left(within_s=WAIT_S, lock_directory=True)
    starts, before = run.engine_starts(), run.results_text().count('"config":"default"')
    gate.touch()
    expect(run, fault, run.run("--k3-resume", cells=both))
    assert {cell["config"] for cell in run.verdict()["cells"]} == {"default", "block_size_32"}
    assert (
        run.results_text().count('"config":"default"') == before
    )  # nothing of it was measured or written again
    assert run.engine_starts() - starts in (
        2,
        4,
    )  # two arms of the one cell that was missing, one session or two


@pytest.mark.parametrize("blocked", ["engines", "results.jsonl"])
def test_a_results_folder_that_takes_no_more_is_invalid_and_no_regression(
    suite_run: Callable[..., SuiteRun], blocked: str
) -> None:
    """As a folder that became read-only, or full, behind the pre-flight's back: root
    passes every permission, so a file stands in the way.
    """
    run = suite_run()
    run.results.mkdir()
    if blocked == "engines":
        (run.results / blocked).write_text("in the way")
    else:
        (run.results / blocked).mkdir()
    assert run.run() == ExitStatus.INVALID, run.text
    assert "Traceback" not in run.own_text, run.text
    assert run.verdict()["outcome"] == "INVALID"
    run.bench.assert_nothing_left(lock_directory=True)
