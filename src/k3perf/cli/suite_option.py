"""The option that every command which reads the declared suite has."""

from __future__ import annotations

import argparse
from pathlib import Path

from k3perf.config.suite import Suite, load_suite


def add_suite_option(parser: argparse.ArgumentParser) -> None:
    """``--suite DIR``."""
    parser.add_argument(
        "--suite",
        metavar="DIR",
        default="perf_tests",
        help="folder of the declared suite (default: perf_tests)",
    )


def suite_of(arguments: argparse.Namespace) -> Suite:
    """The suite that ``--suite`` names. Raises ConfigFileError."""
    return load_checked(Path(arguments.suite), getattr(arguments, "engine_python", None))


def load_checked(suite: Path, engine_python: str | None = None) -> Suite:
    """The suite in ``suite``. Where there is an engine, its vLLM decides which
    arguments are known.
    """
    from k3perf.run.argument_table import table_of_engine

    root = suite.resolve()
    return load_suite(root, engine_table=table_of_engine(engine_python, root.parent))
