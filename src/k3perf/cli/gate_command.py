"""``k3perf gate selftest``: the gate's calibration, which ships with the repository.

The calibration lab is next to the tests and not part of the wheel. In a checkout its
options are those of ``tests/calibration/lab/command.py``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Final

import k3perf
from k3perf.errors import UsageError

LAB_COMMAND: Final = "tests.calibration.lab.command"
REPOSITORY: Final = Path(k3perf.__file__).resolve().parents[2]


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("gate", help="calibrate the gate (in a checkout)")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    if os.access((REPOSITORY / LAB_COMMAND.replace(".", "/")).with_suffix(".py"), os.R_OK):
        if str(REPOSITORY) not in sys.path:
            sys.path.insert(0, str(REPOSITORY))
        importlib.import_module(LAB_COMMAND).register(actions)
    else:
        selftest = actions.add_parser("selftest", help="needs a checkout of the repository")
        selftest.set_defaults(run=_refuse)


def _refuse(_: argparse.Namespace) -> int:
    raise UsageError(
        "the calibration lab of gate selftest is not part of the installed package."
        " Run it in a checkout of the repository."
    )
