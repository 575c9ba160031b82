"""``k3perf``: every command is registered by its own module. Every error becomes one
message and its exit status.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from k3perf import __version__
from k3perf.cli.streams import ending_signals, lasting_streams
from k3perf.errors import TRACEBACK_VARIABLE, ExitStatus, explain

# Imported one by one when a command is used: help and errors stay fast, and one area's
# dependency never breaks another's command.
COMMAND_MODULES: Final = (
    "init",
    "drift",
    "upgrade",
    "export",
    "inject",
    "memory",
    "baseline",
    "gate",
    "load",
    "mock_server",
    "doctor",
    "plan",
    "ci",
    "history",
    "night",
    "bisect",
    "bundle",
    "recover",
    "scaling",
    "report",
    "compare",
    "tune",
    "sweep",
    "quality",
)


class CommandParser(argparse.ArgumentParser):
    """Ends with the documented status for wrong use, where argparse ends with 2. Every
    subparser is one too.

    An argument that a command does not know is its own error, shown with its own usage.
    """

    def error(self, message: str) -> NoReturn:
        """Print the command's usage and the message, with the commands to choose from
        where one is missing. Raises SystemExit.
        """
        self.print_usage(sys.stderr)
        commands = next(
            (
                action.choices
                for action in self._actions
                if isinstance(action, argparse._SubParsersAction)
            ),
            None,
        )
        if commands and "required" in message:
            message += f" (one of {', '.join(commands)})"
        self.exit(ExitStatus.USAGE, f"{self.prog}: error: {message}\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but nothing is left over."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown


def build_parser(modules: Sequence[str] = COMMAND_MODULES) -> argparse.ArgumentParser:
    """The parser with the commands of ``modules``."""
    parser = CommandParser(
        prog="k3perf", description="Performance-regression tests for tuned Kimi K3 serving on vLLM"
    )
    parser.add_argument("--version", action="version", version=f"k3perf {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in modules:
        importlib.import_module(f"k3perf.cli.{name}_command").register(subparsers)
    _describe(subparsers)
    return parser


def _describe(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Show a command's line in the list of commands in its own help too."""
    for listed in subparsers._choices_actions:
        parser = subparsers.choices[listed.dest]
        parser.description = parser.description or listed.help
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                _describe(action)


def modules_for(arguments: Sequence[str]) -> Sequence[str]:
    """The module of the named command, else all of them, for help and for errors."""
    name = arguments[0].replace("-", "_") if arguments else ""
    return (name,) if name in COMMAND_MODULES else COMMAND_MODULES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. docs/exit-statuses.md has the statuses."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _with_streams(given)
    except KeyboardInterrupt as error:  # before the command began, or after it ended
        return _explained(error)


def _with_streams(given: Sequence[str]) -> int:
    with ending_signals(), lasting_streams() as output:
        ended: SystemExit | None = None
        try:
            status = _run(given)
        except SystemExit as of_parser:  # help, or wrong use: the parser has printed its message
            ended, status = of_parser, int(of_parser.code or 0)
        output.flush()
        if output.problem is not None and not isinstance(output.problem, BrokenPipeError):
            sys.stderr.write(
                f"k3perf: standard output cannot be written: {output.problem.strerror}\n"
            )
            status = status or ExitStatus.INVALID
    if ended is not None:
        raise SystemExit(status)
    return status


def _run(given: Sequence[str]) -> int:
    try:
        parsed = build_parser(modules_for(given)).parse_args(given)
        return int(parsed.run(parsed))
    except (Exception, KeyboardInterrupt) as error:
        return _explained(error)


def _explained(error: BaseException) -> int:
    if os.environ.get(TRACEBACK_VARIABLE):
        raise error
    text, status = explain(error)
    sys.stderr.write(f"k3perf: {text}\n")
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
