"""``k3perf night``: what a night measures, what is kept of it, the issue about main,
and the refresh of the baselines.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from k3perf.ci.night_plan import NEW_CELL_SESSIONS, Hours, NightOrder, fit_night
from k3perf.ci.nights import judgements, last_days, pace_of, sessions_spent
from k3perf.cli.night_refresh import run_refresh
from k3perf.cli.night_results import run_keep
from k3perf.cli.output import write_text
from k3perf.cli.shared_options import (
    add_baselines_option,
    add_suite_option,
    baselines_of,
    count,
    positive,
    suite_of,
)
from k3perf.errors import ExitStatus

KEPT_NIGHTS = 60
"""Nights that planning, judging and growing look back on."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``night``."""
    commands = subparsers.add_parser(
        "night",
        help="plan nightly runs on main, save their results, and extend baselines from them",
    ).add_subparsers(dest="night_command", metavar="COMMAND", required=True)
    planning = commands.add_parser(
        "plan", help="choose tonight's cells: failing ones first, then the least recently measured"
    )
    _register_plan(planning)
    keeping = _register_keep(commands)
    issue = _register_issue(commands)
    refresh = _register_refresh(commands)
    for command in (planning, keeping, issue, refresh):
        command.add_argument(
            "--nights",
            type=Path,
            required=True,
            metavar="DIR",
            help="directory of the saved nights: a checkout of the branch perf-history",
        )
    for command in (planning, keeping, refresh):
        add_suite_option(command)
        add_baselines_option(command)


def _register_keep(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    keeping = commands.add_parser(
        "keep",
        help="save a night's verdicts, values and sessions",
        epilog="exit status: 10 when a planned cell has no valid session",
    )
    keeping.add_argument("results", nargs="+", type=Path, help="directories with the results")
    keeping.add_argument("--plan", type=Path, required=True, metavar="FILE", help="plan.json")
    keeping.add_argument(
        "--verdict", type=Path, required=True, metavar="FILE", help="verdict.json of k3perf merge"
    )
    keeping.set_defaults(run=run_keep)
    return keeping


def _register_issue(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    issue = commands.add_parser(
        "issue",
        help="write the text of the issue about failing cells of main",
        epilog="exit status: 0 with and without failing cells; see k3perf merge for the verdict",
    )
    issue.add_argument(
        "--output", type=Path, metavar="FILE", help="write the issue there if a cell fails"
    )
    issue.add_argument(
        "--github-output", type=Path, metavar="FILE", help="append red=true or red=false"
    )
    issue.set_defaults(run=run_issue)
    return issue


def _register_refresh(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    refresh = commands.add_parser(
        "refresh", help="add the sessions of cells that PASS or IMPROVE to their baselines"
    )
    refresh.add_argument(
        "--body", type=Path, metavar="FILE", help="write the pull request's text there"
    )
    refresh.add_argument(
        "--window-sessions",
        type=count,
        default=24,
        metavar="N",
        help="fewest sessions of a workload that a baseline keeps (default: %(default)s)",
    )
    refresh.add_argument(
        "--window-batches",
        type=count,
        default=4,
        metavar="N",
        help="fewest batches (host and day) that it keeps (default: %(default)s)",
    )
    refresh.set_defaults(run=run_refresh)
    return refresh


def _register_plan(planning: argparse.ArgumentParser) -> None:
    planning.add_argument(
        "--hardware-classes",
        metavar="A,B",
        help="only these classes, for which a runner exists; other cells are listed as omitted",
    )
    planning.add_argument(
        "--shards",
        type=count,
        default=1,
        metavar="N",
        help="runners for each hardware class (default: %(default)s)",
    )
    planning.add_argument(
        "--shard-minutes",
        type=positive,
        default=300.0,
        metavar="N",
        help="time budget of one runner for a night, in minutes (default: %(default)g)",
    )
    planning.add_argument("--costs", type=Path, help="recorded durations (default: costs.json)")
    planning.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="write the plan there"
    )
    planning.add_argument(
        "--github-output",
        type=Path,
        metavar="FILE",
        help="append cpu_matrix, gpu_matrix, has_cpu and has_gpu for a workflow",
    )
    planning.set_defaults(run=run_plan, target=None, kind=None, whole_model=None)


def run_plan(arguments: argparse.Namespace) -> int:
    """Write the plan. What does not fit is listed, and comes earlier the next night."""
    from k3perf.ci.costs import CostModel, RecordedCosts
    from k3perf.ci.plan_output import github_output, night_document, plan_text
    from k3perf.ci.selection import Selection, select_all
    from k3perf.cli.plan_command import costs_in, served_by_class, wanted_targets, with_notes
    from k3perf.store.baselines import read_target_baselines
    from k3perf.store.nights import read_nights

    suite, root = suite_of(arguments), baselines_of(arguments)
    nights = read_nights(arguments.nights, last_count=KEPT_NIGHTS)
    selection = with_notes(select_all(suite, "the night's turn"), arguments.hardware_classes)
    wanted = wanted_targets(suite, arguments)
    cells = tuple(one for one in selection.cells if one.cell.target.name in wanted)
    cells, unserved = served_by_class(suite, cells)
    recorded = costs_in(arguments.costs, arguments.suite)
    for night in nights:
        recorded = RecordedCosts(
            engine_start_s=night.engine_start_s, session_s=night.session_s
        ).over(recorded)
    pace, spent = pace_of(nights), sessions_spent(nights)
    costs = CostModel(recorded, spent=spent, pace=pace)
    recording = CostModel(recorded, recording=True, record_sessions=NEW_CELL_SESSIONS, pace=pace)
    known = {
        f"{name}-{baseline.config}-{part.workload}"
        for name in wanted
        for baseline in read_target_baselines(root, name)
        for part in baseline.workloads
    }
    red = {name for name, one in judgements(nights).items() if one.first_red is not None}
    fitted = fit_night(
        cells,
        with_baseline=known,
        order=NightOrder(red, last_days(nights)),
        costs=costs,
        recording_costs=recording,
        hours=Hours(arguments.shards, arguments.shard_minutes * 60),
    )
    notes = Selection(cells, (*selection.notes, *unserved)).notes
    plan = night_document(suite, cells, fitted, costs, notes)
    write_text(arguments.output, plan.model_dump_json(indent=2) + "\n")
    if arguments.github_output:
        text = github_output(plan.shards, plan.gated_metric_count)
        write_text(arguments.github_output, text, "--github-output", mode="a")
    print(plan_text(plan), end="")
    return ExitStatus.OK


def run_issue(arguments: argparse.Namespace) -> int:
    """Write the issue's text, or say that main is green."""
    from k3perf.ci.night_report import main_issue, outcome_counts, red_cells
    from k3perf.store.nights import read_nights

    judged = judgements(read_nights(arguments.nights, last_count=KEPT_NIGHTS))
    text = main_issue(judged)
    if text and arguments.output:
        write_text(arguments.output, text)
    if arguments.github_output:
        red = "true" if text else "false"
        write_text(arguments.github_output, f"red={red}\n", "--github-output", mode="a")
    for one in red_cells(judged):
        first = one.first_red or one.night
        print(f"{one.cell.cell_id}: {one.cell.outcome} since {first.day} at {first.commit[:12]}")
    print(f"main: {outcome_counts(judged.values())} of {len(judged)} judged cells")
    return ExitStatus.OK
