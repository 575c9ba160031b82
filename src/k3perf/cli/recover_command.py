"""``k3perf recover RESULTS``: make a measurement file of what an interrupted recording
left behind.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from k3perf.cli.shared_options import add_suite_option, suite_of


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "recover",
        help="make a measurement file of an interrupted recording's results.jsonl",
        epilog="exit status: 4 when the file is not a results file or contains no usable session",
    )
    parser.add_argument(
        "results",
        metavar="RESULTS",
        help="results.jsonl of the interrupted run, or the run's directory",
    )
    parser.add_argument("--commit", required=True, help="the commit that was measured")
    parser.add_argument(
        "--output", metavar="FILE", help="file to write (default: measurements.json next to it)"
    )
    add_suite_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the file and say what is in it."""
    from k3perf.records.samples import Arm
    from k3perf.run.recover import recover

    given = Path(arguments.results)
    results = given / "results.jsonl" if given.is_dir() else given
    output = Path(arguments.output) if arguments.output else results.with_name("measurements.json")
    for cell in recover(results, output, suite_of(arguments), commit=arguments.commit):
        candidates, references = cell.arm(Arm.CANDIDATE), cell.arm(Arm.REFERENCE)
        also = f" and {len(references)} of the reference" if references else ""
        sys.stdout.write(
            f"{cell.target}-{cell.config}-{cell.workload}: {len(candidates)} sessions{also}\n"
        )
    sys.stdout.write(f"wrote {output}\n")
    return 0
