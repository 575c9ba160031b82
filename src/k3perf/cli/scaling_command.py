"""``k3perf scaling``: scaling efficiency of every target that names a base, from
committed baselines alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from k3perf.baselines.scaling import ScalingReading
from k3perf.cli.shared_options import add_baselines_option, add_suite_option, baselines_of, suite_of
from k3perf.config.suite import Suite
from k3perf.errors import UsageError
from k3perf.run.cell_notes import read_scaling_base
from k3perf.store.baselines import read_baseline


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "scaling",
        help="print the efficiency of targets with a scaling base, from committed baselines",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME",
        help="only this target; repeatable",
    )
    add_baselines_option(parser)
    parser.add_argument("--json", action="store_true", help="print the readings as JSON")
    add_suite_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print one row for each cell. A cell without an efficiency has its reason below
    the table.
    """
    suite, baselines_directory = suite_of(arguments), baselines_of(arguments, existing=True)
    names = _with_base(suite, arguments.target)
    readings = [
        reading for name in names for reading in _readings(suite, name, baselines_directory)
    ]
    if arguments.json:
        sys.stdout.write(
            json.dumps(
                [
                    {**asdict(reading), "efficiency_ratio": reading.efficiency_ratio}
                    for reading in readings
                ],
                indent=1,
            )
            + "\n"
        )
    elif not readings:
        sys.stdout.write("no target names a scaling_base\n")
    else:
        sys.stdout.write(_table(readings))
    return 0


def _with_base(suite: Suite, asked: Sequence[str]) -> tuple[str, ...]:
    known = tuple(name for name, target in suite.targets.items() if target.scaling_base is not None)
    for name in asked:
        if suite.target(name).scaling_base is None:
            others = f"Targets that do: {', '.join(known)}." if known else "No target does."
            raise UsageError(
                f"--target {name}: its file names no scaling_base to compare with. {others}"
            )
    return tuple(dict.fromkeys(asked)) or known


def _readings(suite: Suite, name: str, baselines_directory: Path) -> list[ScalingReading]:
    """One for each collected cell. A workload on request counts where the target's
    baseline has it.
    """
    target = suite.target(name)
    base = read_scaling_base(suite, target, baselines_directory)
    if base is None:
        return []
    found = []
    for config in dict.fromkeys(cell.config.name for cell in suite.cells((name,))):
        baseline = read_baseline(baselines_directory, name, config)
        asked = [
            workload
            for workload in target.workloads_on_request
            if baseline is not None and baseline.workload(workload)
        ]
        found += [
            base.of_baseline(baseline, config, workload) for workload in (*target.workloads, *asked)
        ]
    return found


def _table(readings: Sequence[ScalingReading]) -> str:
    head = (
        "target",
        "config",
        "workload",
        "devices",
        "tokens/s",
        "base",
        "base devices",
        "base tokens/s",
        "efficiency",
    )
    rows = [head, *(_row(reading) for reading in readings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(
            _aligned(text, width, column)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    reasons = [
        f"{reading.target}-{reading.config}-{reading.workload}: {reading.text}"
        for reading in readings
    ]
    return "\n".join([line.rstrip() for line in lines] + ["", *reasons]) + "\n"


def _row(reading: ScalingReading) -> tuple[str, ...]:
    ratio = reading.efficiency_ratio
    return (
        reading.target,
        reading.config,
        reading.workload,
        str(reading.device_count),
        _number(reading.tokens_per_s),
        reading.base,
        str(reading.base_device_count),
        _number(reading.base_tokens_per_s),
        "-" if ratio is None else f"{ratio:.1%}",
    )


def _number(tokens_per_s: float | None) -> str:
    return "-" if tokens_per_s is None else f"{tokens_per_s:,.1f}"


def _aligned(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column in (0, 1, 2, 5) else text.rjust(width)
