"""The header, the end of a run and its tables."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from k3perf.errors import ExitStatus
from k3perf.pytest_plugin.candidates import header_line
from k3perf.pytest_plugin.state import PluginState
from k3perf.telemetry.hardware import silent_device_notes

if TYPE_CHECKING:
    from k3perf.run.settings import RunSettings
    from k3perf.run.suite_run import SuiteRun


def header(state: PluginState, *, verbose: bool) -> list[str]:
    """Which targets are measured; the reason for each other one with -v."""
    targets = list(dict.fromkeys(cell.target.name for cell in state.selection.cells))
    lines = [f"k3perf: targets {', '.join(targets) or 'none'} (suite {state.suite_root.name}/)"]
    if state.judge is not None:
        lines.append(
            f"k3perf: judged by tolerances, plans, baselines and waivers of {state.judge.name}"
        )
    if state.selection.choice:
        lines.append(f"k3perf: {state.selection.choice}")
    lines += _arms(state.config)
    lines += header_line(state)
    skipped = state.selection.skipped_targets
    if verbose:
        lines += [f"k3perf: skipped target {name}: {reason}" for name, reason in skipped.items()]
    elif skipped:
        lines.append(f"k3perf: skipped targets {', '.join(skipped)} (-v says why)")
    return [*lines, *(f"k3perf: {note}" for note in silent_device_notes())]


def _arms(config: pytest.Config) -> list[str]:
    """Which arm is which, before anything is measured."""
    base = config.getoption("--k3-ab-base")
    named = config.getoption("--k3-engine-python") or os.environ.get("K3PERF_ENGINE_PYTHON")
    if not base:
        return []
    engine = named or ".venv-engine/bin/python"
    return [f"k3perf: ab mode: base {base}, candidate this checkout on engine Python {engine}"]


def finish(state: PluginState, status: int) -> int:
    """Close the run. Takes pytest's own status and returns the run's (``endings``)."""
    try:
        state.close_run()
    except (Exception, KeyboardInterrupt) as error:
        with suppress(Exception):
            state.close_run()  # what the first attempt had no time for
        return state.endings.escaped(error)
    if state.run is not None and state.run.write_problem:
        state.endings.failures.append(
            ExitStatus.INVALID
        )  # numbers that cannot be kept are no result
    if state.run is not None:
        state.endings.settle(cell.outcome for cell in state.run.verdict().cells)
    _keep_benchmark_quiet(state)
    return state.endings.status(status)


def _keep_benchmark_quiet(state: PluginState) -> None:
    """pytest-benchmark warns where it has no rounds to save, and a warning may be an
    error: the summary says it instead.
    """
    session = getattr(state.config, "_benchmarksession", None)
    wanted = [name for name in ("json", "save", "autosave") if getattr(session, name, None)]
    if session is not None and wanted and not session.benchmarks:
        for name in wanted:
            setattr(session, name, None)
        state.benchmark_note = (
            "pytest-benchmark saved nothing: no test with rounds (test_throughput) had a"
            " valid round"
        )


def write_summary(reporter: pytest.TerminalReporter, state: PluginState) -> None:
    """Every measured cell's table, the exit status and where the files are."""
    if state.run is None:
        return
    if state.benchmark_note:
        reporter.write_line(f"k3perf: {state.benchmark_note}")
    if not state.run.results():
        _write_what_is_left(reporter, state.run.settings)
        return
    from k3perf.report.table import NATURAL_WIDTH, recording_summary, suite_summary

    reporter.section("k3perf", sep="=")
    width = (
        reporter._tw.fullwidth if reporter.isatty else NATURAL_WIDTH
    )  # a log is not 80 columns wide
    settings = state.run.settings
    if settings.record:
        reporter.write_line(recording_summary(state.run.verdict().cells))
    else:
        reporter.write_line(
            suite_summary(state.run.verdict(), width=width, color=reporter.hasmarkup)
        )
    _write_trade(reporter, state.run)
    if state.run.write_problem:
        reporter.write_line(state.run.write_problem)
    reporter.write_line(f"exit status: {int(state.exit_status)}")
    reporter.write_line(f"results: {settings.results_directory}")
    _write_report(reporter, settings)
    if settings.record and any(not cell.invalid_reasons for cell in state.run.verdict().cells):
        reporter.write_line(
            f"next: k3perf baseline propose {settings.results_directory}/measurements.json"
        )


def _write_trade(reporter: pytest.TerminalReporter, run: SuiteRun) -> None:
    """What each scheme trades, where at least two configs compared answers."""
    from k3perf.report.trade_table import trade_rows, trade_table

    rows = trade_rows(result.measurement for result in run.results())
    if len(rows) > 1:
        reporter.write_line(trade_table(rows))


def _write_report(reporter: pytest.TerminalReporter, settings: RunSettings) -> None:
    """The page of the run, last on the screen. A run with very many samples prints the
    command that writes it: reading them again would take longer than people wait.
    """
    from k3perf.errors import explain
    from k3perf.run.report_file import LARGEST_AT_ONCE_BYTES, REPORT_FILE, write_run_report
    from k3perf.run.results_folder import RESULTS_FILE

    folder = settings.results_directory
    samples = folder / RESULTS_FILE
    if not (folder / "verdict.json").is_file():
        return
    if samples.is_file() and samples.stat().st_size > LARGEST_AT_ONCE_BYTES:
        reporter.write_line(f"report: k3perf report {folder} writes {REPORT_FILE}")
        return
    try:
        directory = settings.baselines_directory
        if settings.judge is not None:
            directory = settings.judge.baselines_directory
        write_run_report([folder], folder / REPORT_FILE, directory)
    except Exception as error:  # the verdict stands, with and without its page
        reporter.write_line(f"report: not written, {explain(error)[0]}")
        return
    reporter.write_line(f"report: {folder / REPORT_FILE}")


def _write_what_is_left(reporter: pytest.TerminalReporter, settings: RunSettings) -> None:
    """Of a run that was interrupted in its first cell: where its rounds are, and the
    command that makes use of them.
    """
    from k3perf.run.results_folder import RESULTS_FILE

    left = settings.results_directory / RESULTS_FILE
    if not left.is_file():
        return
    reporter.section("k3perf", sep="=")
    reporter.write_line(f"no cell finished; what was measured is in {left}")
    if settings.record:
        reporter.write_line(
            f"next: k3perf recover {left} --commit {settings.commit} keeps the sessions that ended"
        )
    else:
        reporter.write_line(
            f"next: run the same command with --k3-resume --k3-results {settings.results_directory}"
        )
