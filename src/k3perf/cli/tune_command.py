"""``k3perf tune``: sweep vLLM's arguments step by step, confirm what gains, propose it.
``k3perf tune accept`` makes an approved config of a point.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3perf.cli.shared_options import add_baselines_option, add_suite_option, share
from k3perf.cli.tuning_options import (
    TuningLines,
    add_measuring_options,
    bounds_of,
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
from k3perf.errors import ExitStatus, UsageError, shortened

if TYPE_CHECKING:
    from k3perf.config.suite import Suite
    from k3perf.records.tuning import TuningResult
    from k3perf.run.tuning_run import TuningRequest
    from k3perf.tune.plan import Parameter

_STEPS = "kv,scheduler,quantisation,validate"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "tune",
        help="sweep vLLM's arguments step by step, and propose a proven improvement",
        epilog="exit status: 10 when the base config has no valid session",
    )
    add_measuring_options(parser)
    _add_goal(parser)
    parser.set_defaults(run=run_tune)
    commands = parser.add_subparsers(dest="tune_command", metavar="COMMAND", required=False)
    _register_accept(commands)


def _add_goal(parser: argparse.ArgumentParser) -> None:
    """Add what is swept, and what a proposal must be."""
    parser.add_argument(
        "--steps", default=_STEPS, metavar="A,B", help=f"steps in order (default: {_STEPS})"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ARGUMENT",
        help="sweep only this vLLM argument; repeatable",
    )
    parser.add_argument(
        "--values",
        action="append",
        default=[],
        metavar="ARGUMENT=A,B",
        help="values to try, also for an argument outside the table; repeatable",
    )
    parser.add_argument(
        "--objective",
        default="output_tokens_per_s",
        metavar="METRIC",
        help="metric to improve (default: output_tokens_per_s)",
    )
    parser.add_argument(
        "--bound",
        action="append",
        default=[],
        metavar="METRIC=LIMIT",
        help="limit that a proposal must meet, such as ttft_p99_ms=500; repeatable",
    )
    _add_limits(parser)
    parser.add_argument(
        "--validate-workload",
        metavar="NAME",
        default="",
        help="workload of the validate step (default: trace, if the target has it)",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="trace file to replay instead")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Add how sure a proposal must be, and the quality that it may lose."""
    parser.add_argument(
        "--error-rate",
        type=share,
        default=0.01,
        help="probability of a proposal without a gain, all tests together (default: 0.01)",
    )
    parser.add_argument(
        "--smallest-effect",
        type=share,
        default=0.02,
        help="gain that is worth a session, as a ratio (default: 0.02)",
    )
    parser.add_argument(
        "--quality",
        type=Path,
        metavar="JSON",
        help='quality loss of lossy values, {"kv_cache_dtype=fp8": 0.004}; without it they are'
        " measured and not proposed",
    )
    parser.add_argument(
        "--largest-quality-loss", type=share, help="largest quality loss to accept, as a ratio"
    )


