"""The option that every command which reads the declared suite has."""

from __future__ import annotations

import argparse
from pathlib import Path

from k3perf.config.suite import Suite, load_suite


def add_suite_option(parser: argparse.ArgumentParser) -> None:
    """``--suite DIR``."""
    parser.add_argument("--suite", metavar="DIR", default="perf_tests", help="folder of the declared suite (default: perf_tests)")


def suite_of(arguments: argparse.Namespace) -> Suite:
    """The suite that ``--suite`` names. Raises ConfigFileError."""
    return load_suite(Path(arguments.suite).resolve())
