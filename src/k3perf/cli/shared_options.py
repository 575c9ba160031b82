"""Options that several commands have, and the types of numbers on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from k3perf.errors import UsageError

if TYPE_CHECKING:
    from k3perf.config.suite import Suite

LARGEST_COUNT: Final = 10**15
"""A petabyte, in bytes. Arithmetic with larger counts would overflow."""


def add_suite_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--suite DIR``."""
    parser.add_argument(
        "--suite",
        type=Path,
        metavar="DIR",
        default=Path("perf_tests"),
        help="directory of the declared suite (default: %(default)s)",
    )


def suite_of(arguments: argparse.Namespace) -> Suite:
    """Load the suite that ``--suite`` names. Raises ConfigFileError."""
    return load_checked(arguments.suite, getattr(arguments, "engine_python", None))


def load_checked(suite: Path, engine_python: str | None = None) -> Suite:
    """Load ``suite``. Where there is an engine, its vLLM decides which arguments are
    known.
    """
    from k3perf.config.suite import load_suite
    from k3perf.run.argument_table import table_of_engine

    root = suite.resolve()
    return load_suite(root, engine_table=table_of_engine(engine_python, root.parent))


def add_baselines_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--baselines DIR``, for a parser that has ``--suite`` too."""
    parser.add_argument(
        "--baselines",
        type=Path,
        metavar="DIR",
        help="directory of the committed baselines (default: baselines next to the suite)",
    )


def baselines_of(arguments: argparse.Namespace, *, existing: bool = False) -> Path:
    """The directory that ``--baselines`` names, else ``baselines`` next to the suite.
    ``existing``: raises UsageError where it is not a directory.
    """
    given, suite = arguments.baselines, arguments.suite
    if given is None and suite.name in ("", ".."):  # such as `.`, which has no parent
        suite = suite.resolve()
    directory: Path = suite.parent / "baselines" if given is None else given
    if existing and not directory.is_dir():
        raise UsageError(
            f"--baselines {directory}: not found. Give the directory of the committed baselines."
        )
    return directory


def add_engine_python_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--engine-python PATH``."""
    parser.add_argument(
        "--engine-python",
        metavar="PATH",
        help=(
            "Python of the engine's environment (default: K3PERF_ENGINE_PYTHON, .venv-engine, the"
            " one that `k3perf init` used, that of `vllm` on PATH)"
        ),
    )


def files_named(name: str, paths: Iterable[Path]) -> list[Path]:
    """The given files, and every file ``name`` in and below the given directories."""
    return [
        file for path in paths for file in (sorted(path.rglob(name)) if path.is_dir() else [path])
    ]


def positive(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def share(text: str) -> float:
    """A share above 0, at most 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


def count(text: str) -> int:
    """A whole number from 1 to ``LARGEST_COUNT``."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a count of 1 or more")
    if value > LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"a count of more than {LARGEST_COUNT:,} is too large")
    return value


def client_processes(text: str) -> int | str:
    """A count, or ``auto``."""
    return text if text == "auto" else count(text)