def _register_accept(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    accept = commands.add_parser(
        "accept",
        help="write the config of a measured point, add it to its target, and propose its baseline",
        epilog="exit status: 4 when the point cannot be approved; nothing is written then",
    )
    accept.add_argument(
        "results", type=Path, metavar="RUN", help="results directory of a tuning run"
    )
    accept.add_argument(
        "point", metavar="POINT", help='label such as "max_num_seqs=64", or best for the proposal'
    )
    accept.add_argument("--name", default="", help="name of the config (default: from the change)")
    accept.add_argument(
        "--reason",
        default="",
        help="reason for the reviewer; required for a point that the run does not propose",
    )
    accept.add_argument(
        "--proposals",
        default="proposals",
        metavar="DIR",
        help="directory of the baseline proposal (default: proposals)",
    )
    add_baselines_option(accept)
    add_suite_option(accept)
    accept.set_defaults(run=run_accept)


def _request(arguments: argparse.Namespace, suite: Suite) -> TuningRequest:
    """What the options ask for."""
    from k3perf.run.tuning_run import TuningRequest
    from k3perf.tune.parameters import parameters_of

    steps = _steps(arguments.steps)
    given = values_by_name(arguments.values, "--values")
    only = [name.replace("-", "_") for name in arguments.only]

    def parameters(base: Mapping[str, Any], kind: str) -> tuple[Parameter, ...]:
        return parameters_of(steps, base, kind=kind, given=given, only=only)

    return TuningRequest(
        target=arguments.target,
        base=arguments.config,
        workload=arguments.workload,
        parameters=parameters,
        objective=arguments.objective,
        bounds=bounds_of(arguments.bound),
        budget_s=None if arguments.budget_minutes is None else 60 * arguments.budget_minutes,
        rounds=arguments.rounds,
        error_rate=arguments.error_rate,
        smallest_effect=arguments.smallest_effect,
        validation_workload=_validation(arguments, steps, suite),
        service_level=service_level_of(arguments),
        quality_file=arguments.quality,
        largest_quality_loss=arguments.largest_quality_loss or 0.0,
    )


def run_tune(arguments: argparse.Namespace) -> int:
    """Tune. The result is on stdout, progress on stderr."""
    require_named(arguments, "target", "workload")
    from k3perf.engine.signals import install
    from k3perf.report.tuning_text import finding_text
    from k3perf.run.tuning_run import prepare, run_tuning

    check_picture(arguments)
    settings = tuning_settings(arguments, "tune", arguments.trace)
    prepared = prepare(_request(arguments, settings.suite), settings)
    plan = prepared.plan
    if not plan.parameters:
        raise UsageError(
            f"--steps {shortened(arguments.steps)} sweeps nothing on {arguments.target}. Give"
            " --values ARGUMENT=A,B."
        )
    say_cost(prepared, plan.least_session_count(), plan.most_session_count())
    for line in _point_lines(prepared.plan.parameters, plan.exclude, plan.change_to):
        say(line)
    if arguments.dry_run:
        return ExitStatus.OK
    say(f"results: {settings.results_directory}")
    metrics = plan.front_metrics
    restore = install()
    try:
        result = run_tuning(
            prepared,
            TuningLines(),
            listen=lambda one: say(finding_text(one, plan.objective, metrics)),
            seen=say_reading,
        )
    finally:
        restore()
    write_picture(arguments, result)
    _write(result, metrics, as_json=arguments.json)
    if result.proposal and not arguments.json:
        sys.stdout.write(f"Review it, then: k3perf tune accept {settings.results_directory} best\n")
    return ExitStatus.OK


def _write(result: TuningResult, metrics: Sequence[str], *, as_json: bool) -> None:
    from k3perf.report.tuning_text import finding_text, result_text

    if as_json:
        import orjson

        sys.stdout.write(orjson.dumps(result, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    for finding in result.parameters:
        sys.stdout.write(finding_text(finding, result.objective, metrics) + "\n")
    sys.stdout.write(result_text(result))


def run_accept(arguments: argparse.Namespace) -> int:
    """Write the config of a point."""
    from k3perf.cli.tune_accept import accept_point

    return accept_point(arguments)


def _steps(text: str) -> tuple[str, ...]:
    from k3perf.tune.parameters import STEPS, VALIDATE

    steps = tuple(part.strip() for part in text.split(",") if part.strip())
    for step in steps:
        if step == "parallelism":
            raise UsageError(
                "--steps parallelism: only a target's parallelism sets the number of ranks. Declare"
                " a target for each split and tune each."
            )
        if step not in (*STEPS, VALIDATE):
            raise UsageError(
                f"--steps {shortened(repr(step))}: use {', '.join((*STEPS, VALIDATE))}"
            )
    return steps


def _validation(arguments: argparse.Namespace, steps: tuple[str, ...], suite: Suite) -> str:
    """The workload of the validate step. Empty: no such step."""
    if "validate" not in steps:
        return ""
    target = suite.target(arguments.target)
    offered = (*target.workloads, *target.workloads_on_request)
    name: str = arguments.validate_workload or ("trace" if "trace" in offered else "")
    if not name:
        if arguments.trace is not None:
            raise UsageError(
                f"--trace: {target.name} has no trace workload. Name one with --validate-workload."
            )
        say(f"no validation: {target.name} has no trace workload; --validate-workload names one")
    return name


def _point_lines(parameters: tuple[Parameter, ...], exclude: Any, change_to: Any) -> list[str]:
    """The values of each sweep, and why a point costs nothing."""
    from k3perf.records.tuning import label_of, value_text

    lines = []
    for parameter in parameters:
        values = ", ".join(map(value_text, parameter.values))
        lines.append(f"  {parameter.step}: {parameter.name} {values}")
        for value in parameter.values:
            change = change_to({}, parameter, value)
            why = exclude(change) if change else ""
            if why:
                lines.append(f"    {label_of(change)} is not measured: {why}")
    return lines
