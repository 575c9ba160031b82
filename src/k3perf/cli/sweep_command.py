"""``k3perf sweep``: measure a grid or list of points with intervals, or climb a
concurrency ladder. Nothing is chosen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3perf.cli.output import write_text
from k3perf.cli.shared_options import count
from k3perf.cli.tuning_options import (
    TuningLines,
    add_measuring_options,
    check_picture,
    require_named,
    say,
    say_cost,
    say_reading,
    service_level_of,
    tuning_settings,
    values_by_name,
    write_picture,
)
from k3perf.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from k3perf.load.concurrency_ladder import LadderStep
    from k3perf.records.tuning import Knee
    from k3perf.tune.plan import Parameter


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "sweep",
        help="measure a grid of vLLM arguments, or a range of concurrencies, and propose nothing",
        epilog="exit status: 10 when nothing valid was measured, or no server answers",
    )
    add_measuring_options(parser)
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="ARGUMENT=A,B",
        help="values of a vLLM argument; several make a grid; repeatable",
    )
    parser.add_argument(
        "--blocks", type=count, default=3, help="sessions of each point, or passes (default: 3)"
    )
    parser.add_argument(
        "--concurrency",
        metavar="1,2,4",
        help="measure these concurrencies on one engine instead: throughput and latency",
    )
    parser.add_argument("--base-url", help="running server for --concurrency")
    parser.add_argument("--model-name", help="name of the model at that server")
    parser.add_argument(
        "--vocabulary-size", type=count, help="vocab_size of the server's config.json"
    )
    parser.add_argument("--output", type=Path, metavar="JSON", help="file for the ladder's steps")
    parser.set_defaults(run=run_sweep)


def run_sweep(arguments: argparse.Namespace) -> int:
    """Measure. The result is on stdout, progress on stderr."""
    if arguments.concurrency is not None:
        if arguments.settings:
            raise UsageError("give --set for a grid or --concurrency for a ladder, not both")
        if arguments.picture is not None:
            raise UsageError("--picture belongs to --set; a ladder's steps go to --output")
        return _ladder(arguments)
    for option in ("base_url", "model_name", "vocabulary_size", "output"):
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')} belongs to --concurrency")
    return _grid(arguments)


def _grid(arguments: argparse.Namespace) -> int:
    require_named(arguments, "target", "workload")
    from k3perf.engine.signals import install
    from k3perf.report.tuning_text import finding_text, result_text
    from k3perf.run.tuning_run import TuningRequest, prepare, run_tuning
    from k3perf.tune.grid import grid_changes
    from k3perf.tune.parameters import parameters_of

    check_picture(arguments)
    settings_by_name = values_by_name(arguments.settings, "--set")
    if not settings_by_name:
        raise UsageError("give --set ARGUMENT=A,B for a grid, or --concurrency 1,2,4 for a ladder")
    settings = tuning_settings(arguments, "sweep")

    def checked(base: Mapping[str, Any], kind: str) -> tuple[Parameter, ...]:
        return parameters_of((), base, kind=kind, given=settings_by_name)

    request = TuningRequest(
        target=arguments.target,
        base=arguments.config,
        workload=arguments.workload,
        parameters=checked,
        budget_s=None if arguments.budget_minutes is None else 60 * arguments.budget_minutes,
        rounds=arguments.rounds,
        service_level=service_level_of(arguments),
        grid=settings_by_name,
        grid_blocks=arguments.blocks,
    )
    prepared = prepare(request, settings)
    changes = grid_changes(settings_by_name, prepared.cell.engine_arguments)
    running = sum(1 for one in changes if not prepared.plan.exclude(one))
    sessions = arguments.blocks * (1 + running)
    say_cost(prepared, sessions, sessions)
    if arguments.dry_run:
        return ExitStatus.OK
    say(f"results: {settings.results_directory}")
    restore = install()
    try:
        result = run_tuning(prepared, TuningLines(), listen=lambda _: None, seen=say_reading)
    finally:
        restore()
    write_picture(arguments, result)
    if arguments.json:
        import orjson

        sys.stdout.write(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode() + "\n")
        return ExitStatus.OK
    metrics = prepared.plan.front_metrics
    sys.stdout.write(finding_text(result.parameters[0], result.objective, metrics) + "\n")
    sys.stdout.write(result_text(result))
    return ExitStatus.OK


def _ladder(arguments: argparse.Namespace) -> int:
    from k3perf.load.concurrency_ladder import climb
    from k3perf.load.wire import Endpoint

    concurrencies = _concurrencies(arguments.concurrency)
    if arguments.base_url is not None:
        Endpoint.parse(arguments.base_url)
        if not arguments.model_name or not arguments.vocabulary_size:
            raise UsageError("--base-url needs --model-name and --vocabulary-size")
    else:
        require_named(arguments, "target")
    require_named(arguments, "workload")
    if arguments.output is not None and not arguments.output.absolute().parent.is_dir():
        raise UsageError(f"--output {arguments.output}: directory not found")
    spec = _workload(arguments)
    with _server(arguments) as (base_url, model_name, vocabulary_size):
        from k3perf.load.find_rate import warm_up

        say("warming up")
        warm_up(spec, base_url=base_url, model_name=model_name, vocabulary_size=vocabulary_size)
        steps = climb(
            spec,
            concurrencies,
            passes=arguments.blocks,
            base_url=base_url,
            model_name=model_name,
            vocabulary_size=vocabulary_size,
            seen=lambda one: say(
                f"concurrency {one.concurrency}, pass {one.pass_index + 1}:"
                f" {one.output_tokens_per_s:.1f} tokens/s"
            ),
        )
    knee = saturation(steps)
    data = {"steps": [asdict(one) for one in steps], "saturation": knee and asdict(knee)}
    if arguments.output is not None:
        write_text(arguments.output, json.dumps(data, indent=1) + "\n")
    if arguments.json:
        sys.stdout.write(json.dumps(data, indent=1) + "\n")
    else:
        sys.stdout.write(_table(steps, knee))
    return ExitStatus.OK


def saturation(steps: Sequence[LadderStep]) -> Knee | None:
    """The concurrency from which throughput rises by less than the noise of the passes.
    None with one pass or fewer than three steps.
    """
    from k3perf.tune.block_fit import BlockFit
    from k3perf.tune.knee import find_knee
    from k3perf.tune.ledger import log_value
    from k3perf.tune.plan import SMALLEST_EFFECT

    table: dict[str, dict[int, float]] = {}
    for one in steps:
        value = log_value("output_tokens_per_s", one.output_tokens_per_s)
        table.setdefault(str(one.concurrency), {})[one.pass_index] = value
    ordered = sorted((float(label), label) for label in table)
    return find_knee(ordered, BlockFit(table), smallest_effect=SMALLEST_EFFECT)


def _table(steps: Sequence[LadderStep], knee: Knee | None) -> str:
    lines = [
        f"{'in flight':>9} {'passes':>6} {'tokens/s':>10} {'TTFT p50':>10} {'TTFT p99':>10}"
        f" {'TPOT p50':>10}"
    ]
    for concurrency in sorted({one.concurrency for one in steps}):
        mine = [one for one in steps if one.concurrency == concurrency]
        tpots = [one.tpot_p50_ms for one in mine if one.tpot_p50_ms is not None]
        tpot = f"{sum(tpots) / len(tpots):.1f} ms" if tpots else "-"
        cells = [
            f"{sum(values) / len(values):.1f}{unit}"
            for values, unit in (
                ([one.output_tokens_per_s for one in mine], ""),
                ([one.ttft_p50_ms for one in mine], " ms"),
                ([one.ttft_p99_ms for one in mine], " ms"),
            )
        ]
        lines.append(
            f"{concurrency:>9} {len(mine):>6} {cells[0]:>10} {cells[1]:>10} {cells[2]:>10}"
            f" {tpot:>10}"
        )
    lines.append(
        "saturation: unknown; it takes at least three steps and two passes (--blocks)"
        if knee is None
        else f"saturation: {knee.text}. One engine start, so its spread is not in the interval."
    )
    return "\n".join(lines) + "\n"


def _concurrencies(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) <= 1 << 16 for part in parts):
        raise UsageError(f"--concurrency {text!r}: give whole numbers from 1, such as 1,2,4,8")
    return tuple(sorted({int(part) for part in parts}))


def _workload(arguments: argparse.Namespace) -> Any:
    from k3perf.cli.shared_options import suite_of
    from k3perf.config.workload_spec import TraceReplay

    spec = suite_of(arguments).workload(arguments.workload)
    if isinstance(spec.arrival, TraceReplay) or spec.conversation is not None:
        raise UsageError(
            f"--workload {spec.name}: a ladder needs single requests with their own lengths. Name"
            " a workload without a trace or conversation."
        )
    return spec


@contextlib.contextmanager
def _server(arguments: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Address, model name and vocabulary of the server, which may be started here."""
    if arguments.base_url is not None:
        yield arguments.base_url, arguments.model_name, arguments.vocabulary_size
        return
    from k3perf.engine.signals import install
    from k3perf.run.reference_engine import reference_engine

    settings = tuning_settings(arguments, "ladder")
    target = settings.suite.target(arguments.target)
    config = arguments.config or target.reference
    restore = install()
    try:
        with reference_engine(settings, target.name, TuningLines(), config=config) as live:
            yield (
                live.engine.base_url,
                live.engine.model_name,
                settings.suite.vocabulary_size(target),
            )
    finally:
        restore()
