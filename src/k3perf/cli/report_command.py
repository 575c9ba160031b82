"""``k3perf report``: results as a page that opens anywhere, and as files for other
tools.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from k3perf.cli.shared_options import add_baselines_option, add_suite_option, baselines_of
from k3perf.errors import MACHINE_ERRNOS, ExitStatus, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "report",
        help="write results as one HTML page, CSV, Parquet, JUnit or Prometheus text",
        epilog="exit status: 0 for every verdict that could be read",
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
    add_suite_option(parser)
    add_baselines_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write what is asked for, and print where it is."""
    from k3perf.run.report_file import REPORT_FILE, write_run_report
    from k3perf.store.run_folder import run_folders

    folders = run_folders(Path(given) for given in arguments.results)
    baselines = baselines_of(arguments, existing=arguments.baselines is not None)
    output = arguments.html or Path(arguments.results[0]) / REPORT_FILE
    written(output, "--html", lambda: write_run_report(folders, output, baselines))
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
