"""What the plugin knows during one pytest run: the declared suite, the selection, the
settings and the run itself.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

from k3perf.config.candidates import CandidateCell
from k3perf.config.gated import check_metric_names
from k3perf.config.suite import Cell, Suite, load_suite
from k3perf.errors import ExitStatus, K3PerfError, UsageError, explain
from k3perf.pytest_plugin.benchmark_output import check_options
from k3perf.pytest_plugin.candidates import left_out_candidates, require_more_than_candidates
from k3perf.pytest_plugin.endings import Endings
from k3perf.pytest_plugin.place import root_of
from k3perf.pytest_plugin.run_settings import (
    judge_of,
    option_values,
    run_settings,
    servers_of,
)
from k3perf.pytest_plugin.selection import Selection, named_workloads, nothing_selected, select
from k3perf.records.verdict import CellVerdict
from k3perf.run.argument_table import table_of_engine
from k3perf.run.outside_notes import served_suite
from k3perf.telemetry.hardware import detect_hardware

if TYPE_CHECKING:
    from k3perf.pytest_plugin.live_progress import LiveProgress
    from k3perf.run.suite_run import SuiteRun
    from k3perf.store.base_checkout import Judge


@dataclass
class PluginState:
    """Lives on ``pytest.Config``; the run is opened by the first test that measures and
    closed by the session's end.
    """

    suite: Suite
    suite_root: Path
    selection: Selection
    config: pytest.Config
    judge: Judge | None = None
    candidates: dict[str, CandidateCell] = field(default_factory=dict)
    deselected_candidates: dict[str, CandidateCell] = field(default_factory=dict)
    selected_cells: list[Cell] = field(default_factory=list)
    endings: Endings = field(default_factory=Endings)
    exit_status: int = 0  # what the run ends with, known once the session is over
    run: SuiteRun | None = None
    progress: LiveProgress | None = None
    benchmark_note: str = ""
    restore_signals: Callable[[], None] = field(default=lambda: None)

    def open_run(self) -> SuiteRun:
        """The run, opened on first use."""
        if self.run is None:
            from k3perf.engine.signals import install as install_signals
            from k3perf.pytest_plugin.live_progress import LiveProgress
            from k3perf.pytest_plugin.screen import Screen
            from k3perf.run.suite_run import SuiteRun

            screen = Screen(self.config)
            self.progress = LiveProgress(
                screen,
                plain=self.config.getoption("--k3-plain"),
                verbosity=self.config.get_verbosity(),
            )
            self.restore_signals = install_signals(screen.urgent)
            settings = run_settings(self.config, self.suite, self.judge, run_id=new_run_id())
            self.run = SuiteRun(settings, self.selected_cells, self.progress)
        return self.run

    def check_inputs(self) -> None:
        """Check the options, and read everything that the selected cells will be judged
        with where this call measures them. UsageError for what cannot be used.
        """
        measures = not any(self.config.getoption(option) for option in _STARTS_NOTHING)
        try:
            option_values(self.config)
            check_options(self.config)
            if self.selected_cells and measures:
                self.open_run().check_inputs()
        except (K3PerfError, OSError) as error:
            self.close_run()
            stop_because_of(error)
        try:
            require_more_than_candidates(self)
        except K3PerfError as error:
            stop_because_of(error)
        if not self.selected_cells:
            problem = nothing_selected(self.selection, self.config.getoption("keyword"))
            if problem:
                raise pytest.UsageError(problem)

    def close_run(self) -> None:
        """Stop everything that the run started and write its files."""
        with contextlib.ExitStack() as ending:
            ending.callback(self.restore_signals)
            if self.progress is not None:
                ending.callback(self.progress.close)
                ending.enter_context(self.progress.drawing())
            if self.run is not None:
                self.run.close()

    def verdicts(self) -> tuple[CellVerdict, ...]:
        """Verdicts of the cells measured so far."""
        return () if self.run is None else self.run.verdict().cells


_STARTS_NOTHING: Final = (
    "collectonly",
    "showfixtures",
    "show_fixtures_per_test",
    "setuponly",
    "setupplan",
)
_STATE: pytest.StashKey[PluginState | None] = pytest.StashKey()


def state_of(config: pytest.Config) -> PluginState | None:
    """The state of this pytest call, made on first use; None where the call does not
    concern the suite. UsageError for bad input.
    """
    if _STATE not in config.stash:
        try:
            config.stash[_STATE] = make_state(config) if concerns_suite(config) else None
        except (K3PerfError, OSError) as error:
            stop_because_of(error)
    return config.stash[_STATE]


def known_state(config: pytest.Config) -> PluginState | None:
    """As ``state_of``, but makes none: None also where pytest ended before there was
    one.
    """
    return config.stash.get(_STATE, None)


def stop_because_of(error: K3PerfError | OSError) -> NoReturn:
    """End the call with the error's message and status. Bad input becomes pytest's own
    usage error.
    """
    text, status = explain(error)
    if status is ExitStatus.USAGE:
        raise pytest.UsageError(text) from None
    pytest.exit(text, returncode=status)


def make_state(config: pytest.Config) -> PluginState:
    """Load the suite and choose its cells. Raises K3PerfError for bad input."""
    if config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        raise UsageError(
            "-n: the suite's tests share engines and one machine, so they run in one process. Leave"
            " -n out."
        )
    if config.getoption("benchmark_skip", None) is None:
        raise UsageError(
            "the suite's tests report their rounds through pytest-benchmark, which is not loaded."
            " Leave -p no:benchmark out."
        )
    root = suite_root(config)
    suite = load_suite(
        root, engine_table=table_of_engine(config.getoption("--k3-engine-python"), root_of(config))
    )
    check_metric_names(
        suite
    )  # a run asks again for each target; here it is found by --collect-only too
    judge = judge_of(config)
    if judge is not None:
        from k3perf.config.judged import judged_suite

        suite = judged_suite(suite, judge.suite)
    servers = servers_of(config)
    if servers:
        suite = served_suite(suite, len(servers))
    cells_option = config.getoption("--k3-cells")
    selection = select(
        suite,
        detect_hardware(),
        _targets_of(config, suite, outside=bool(servers)),
        collect_only=bool(config.getoption("--collect-only")),
        cells_file=Path(cells_option) if cells_option else None,
        elsewhere=bool(servers),
        named=named_workloads(
            suite,
            [
                config.getoption("keyword"),
                *(argument.partition("::")[2] for argument in config.args),
            ],
        ),
    )
    return PluginState(
        suite,
        root,
        selection,
        config,
        judge,
        candidates=left_out_candidates(config, selection, suite.root, judge),
        endings=Endings(strict=bool(config.getoption("--k3-strict"))),
    )


def _targets_of(config: pytest.Config, suite: Suite, *, outside: bool) -> tuple[str, ...]:
    """The targets that the call names. For a server, a suite's only target need not be
    named.
    """
    asked = tuple(config.getoption("--k3-target"))
    return tuple(suite.targets) if outside and not asked and len(suite.targets) == 1 else asked


def named_modules(config: pytest.Config) -> frozenset[Path]:
    """Test modules that the call names, where others name a folder."""
    paths = {
        (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        for argument in config.args
    }
    return frozenset(path for path in paths if path.suffix == ".py")


def suite_root(config: pytest.Config) -> Path:
    """Where the declared suite lies."""
    given = config.getoption("--k3-suite")
    root = Path(given) if given else root_of(config) / "perf_tests"
    if given and not root.is_dir():
        raise UsageError(
            f"--k3-suite {given}: directory not found. Give the directory that holds configs/,"
            " targets/ and workloads/."
        )
    return root.resolve()


def concerns_suite(config: pytest.Config) -> bool:
    """Whether this pytest call asks for tests of the suite at all; the plugin stays out
    of every other call.
    """
    given = config.getoption("--k3-suite")
    roots = [root_of(config) / "perf_tests"] + ([Path(given)] if given else [])
    for argument in config.args:
        path = (config.invocation_params.dir / argument.split("::")[0]).resolve()
        if any(path == root.resolve() or root.resolve() in path.parents for root in roots):
            return True
    return False


def new_run_id() -> str:
    """A run's id: unique, and traceable to a CI run where one set it."""
    ci_run = os.environ.get("GITHUB_RUN_ID", "")
    suffix = uuid.uuid4().hex[:8]
    return f"{ci_run}-{suffix}" if ci_run else suffix
