"""``k3perf inject``: run the suite with a candidate that is really slower or bigger, to
see the gate fail.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from k3perf.errors import UsageError
from k3perf.run.settings import Injection


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "inject",
        help="run the suite with a fault inside the candidate engine",
        description=(
            "run the suite with a fault inside the candidate engine, for example:"
            " k3perf inject --slow-step-percent 15 -- -k fp8_kv"
        ),
        epilog="exit status: that of `pytest perf_tests`",
    )
    parser.add_argument(
        "--slow-step-percent",
        type=float,
        metavar="P",
        help="every engine step takes P percent longer",
    )
    parser.add_argument(
        "--hold-device-bytes",
        type=int,
        metavar="N",
        help="the worker holds N more bytes of the device's memory",
    )
    parser.add_argument(
        "--hold-host-bytes",
        type=int,
        metavar="N",
        help="the worker holds N more bytes of host memory",
    )
    parser.add_argument(
        "--hold-weights-bytes",
        type=int,
        metavar="N",
        help="the model registers N more bytes of weights",
    )
    parser.add_argument(
        "--wrong-answers",
        metavar="KIND=AMOUNT",
        help=(
            "the engine answers wrongly: kv_scale_factor, decode_kv_scale_factor,"
            " skip_layer_number, zero_expert_number, router_top_k, rope_offset_tokens or"
            " wrong_block_number (docs/quality.md)"
        ),
    )
    parser.add_argument(
        "--both-arms",
        action="store_true",
        help="put the fault into the reference arm's engine too (reference and ab mode)",
    )
    parser.add_argument(
        "pytest_arguments",
        nargs="*",
        metavar="PYTEST_ARGUMENT",
        help="passed on to `pytest perf_tests`, after --",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> NoReturn:
    """Become `pytest perf_tests` with --k3-inject set, in this very process, so that
    signals and the exit status are pytest's own.

    A new program and not a call: pytest warns of plugins that were imported before it,
    and the repository makes warnings errors.
    """
    kinds = ("slow_step_percent", "hold_device_bytes", "hold_host_bytes", "hold_weights_bytes")
    both = "both:" if arguments.both_arms else ""
    injected = [
        f"--k3-inject={both}{kind}={getattr(arguments, kind)}"
        for kind in kinds
        if getattr(arguments, kind) is not None
    ]
    if arguments.wrong_answers is not None:
        fault = Injection.parse(f"{both}{arguments.wrong_answers}")
        if fault.kind not in Injection.WRONG_ANSWERS:
            known = ", ".join(Injection.WRONG_ANSWERS)
            raise UsageError(f"--wrong-answers {fault.kind}: use one of {known}")
        injected.append(f"--k3-inject={fault}")
    if not injected:
        raise UsageError("give at least one fault, for example --slow-step-percent 15")
    sys.stdout.flush()
    words = [sys.executable, "-m", "pytest", "perf_tests", *injected, *arguments.pytest_arguments]
    os.execv(sys.executable, words)  # noqa: S606 - this Python, and the words that the user gave for pytest
