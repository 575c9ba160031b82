"""``k3perf``: every command is registered by its own module; errors the suite knows, and those of the system, become one line and
their exit status."""

from __future__ import annotations

import argparse
import importlib
import socket
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from k3perf import __version__
from k3perf.errors import ExitStatus, K3PerfError

# Imported one by one when a command is used: help and errors stay fast, and one area's dependency never breaks another's command.
COMMAND_MODULES: Final = (
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
    "bundle",
    "recover",
    "scaling",
)


class CommandParser(argparse.ArgumentParser):
    """Ends with the documented status for wrong use, where argparse ends with 2; every subparser is one too.

    What a command does not know is its own error, shown with its own usage: nothing above it could take it.
    """

    def error(self, message: str) -> NoReturn:
        """The usage of this command and the message on stderr, with the commands to choose from where one is missing; raises SystemExit."""
        self.print_usage(sys.stderr)
        commands = next((action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)), None)
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
    parser = CommandParser(prog="k3perf", description="Performance-regression tests for tuned Kimi K3 serving on vLLM")
    parser.add_argument("--version", action="version", version=f"k3perf {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in modules:
        importlib.import_module(f"k3perf.cli.{name}").register(subparsers)
    return parser


def modules_for(arguments: Sequence[str]) -> Sequence[str]:
    """The module of the command that is asked for, where its name tells; else all of them, for help and for errors."""
    name = arguments[0].replace("-", "_") if arguments else ""
    return (name,) if name in COMMAND_MODULES else COMMAND_MODULES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is documented in docs/operating.md."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        parsed = build_parser(modules_for(given)).parse_args(given)
        return int(parsed.run(parsed))
    except K3PerfError as error:
        sys.stderr.write(f"k3perf: {error}\n")
        return int(error.exit_status)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        next_step, status = _advice(error)
        sys.stderr.write(f"k3perf: {error}. {next_step}\n")
        return int(status)


def _advice(error: OSError) -> tuple[str, ExitStatus]:
    """What to do next and the exit status: only an error that names a file is about what the caller wrote."""
    if error.filename is not None:
        return "Name a file or folder that can be used.", ExitStatus.USAGE
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return "Check that the server runs, and listens at the host and port that were named.", ExitStatus.INVALID
    return "The system refused this: check free disk space, memory and open files, and run the command again.", ExitStatus.INVALID


if __name__ == "__main__":
    raise SystemExit(main())
