"""``k3perf load run``: load an endpoint and report latency, throughput and whether it
keeps its objectives.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from k3perf.cli.load_run_options import add_options
from k3perf.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k3perf.cli.load_display import LoadDisplay
    from k3perf.load.ladder import Ladder
    from k3perf.records.load_result import LoadLevel
    from k3perf.run.load_run import LoadPlan, LoadSettings, PlayedLevel

_WARM_UP_ROUND: Final = 1 << 20
"""Content that no level uses."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those of ``k3perf load``."""
    parser = commands.add_parser(
        "run",
        help="load-test an endpoint: latency, throughput, objectives, several levels",
        epilog=(
            "exit status: 16 when no level meets all objectives, 10 when no server answers,"
            " requests fail or the client was late"
        ),
    )
    add_options(parser)
    parser.set_defaults(run=run_load)


def run_load(arguments: argparse.Namespace) -> int:
    """Play every level, write the files after each, and print the tables."""
    from k3perf.cli.load_display import LoadDisplay
    from k3perf.cli.load_run_wanted import Wanted
    from k3perf.load.ladder import climb

    _check_outputs(arguments)
    wanted = Wanted(arguments)
    settings = wanted.settings()
    played: list[PlayedLevel] = []
    writer = _Writer(arguments, wanted, settings)
    with LoadDisplay() as display:
        _warm_up(wanted, settings, display)

        def run_level(level: float, position: int) -> PlayedLevel:
            plan = wanted.plan(level, position)
            display.begin(_level_text(plan), len(plan.plan.requests))
            played.append(_play(settings, plan, display))
            writer.write(played)
            return played[-1]

        climbed = climb(
            wanted.levels,
            run_level,
            enough=lambda seen: arguments.stop_when_missed and not seen.record.met,
        )
    return _report(writer, played, climbed)


def _play(settings: LoadSettings, plan: LoadPlan, display: LoadDisplay) -> PlayedLevel:
    from k3perf.run.load_run import play_level

    return play_level(settings, plan, on_counts=display.update)


def _level_text(plan: LoadPlan) -> str:
    if plan.kind == "concurrency":
        return f"{plan.level:g} in flight"
    return f"{plan.level:g} requests/s" if plan.kind == "rate_per_s" else "the workload"


def _warm_up(wanted: Any, settings: LoadSettings, display: LoadDisplay) -> None:
    plan = wanted.warm_up_plan(_WARM_UP_ROUND)
    if plan is None:
        return
    display.begin("warm-up", len(plan.plan.requests))
    seen = _play(settings, plan, display).record
    failed = seen.request_count - seen.statuses.get("ok", 0)
    if failed:
        display.line(f"warm-up: {failed} of {seen.request_count} failed ({seen.first_detail})")


def _check_outputs(arguments: argparse.Namespace) -> None:
    from k3perf.store.load_files import check_parquet

    named: dict[Path, str] = {}
    for option in ("output", "csv", "parquet"):
        path = getattr(arguments, option)
        if path is None:
            continue
        if path.is_dir() or not path.absolute().parent.is_dir():
            problem = "is a directory" if path.is_dir() else "its directory does not exist"
            raise UsageError(f"--{option} {path}: {problem}. Give the path of a file.")
        if path.absolute() in named:
            raise UsageError(f"--{option} {path}: --{named[path.absolute()]} names the same file")
        named[path.absolute()] = option
    if arguments.parquet is not None:
        check_parquet()


class _Writer:
    """Writes the files after each level, so that an interrupt loses one level only."""

    def __init__(self, arguments: argparse.Namespace, wanted: Any, settings: LoadSettings) -> None:
        from k3perf import __version__
        from k3perf.records.load_result import LoadResult
        from k3perf.run.live import utc_now

        self._arguments = arguments
        self._rows: list[dict[str, Any]] = []
        self.result = LoadResult(
            schema_version=1,
            started_at_utc=utc_now(),
            k3perf_version=__version__,
            base_urls=settings.base_urls,
            model_name=settings.model_name,
            route=settings.form.route.value,
            dialect=settings.form.dialect.value,
            prompts=wanted.prompts_text(),
            levels=(),
            options=wanted.options_text(),
        )

    def write(self, played: Sequence[PlayedLevel]) -> None:
        """Add the last level and replace the files. Raises UsageError for a path that
        cannot be written.
        """
        from dataclasses import replace

        from k3perf.errors import MACHINE_ERRNOS
        from k3perf.store.load_files import request_rows, write_csv, write_parquet, write_result

        last = played[-1]
        self.result = replace(self.result, levels=tuple(level.record for level in played))
        arguments = self._arguments
        try:
            if arguments.output is not None:
                write_result(arguments.output, self.result)
            if arguments.csv is None and arguments.parquet is None:
                return
            self._rows += request_rows(last.record, last.samples, last.turn_of, last.start_ns)
            if arguments.csv is not None:
                write_csv(arguments.csv, self._rows)
            if arguments.parquet is not None:
                write_parquet(arguments.parquet, self._rows)
        except OSError as error:
            if error.errno in MACHINE_ERRNOS:
                raise
            raise UsageError(
                f"{error.filename} cannot be written ({error.strerror}). Choose another path."
            ) from None


def _report(writer: _Writer, played: Sequence[PlayedLevel], climbed: Ladder[PlayedLevel]) -> int:
    from shutil import get_terminal_size

    from k3perf.load.ladder import best_level
    from k3perf.report.load_table import level_name, load_text

    colored = sys.stdout.isatty()
    width = get_terminal_size((160, 24)).columns if colored else 160
    sys.stdout.write(load_text(writer.result, width=width, color=colored))
    records = [seen.record for seen in played]
    if climbed.stopped:
        sys.stdout.write("stopped at the first level that missed an objective\n")
    if len(records) > 1 and records[0].objectives:
        best = best_level(records, passes=lambda level: level.met, worth=_worth)
        sys.stdout.write(
            "no level met the objectives\n"
            if best is None
            else f"the best level that met the objectives: {level_name(best)}\n"
        )
    return _status(records)


def _worth(level: LoadLevel) -> float:
    return level.values["output_tokens_per_s"].value or 0.0


def _status(records: Sequence[LoadLevel]) -> int:
    """INVALID wins over a missed objective. A curve shows where the objectives end, so
    one level that meets them is enough.
    """
    if not all(record.valid for record in records):
        return ExitStatus.INVALID
    return ExitStatus.OK if any(record.met for record in records) else ExitStatus.OBJECTIVE_MISSED
