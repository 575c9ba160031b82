"""``k3perf quality``: what schemes trade, how many questions a task needs, tasks of
lm-evaluation-harness against a running server.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from k3perf.errors import ExitStatus, UsageError


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "quality", help="quality cost of each scheme, sample sizes, lm-evaluation-harness tasks"
    )
    commands = parser.add_subparsers(dest="quality_command", metavar="COMMAND", required=True)
    trade = commands.add_parser(
        "trade", help="memory, tokens, throughput and quality loss of each config"
    )
    trade.add_argument("measurements", nargs="+", type=Path, help="measurements.json of a run")
    trade.add_argument("--json", action="store_true", help="print the rows as JSON")
    trade.set_defaults(run=run_trade)
    _register_sample_size(commands)
    _register_tasks(commands)


def _register_sample_size(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    size = commands.add_parser(
        "sample-size", help="number of questions needed to detect a loss of a task's score"
    )
    size.add_argument("--score", type=float, required=True, help="the score, such as 0.76")
    size.add_argument("--loss", type=float, required=True, help="the drop to detect, such as 0.02")
    _add_error_rates(size)
    size.add_argument(
        "--discordant",
        type=float,
        help="share of questions that only one engine answers correctly; adds the paired test",
    )
    size.set_defaults(run=run_sample_size)


def _register_tasks(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tasks = commands.add_parser(
        "tasks", help="run lm-evaluation-harness tasks against one or two running servers"
    )
    tasks.add_argument("--server", required=True, metavar="URL", help="server to judge")
    tasks.add_argument("--reference-server", metavar="URL", help="server to compare with")
    tasks.add_argument("--model", required=True, help="the served model's name")
    tasks.add_argument("--tokenizer", help="tokenizer that the harness loads (default: the model)")
    tasks.add_argument("--tasks", required=True, help="names of tasks, such as gsm8k,mmlu")
    tasks.add_argument("--include-path", type=Path, help="directory with more task files")
    tasks.add_argument("--questions", type=int, help="take only the first N questions of each task")
    tasks.add_argument("--loss", type=float, default=0.02, help="drop to detect (default: 0.02)")
    tasks.add_argument(
        "--reference-score", type=float, help="approved score, if there is no reference server"
    )
    _add_error_rates(tasks)
    tasks.add_argument(
        "--python",
        type=Path,
        default=Path(sys.executable),
        help="Python with lm_eval[api] (default: this one)",
    )
    tasks.add_argument("--output", type=Path, required=True, help="directory for the answers")
    tasks.add_argument(
        "--timeout", type=float, default=7200.0, help="time limit for each server, in seconds"
    )
    tasks.set_defaults(run=run_tasks)


def _add_error_rates(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--alpha", type=float, default=0.01, help="false-alarm rate of a task (default: 0.01)"
    )
    parser.add_argument(
        "--power",
        type=float,
        default=0.95,
        help="probability of detecting the loss (default: 0.95)",
    )


def run_trade(arguments: argparse.Namespace) -> int:
    """Print the table of every cell that compared answers."""
    from k3perf.report.trade_table import trade_rows, trade_table
    from k3perf.store.measurements import read_measurement_file

    cells = [cell for path in arguments.measurements for cell in read_measurement_file(path).cells]
    rows = trade_rows(cells)
    if not rows:
        raise UsageError(
            f"{arguments.measurements[0]}: no cell compared answers. Run a target that declares"
            " quality, such as cpu-quality-gqa."
        )
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    else:
        sys.stdout.write(trade_table(rows))
    return 0


def run_sample_size(arguments: argparse.Namespace) -> int:
    """Print what the unpaired and the paired test need."""
    from k3perf.stats.proportions import paired_need, unpaired_need

    rates = (arguments.alpha, arguments.power)
    try:
        needs = {"unpaired": unpaired_need(arguments.score, arguments.loss, *rates)}
        if arguments.discordant is not None:
            needs["paired"] = paired_need(arguments.discordant, arguments.loss, *rates)
    except ValueError as problem:
        raise UsageError(f"k3perf quality sample-size: {problem}") from None
    for name, need in needs.items():
        sys.stdout.write(
            f"{name}: {need.questions:,} questions; a drop of {need.threshold_ratio:.2%} or more"
            " is a loss\n"
        )
    return 0


def run_tasks(arguments: argparse.Namespace) -> int:
    """Run the tasks and judge each. Exit status 1 if a task proved a loss."""
    from k3perf.run.quality_tasks import TaskPlan, run_and_judge

    names = tuple(name for name in arguments.tasks.split(",") if name)
    plan = TaskPlan(
        python=arguments.python,
        model=arguments.model,
        tokenizer=arguments.tokenizer or arguments.model,
        tasks=names,
        output=arguments.output,
        include_path=arguments.include_path,
        questions=arguments.questions,
        loss=arguments.loss,
        alpha=arguments.alpha,
        power=arguments.power,
        timeout_s=arguments.timeout,
    )
    results = run_and_judge(
        plan, arguments.server, arguments.reference_server, arguments.reference_score
    )
    for result in results:
        sys.stdout.write(f"{result.text}\n")
    lost = any(result.lost for result in results)
    return int(ExitStatus.REGRESSED if lost else ExitStatus.OK)
