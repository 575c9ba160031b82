"""``k3perf load``: find the rate a server sustains, import a log as a trace, make a trace."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from k3perf.cli import find_rate
from k3perf.cli.numbers import count, positive
from k3perf.cli.output import write_text
from k3perf.errors import UsageError


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    parser = subparsers.add_parser("load", help="find a sustainable request rate; import or make traces")
    commands = parser.add_subparsers(dest="load_command", metavar="COMMAND", required=True)
    find_rate.register(commands)
    importing = commands.add_parser("import-log", help="turn a log of OpenAI-style requests (JSONL with token counts) into a trace")
    importing.add_argument("log", type=Path)
    importing.add_argument("--output", type=Path, required=True, metavar="TRACE")
    importing.set_defaults(run=import_log)
    making = commands.add_parser("make-trace", help="make a small trace with the statistics of production chat traffic")
    making.add_argument("--requests", type=count, default=200)
    making.add_argument("--duration", type=positive, default=60.0, metavar="S")
    making.add_argument("--seed", type=int, default=0)
    making.add_argument("--output", type=Path, required=True, metavar="TRACE")
    making.set_defaults(run=make_trace)


def import_log(arguments: argparse.Namespace) -> int:
    """Write the trace; say on stderr what was left out. A log without one usable line is refused."""
    from k3perf.workload.log_import import import_log as read_log
    from k3perf.workload.trace import trace_text

    try:
        lines = arguments.log.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{arguments.log}: the log cannot be read ({error}); give a JSONL file in UTF-8") from None
    imported = read_log(lines)
    left_out = ", ".join(f"{count} lines {reason}" for reason, count in imported.left_out.items())
    if not imported.rows:
        raise UsageError(f"{arguments.log}: no line has a time and both token counts ({left_out or 'the file is empty'})")
    write_text(arguments.output, trace_text(imported.rows))
    sys.stderr.write(f"{len(imported.rows)} requests imported; left out: {left_out or 'none'}\n")
    return 0


def make_trace(arguments: argparse.Namespace) -> int:
    """Write a synthetic trace."""
    from k3perf.workload.trace import trace_text, unbounded_hit_ratio
    from k3perf.workload.trace_synthesis import synthesise_trace

    rows = synthesise_trace(requests=arguments.requests, duration_s=arguments.duration, seed=arguments.seed)
    write_text(arguments.output, trace_text(rows))
    sys.stderr.write(f"{len(rows)} requests; prefix hit ratio with an unbounded cache {unbounded_hit_ratio(rows):.3f}\n")
    return 0
