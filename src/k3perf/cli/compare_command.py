"""``k3perf compare``: what each approved config brings over its parent, from committed
baselines alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from k3perf.cli.report_command import written
from k3perf.cli.shared_options import add_baselines_option, add_suite_option, baselines_of, suite_of
from k3perf.errors import ExitStatus, UsageError


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "compare", help="compare every approved config with its parent, from committed baselines"
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME",
        help="only this target; repeatable (default: every target with baselines)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "markdown", "json"),
        default="text",
        help="output format (default: %(default)s)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write an HTML page there")
    add_suite_option(parser)
    add_baselines_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison. UsageError for a target without baselines."""
    from k3perf.baselines.comparison import ConfigComparison, compare_configs
    from k3perf.baselines.target_policy import target_policy, with_noise_of
    from k3perf.report.comparison_text import html_text, markdown_text, terminal_text
    from k3perf.store.atomic import replace_file
    from k3perf.store.baselines import read_target_baselines

    suite, directory = suite_of(arguments), baselines_of(arguments, existing=True)
    rows: list[ConfigComparison] = []
    for name in dict.fromkeys(arguments.target) or suite.targets:
        target = suite.target(name)
        baselines = read_target_baselines(directory, name)
        if not baselines and name in arguments.target:
            raise UsageError(
                f"--target {name}: no baseline in {directory / name}. Record one with"
                f" `pytest perf_tests --k3-target {name} --k3-record`."
            )
        if baselines:
            policy = with_noise_of(target_policy(suite, target, gated_metric_count=1), baselines)
            rows += compare_configs(suite, target, baselines, policy)
    if not rows:
        raise UsageError(f"{directory} holds no baseline of a config with a parent. Record one.")
    if not any(row.differences for row in rows):
        first = f"{rows[0].target}-{rows[0].config}: {rows[0].problem}"
        raise UsageError(
            f"no config can be compared with its parent, first {first}. Record the parent too."
        )
    forms = {"text": terminal_text, "markdown": markdown_text}
    if arguments.format == "json":
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    else:
        sys.stdout.write(forms[arguments.format](rows))
    if arguments.html:
        text = html_text(rows)
        written(arguments.html, "--html", lambda: replace_file(arguments.html, text))
    return ExitStatus.OK
