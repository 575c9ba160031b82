"""The pytest11 entry point: hooks and fixtures, each a few lines that delegate.

Stays out of every pytest call that does not ask for the suite's tests. Collecting
starts no engine and needs no vLLM.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from k3perf.pytest_plugin.options import add_options
from k3perf.pytest_plugin.place import root_of

if TYPE_CHECKING:
    from k3perf.pytest_plugin.replay import ReplayClock
    from k3perf.pytest_plugin.state import PluginState
    from k3perf.pytest_plugin.suite_judge import SuiteJudge


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the suite. The first hook of a call, so reporters find streams."""
    from k3perf.pytest_plugin.endings import open_closed_streams

    open_closed_streams()
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register markers; load the suite when this call concerns it, so that bad input is
    a usage error.
    """
    from k3perf.pytest_plugin.marks import register

    register(config)
    if (state := _state(config)) is not None:
        from k3perf.engine.signals import install as install_signals
        from k3perf.pytest_plugin.benchmark_output import check_storage, make_no_folder
        from k3perf.pytest_plugin.endings import EndingHooks

        # from here on, not from the first engine on: collecting is ended by SIGTERM too
        config.add_cleanup(install_signals())
        check_storage(config)
        make_no_folder(config)
        config.pluginmanager.register(EndingHooks(state.endings), "k3perf-endings")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A call that does not name the suite does not collect it by walking past:
    measuring for an hour is asked for, never stumbled into.
    """
    return (
        True
        if _state(config) is None and collection_path == root_of(config) / "perf_tests"
        else None
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The suite's directory holds the shipped test modules, those of the same name in
    the directory itself first.
    """
    state = _state(parent.config)
    if state is None or path.resolve() != state.suite_root:
        return None
    from k3perf.pytest_plugin.suite_directory import SuiteDirectory

    directory: pytest.Collector = SuiteDirectory.from_parent(parent, path=path)
    return directory


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per collected cell, with the cell's stable id."""
    if "cell" in metafunc.fixturenames and (state := _state(metafunc.config)) is not None:
        from k3perf.pytest_plugin.marks import cells_for
        from k3perf.pytest_plugin.state import named_modules

        cells = cells_for(metafunc, state.selection, named_modules(metafunc.config))
        metafunc.parametrize("cell", cells, ids=[cell.cell_id for cell in cells])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests of one engine together and give each its replay clock."""
    if (state := _state(config)) is not None:
        from k3perf.pytest_plugin.candidates import deselect
        from k3perf.pytest_plugin.marks import arrange

        arrange(items, state.suite)
        deselect(state, items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Remember which cells were selected after -k and -m (they share the false-alarm
    budget); refuse bad input before anything starts.
    """
    if (state := _state(session.config)) is not None:
        from k3perf.pytest_plugin.benchmark_output import keep_quiet
        from k3perf.pytest_plugin.marks import selected_cells

        keep_quiet(session.config, session.items)
        state.selected_cells = selected_cells(session.items)
        state.check_inputs()


@pytest.hookimpl(wrapper=True)
def pytest_report_header(
    config: pytest.Config,
) -> Generator[None, list[str | list[str]], list[str | list[str]]]:
    """Targets, and why others are not here, in front of what other plugins say."""
    lines = yield
    if (state := _state(config)) is None:
        return lines
    from k3perf.pytest_plugin.benchmark_output import without_header
    from k3perf.pytest_plugin.summary import header

    # pytest prints them in reversed order
    return [*without_header(config, lines), header(state, verbose=config.get_verbosity() > 0)]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """With -v: configs that a target does not take, and candidates, and why."""
    if (state := _state(config)) is None or config.get_verbosity() < 1:
        return []
    from k3perf.pytest_plugin.candidates import candidate_lines

    left_out = [
        f"not collected: {left.target}-{left.config}: {left.reason}"
        for left in state.selection.left_out
    ]
    return [*left_out, *candidate_lines(state)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None]:
    """Stop every engine, write the results, and end with the documented exit status."""
    if (state := _state(session.config)) is not None:
        from k3perf.pytest_plugin.summary import finish

        session.exitstatus = state.exit_status = finish(state, exitstatus)
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int | None, int | None]:
    """Whatever leaves pytest ends with a documented status, and with 1 for a proven
    regression alone.
    """
    from k3perf.pytest_plugin.endings import settle_output
    from k3perf.pytest_plugin.state import known_state

    try:
        status = yield
    except (Exception, KeyboardInterrupt) as error:
        state = known_state(config)
        if state is None or (isinstance(error, pytest.UsageError) and not state.endings.checked):
            raise
        with suppress(Exception):
            state.close_run()
        status = state.endings.escaped(error)
    else:
        state = known_state(config)
        status = (
            state.endings.status(status) if state is not None and status is not None else status
        )
    if state is not None:
        config._ensure_unconfigure()
        if settle_output():
            state.endings.interrupted = True
            status = state.endings.status(pytest.ExitCode.INTERRUPTED)
    return status


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """The result tables."""
    if (state := _state(config)) is not None:
        from k3perf.pytest_plugin.summary import write_summary

        write_summary(terminalreporter, state)


@pytest.fixture(scope="session")
def k3(request: pytest.FixtureRequest) -> Iterator[SuiteJudge]:
    """Measures a cell on demand and judges it; engines stop with the session."""
    from k3perf.pytest_plugin.suite_judge import SuiteJudge

    state = _state(request.config)
    if state is None:
        pytest.fail(
            "the k3 fixture serves tests of the suite only: run `pytest perf_tests` or name the"
            " suite with --k3-suite",
            pytrace=False,
        )
    yield SuiteJudge(state)
    state.close_run()


@pytest.fixture
def replay_clock(request: pytest.FixtureRequest) -> ReplayClock:
    """The clock that pytest-benchmark reads in this test."""
    from k3perf.pytest_plugin.marks import CLOCK_KEY

    clock: ReplayClock = request.node.stash[CLOCK_KEY]
    return clock


def _state(config: pytest.Config) -> PluginState | None:
    from k3perf.pytest_plugin.state import state_of

    return state_of(config)
