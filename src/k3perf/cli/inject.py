"""``k3perf inject``: run the suite with a candidate that is really slower or bigger, to see the gate fail."""

from __future__ import annotations

import argparse

from k3perf.errors import UsageError


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "inject",
        help="run the suite with a fault inside the candidate engine",
        epilog="example: k3perf inject --slow-step-percent 15 -- -k fp8_kv",
    )
    parser.add_argument("--slow-step-percent", type=float, metavar="P", help="every engine step takes P percent longer")
    parser.add_argument("--hold-device-bytes", type=int, metavar="N", help="the worker holds N more bytes of the device's memory")
    parser.add_argument("--hold-host-bytes", type=int, metavar="N", help="the worker holds N more bytes of host memory")
    parser.add_argument("--hold-weights-bytes", type=int, metavar="N", help="the model registers N more bytes of weights")
    parser.add_argument("pytest_arguments", nargs="*", metavar="PYTEST_ARGUMENT", help="passed on to `pytest perf_tests`, after --")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Call pytest in this process with --k3-inject set; its exit status is the command's."""
    kinds = ("slow_step_percent", "hold_device_bytes", "hold_host_bytes", "hold_weights_bytes")
    injected = [f"--k3-inject={kind}={getattr(arguments, kind)}" for kind in kinds if getattr(arguments, kind) is not None]
    if not injected:
        raise UsageError("k3perf inject: give at least one fault, e.g. --slow-step-percent 15")
    import pytest

    return int(pytest.main(["perf_tests", *injected, *arguments.pytest_arguments]))
