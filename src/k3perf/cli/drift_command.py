"""``k3perf drift``: is what runs in production what was approved?"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from k3perf.cli.shared_options import (
    add_baselines_option,
    add_suite_option,
    baselines_of,
    suite_of,
)
from k3perf.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from k3perf.records.baseline import Baseline
    from k3perf.records.verdict import ConfigDifference
    from k3perf.telemetry.outside_server import SeenServer


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "drift",
        help="compare a running server's configuration with the approved one",
        description=(
            "read the resolved configuration of a running server and compare it with the lock of a"
            " committed baseline; sends no request to the model"
        ),
        epilog=(
            "exit status: 12 when a visible key differs, 10 when no key of the lock is visible or"
            " the server does not answer, 11 when CONFIG has no baseline"
        ),
    )
    parser.add_argument("config", metavar="CONFIG", help="approved config")
    parser.add_argument(
        "--server",
        required=True,
        action="append",
        metavar="URL",
        help="http://HOST:PORT of the server; repeatable, for several replicas",
    )
    parser.add_argument(
        "--target", help="target of the baseline (default: the only target that has one)"
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    add_suite_option(parser)
    add_baselines_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare every server. The worst status of all."""
    from k3perf.telemetry.outside_server import OutsideServer

    servers = [OutsideServer(address) for address in arguments.server]
    baseline = _baseline(arguments)
    if baseline is None:
        sys.stderr.write(
            f"k3perf: no baseline of {arguments.config} is committed in"
            f" {baselines_of(arguments)}. Record it first (`pytest --k3-record`).\n"
        )
        return ExitStatus.NO_BASELINE
    found = [_compared(baseline, server.seen()) for server in servers]
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=1, default=str) + "\n")
    else:
        sys.stdout.writelines(_text(baseline, one) for one in found)
    statuses = [_status(one) for one in found]
    return max(statuses, key=_SEVERITY.index)


_SEVERITY = (ExitStatus.OK, ExitStatus.INVALID, ExitStatus.CONFIG_DRIFT)


def _status(found: dict[str, Any]) -> ExitStatus:
    if found["differences"]:
        return ExitStatus.CONFIG_DRIFT
    return ExitStatus.OK if found["compared_count"] else ExitStatus.INVALID


def _baseline(arguments: argparse.Namespace) -> Baseline | None:
    """The committed baseline. Raises UnknownNameError for a name that is not declared,
    UsageError if several targets have one.
    """
    from k3perf.store.baselines import read_baseline

    suite, root = suite_of(arguments), baselines_of(arguments)
    suite.config(arguments.config)
    if arguments.target:
        suite.target(arguments.target)
        return read_baseline(root, arguments.target, arguments.config)
    read = (read_baseline(root, name, arguments.config) for name in suite.targets)
    found = [baseline for baseline in read if baseline is not None]
    if len(found) > 1:
        names = ", ".join(baseline.target for baseline in found)
        raise UsageError(
            f"{arguments.config} has baselines on several targets ({names}). Choose one with"
            " --target."
        )
    return found[0] if found else None


def _compared(baseline: Baseline, seen: SeenServer) -> dict[str, Any]:
    """One server beside the lock: plain data, as ``--json`` prints it."""
    from k3perf.baselines.visible import hidden_keys
    from k3perf.metrics.drift import config_differences
    from k3perf.metrics.environment import without_environment

    approved = without_environment(baseline.resolved_config)
    shown = without_environment(seen.resolved_config)
    hidden = hidden_keys(approved, shown)
    visible = {key: value for key, value in approved.items() if key in shown}
    differences = config_differences(visible, shown)
    return {
        "server": seen.base_url,
        "target": baseline.target,
        "config": baseline.config,
        "compared_count": len(visible),
        "differences": [_plain(one) for one in differences],
        "not_visible": list(hidden),
        "blind": seen.blind,
    }


def _plain(difference: ConfigDifference) -> dict[str, Any]:
    from k3perf.config.flags import flag_of

    return {
        "key": difference.key,
        "flag": flag_of(difference.key),
        "approved": difference.was,
        "running": difference.now,
    }


def _text(baseline: Baseline, found: dict[str, Any]) -> str:
    """A few lines for a person."""
    total_count = found["compared_count"] + len(found["not_visible"])
    lines = []
    for one in found["differences"]:
        key = f"{one['key']} ({one['flag']})" if one["flag"] else one["key"]
        lines.append(f"  {key}: approved {one['approved']!r}, running {one['running']!r}")
    if lines:
        verdict = f"CONFIG_DRIFT: {len(lines)} keys differ"
    elif found["compared_count"]:
        verdict = "PASS: every visible key is as approved"
    else:
        verdict = "INVALID: no key of the lock is visible"
    head = (
        f"{found['server']} and {found['target']}/{found['config']}, accepted"
        f" {baseline.acceptance.accepted_at_utc}\n{verdict}"
        f" ({found['compared_count']} of {total_count} keys compared)"
    )
    if found["not_visible"]:
        names = ", ".join(found["not_visible"][:4])
        more = len(found["not_visible"]) - 4
        lines.append(f"  not visible: {names}{f' and {more} more' if more > 0 else ''}")
    lines += [f"  not visible: {what}: {why}" for what, why in found["blind"].items()]
    return "\n".join([head, *lines]) + "\n"
