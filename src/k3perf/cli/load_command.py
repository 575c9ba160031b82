"""``k3perf load``: load an endpoint, find the rate it sustains, import a log as a
trace, make a trace.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from k3perf.cli import find_rate_command, load_run_command
from k3perf.cli.output import write_lines, write_text
from k3perf.cli.shared_options import count, positive
from k3perf.errors import UsageError


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "load", help="load an endpoint; find a sustainable request rate; import or make traces"
    )
    commands = parser.add_subparsers(dest="load_command", metavar="COMMAND", required=True)
    load_run_command.register(commands)
    find_rate_command.register(commands)
    importing = commands.add_parser(
        "import-log", help="turn a request log, or a trace in another form, into a trace"
    )
    importing.add_argument(
        "log", type=Path, help="JSON lines, a JSON array or CSV; docs/load.md lists the forms"
    )
    importing.add_argument(
        "--output", type=Path, required=True, metavar="TRACE", help="trace file to write"
    )
    importing.add_argument(
        "--time-unit",
        choices=("s", "ms", "us", "ns"),
        help="unit of times that are numbers (default: from their size or the form)",
    )
    importing.add_argument(
        "--block-tokens",
        type=count,
        metavar="N",
        help="tokens of one block of a trace's hash_ids (default: from the form or the ids)",
    )
    importing.set_defaults(run=import_log)
    making = commands.add_parser(
        "make-trace", help="make a small trace with the statistics of production chat traffic"
    )
    making.add_argument("--requests", type=count, default=200, help="requests in the trace")
    making.add_argument(
        "--duration", type=positive, default=60.0, metavar="S", help="seconds from first to last"
    )
    making.add_argument("--seed", type=int, default=0, help="seed of every random draw")
    making.add_argument(
        "--output", type=Path, required=True, metavar="TRACE", help="trace file to write"
    )
    making.set_defaults(run=make_trace)


def import_log(arguments: argparse.Namespace) -> int:
    """Write the trace and its source. Report on stderr what was recognised."""
    from k3perf.workload.log_import import import_log as read_log
    from k3perf.workload.log_values import TimeUnit
    from k3perf.workload.trace import trace_lines
    from k3perf.workload.trace_rows import source_document, source_path

    for written in (arguments.output, source_path(arguments.output)):
        if written.exists() and arguments.log.exists() and written.samefile(arguments.log):
            raise UsageError(f"{written} is the log itself. Choose another --output.")
    unit = TimeUnit(arguments.time_unit) if arguments.time_unit else None
    imported = read_log(arguments.log, time_unit=unit, block_tokens=arguments.block_tokens)
    source = imported.source
    sha256 = write_lines(arguments.output, trace_lines(imported.rows(), source.block_tokens))
    source_file = source_path(arguments.output)
    if arguments.output.is_file():  # a pipe has no place next to it
        write_text(source_file, source_document(source, sha256))
    reasons = ", ".join(f"{reason} ({number})" for reason, number in source.left_out.items())
    sys.stderr.write(
        f"{source.text}\n{source.request_count} requests over {imported.span_s:.3f} s,"
        f" {imported.prompt_tokens_count} prompt tokens, {imported.reply_tokens_count} reply"
        f" tokens; omitted: {reasons or 'none'}\n"
    )
    return 0


def make_trace(arguments: argparse.Namespace) -> int:
    """Write a synthetic trace."""
    from k3perf.workload.trace import trace_text, unbounded_hit_ratio
    from k3perf.workload.trace_synthesis import synthesise_trace

    rows = synthesise_trace(
        requests=arguments.requests, duration_s=arguments.duration, seed=arguments.seed
    )
    write_text(arguments.output, trace_text(rows))
    sys.stderr.write(
        f"{len(rows)} requests; prefix hit ratio with an unbounded cache"
        f" {unbounded_hit_ratio(rows):.3f}\n"
    )
    return 0
