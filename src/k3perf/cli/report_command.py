"""``k3perf report``: results as a page that opens anywhere, and as files for other
tools.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from k3perf.cli.shared_options import add_baselines_option, add_suite_option, baselines_of
from k3perf.errors import MACHINE_ERRNOS, ExitStatus, UsageError

HISTORY: Final = "history"
EXPORTS: Final = {
    "--rounds-csv": "one row per round, with every metric",
    "--samples-csv": "one row per request",
    "--rounds-parquet": "as --rounds-csv; needs the extra k3perf[parquet]",
    "--samples-parquet": "as --samples-csv; needs the extra k3perf[parquet]",
    "--junit": "JUnit XML, one case for each judged metric, with its numbers as properties",
    "--prometheus": "text file for node_exporter's textfile collector",
}

if TYPE_CHECKING:
    from collections.abc import Callable

    from k3perf.report.exports import Row


class _Help(argparse.Action):
    """The command's help, or that of ``report history`` if the word was read before."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        del values, option_string
        given = getattr(namespace, "results", None)
        (_history_parser() if given == [HISTORY] else parser).print_help()
        parser.exit()


def _history_parser() -> argparse.ArgumentParser:
    """The options that ``k3perf report history`` reads, for its help."""
    history = argparse.ArgumentParser(
        prog="k3perf report history",
        description="write the nightly history as one HTML page",
        epilog="exit status: 0 when the history could be read",
    )
    _add_history_option(history, required=True)
    history.add_argument(
        "--html", type=Path, required=True, metavar="FILE", help="self-contained page to write"
    )
    add_suite_option(history)
    add_baselines_option(history)
    return history


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "report",
        help="write results as one HTML page, CSV, Parquet, JUnit or Prometheus text",
        epilog="exit status: 0 when the results could be read, whatever their verdict",
        add_help=False,
    )
    parser.add_argument(
        "-h",
        "--help",
        action=_Help,
        nargs=0,
        default=argparse.SUPPRESS,
        help="show this help message and exit",
    )
    parser.add_argument(
        "results",
        nargs="+",
        metavar="RESULTS",
        help="results directories of a run or of its shards, or the word `history`",
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="self-contained page (default: RESULTS/report.html)",
    )
    for option, text in EXPORTS.items():
        parser.add_argument(option, type=Path, metavar="FILE", help=text)
    _add_history_option(parser)
    add_suite_option(parser)
    add_baselines_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write what is asked for, and print where it is."""
    if arguments.results == [HISTORY]:
        return _history(arguments)
    if arguments.history:
        raise UsageError(
            f"--history {arguments.history}: only for `k3perf report history`. Leave it out."
        )
    from k3perf.run.report_file import REPORT_FILE, write_run_report
    from k3perf.store.run_folder import run_folders

    folders = run_folders(Path(given) for given in arguments.results)
    baselines = baselines_of(arguments, existing=arguments.baselines is not None)
    chosen = {name: getattr(arguments, name[2:].replace("-", "_")) for name in EXPORTS}
    if any(chosen.values()):
        _export(folders, chosen)
    if arguments.html or not any(chosen.values()):
        output = arguments.html or folders[0] / REPORT_FILE
        written(output, "--html", lambda: write_run_report(folders, output, baselines))
    return ExitStatus.OK


def _export(folders: list[Path], chosen: dict[str, Path | None]) -> None:
    """The files that are asked for. Raises UsageError for rows that the results do not
    have.
    """
    from k3perf.report import exports
    from k3perf.run.report_file import read_runs
    from k3perf.store.atomic import replace_file

    materials = read_runs(folders, None)
    for option, output in chosen.items():
        if output is None:
            continue
        if option == "--junit":
            data: str | bytes = exports.junit_text(materials)
        elif option == "--prometheus":
            data = exports.prometheus_text(materials)
        else:
            rows = list(
                exports.round_rows(materials)
                if option.startswith("--rounds")
                else exports.sample_rows(materials)
            )
            if not rows:
                lacking = "measurements.json" if "rounds" in option else "results.jsonl"
                raise UsageError(f"{option} {output}: {folders[0]} has no rows in {lacking}.")
            data = exports.csv_text(rows) if option.endswith("csv") else _parquet(rows, option)
        written(output, option, partial(replace_file, output, data))


def _parquet(rows: list[Row], option: str) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            f"{option}: pyarrow is not installed. Install it with `pip install k3perf[parquet]`, or"
            f" use {option.replace('parquet', 'csv')}."
        ) from None
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _add_history_option(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "--history",
        type=Path,
        required=required,
        metavar="FILE",
        help="saved nights or history.jsonl, for `k3perf report history`",
    )


def _history(arguments: argparse.Namespace) -> int:
    """The page of the nightly history."""
    from datetime import UTC, datetime

    from k3perf.baselines.target_policy import target_policy
    from k3perf.ci.history import series_of, slides
    from k3perf.ci.history_report import HistoryContext, history_report
    from k3perf.cli.history_command import existing_history
    from k3perf.cli.shared_options import suite_of
    from k3perf.store.atomic import replace_file
    from k3perf.store.baselines import read_target_baselines, read_waivers

    if not arguments.history or not arguments.html:
        raise UsageError(
            "`k3perf report history` needs --history history.jsonl and --html FILE. For a results"
            f" directory of this name write ./{HISTORY}."
        )
    suite, directory = suite_of(arguments), baselines_of(arguments)
    all_series = series_of(existing_history(arguments.history))
    names = {one.target for one in all_series} & set(suite.targets)
    policies = {
        name: target_policy(suite, suite.target(name), gated_metric_count=1) for name in names
    }

    def tolerance_of(target: str, config: str, workload: str, metric: str) -> float | None:
        if target not in policies or config not in suite.configs:
            return None
        found = policies[target].for_cell(config, workload).tolerances.get(metric)
        return None if found is None else found.loss_ratio or 0.0

    context = HistoryContext(
        {
            (target, baseline.config): baseline
            for target in names
            for baseline in read_target_baselines(directory, target)
        },
        read_waivers(directory / "waivers.yaml"),
        tolerance_of,
        datetime.now(UTC).date(),
    )
    page = history_report(all_series, slides(all_series), context)
    written(arguments.html, "--html", lambda: replace_file(arguments.html, page))
    return ExitStatus.OK


def written(output: Path, option: str, write: Callable[[], None]) -> None:
    """Call ``write`` and print the path. Raises UsageError that names the option, or
    OSError for a full disk.
    """
    try:
        write()
    except OSError as error:
        if error.errno in MACHINE_ERRNOS:
            raise
        raise UsageError(
            f"{output} cannot be written ({error.strerror}); choose another {option}"
        ) from None
    sys.stdout.write(f"wrote {output}\n")
