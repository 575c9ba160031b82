"""``k3perf plan``: changed files and the declared suite to the cells worth measuring,
as a table, JSON or a workflow's job matrix.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from k3perf.ci.costs import CostModel, RecordedCosts, record_costs
from k3perf.ci.judge_changes import listed
from k3perf.ci.plan_output import SECONDS_PER_MINUTE, github_output, plan_document, plan_text
from k3perf.ci.planning import Fitted, Importance, Shard, fit_budget, split
from k3perf.ci.selection import SelectedCell, Selection, select, select_all
from k3perf.cli.output import write_text
from k3perf.cli.shared_options import (
    add_baselines_option,
    add_suite_option,
    baselines_of,
    files_named,
    positive,
    suite_of,
)
from k3perf.config.candidates import HasBaseline, candidates_of
from k3perf.config.ci_rules import CiRules, load_ci_rules
from k3perf.config.judged import JudgedSuite, judged_suite
from k3perf.config.suite import Suite
from k3perf.documents import read_record
from k3perf.errors import ExitStatus, UsageError
from k3perf.store.baselines import baseline_known
from k3perf.store.repository import Repository


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``plan``."""
    parser = subparsers.add_parser(
        "plan", help="choose the cells that a change touches and split them over runners"
    )
    add_suite_option(parser)
    parser.add_argument(
        "--changed-since",
        metavar="REF",
        help="select by the files that differ from the merge base with REF (default: every cell)",
    )
    parser.add_argument(
        "--judge-from",
        metavar="DIR|REF",
        help="plan with the cells, metrics and costs of this base, as --k3-judge-from judges",
    )
    parser.add_argument(
        "--budget-minutes",
        type=positive,
        metavar="N",
        help="device minutes for each hardware class; cells beyond it are omitted, by name",
    )
    parser.add_argument(
        "--shards",
        type=_count,
        default=1,
        metavar="N",
        help="runners for each hardware class (default: %(default)s)",
    )
    parser.add_argument(
        "--shard-limit-minutes",
        type=positive,
        metavar="N",
        help="limit of one runner's job; a shard that is priced above it gets a note",
    )
    parser.add_argument(
        "--target", action="append", metavar="NAME", help="only this target; repeatable"
    )
    parser.add_argument(
        "--kind", choices=("cpu", "nvidia", "amd"), help="only targets on this kind of hardware"
    )
    parser.add_argument(
        "--hardware-classes",
        metavar="A,B",
        help="only these classes, which have a runner; omitted cells are noted",
    )
    add_baselines_option(parser)
    parser.add_argument(
        "--candidates",
        action="store_true",
        help="plan candidate cells too, which have no baseline, for a recording of them",
    )
    parser.add_argument(
        "--whole-model",
        choices=("only", "never"),
        help="plan only the targets that serve a checkpoint, or none of them",
    )
    _add_outputs(parser)
    parser.set_defaults(run=run)


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add the options of costs and of what is written."""
    parser.add_argument(
        "--record",
        action="store_true",
        help="plan a --k3-record run: count every session that a baseline needs",
    )
    parser.add_argument(
        "--costs",
        type=Path,
        help="recorded seconds (default: costs.json of the suite, if it exists)",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the JSON there")
    parser.add_argument(
        "--github-output",
        type=Path,
        metavar="FILE",
        help="append cpu_matrix, gpu_matrix, has_cpu and has_gpu for a workflow",
    )
    parser.add_argument(
        "--record-costs",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help=(
            "instead of planning: add the times of finished runs to --costs, from results.jsonl"
            " files or directories that hold them"
        ),
    )


def _count(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= 256:
        raise argparse.ArgumentTypeError(f"{text} shards; a workflow matrix holds 1 to 256 jobs")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Print or write the plan. An empty plan is a valid answer (status 0). Notes and
    omitted cells are always shown.
    """
    if arguments.record_costs:
        return _record(arguments.record_costs, arguments.costs or arguments.suite / "costs.json")
    suite, directories = _suite(arguments)
    costs_of = suite.base.root if isinstance(suite, JudgedSuite) else arguments.suite
    rules = load_ci_rules(costs_of)
    selection = _selection(suite, arguments, rules)
    wanted = wanted_targets(suite, arguments)
    cells = tuple(selected for selected in selection.cells if selected.cell.target.name in wanted)
    selection = with_notes(selection, arguments.hardware_classes)
    cells, unserved = served_by_class(suite, cells)
    has_baseline = baseline_known(directories)
    if not arguments.candidates:
        cells, unapproved = _approved(cells, has_baseline)
        unserved += unapproved
    selection = Selection(selection.cells, (*selection.notes, *unserved, *device_notes(cells)))
    costs = CostModel(
        costs_in(arguments.costs, costs_of), recording=arguments.record, confirming=True
    )
    judged = frozenset(one.cell.cell_id for one in cells if has_baseline(one.cell))
    importance = Importance(judged, rules.targets_first, _turn())
    fitted = _fit_by_class(cells, costs, arguments.budget_minutes, importance)
    shards = split(fitted.groups, arguments.shards)
    long = _too_long(shards, arguments.shard_limit_minutes)
    selection = Selection(selection.cells, (*selection.notes, *long))
    plan = plan_document(suite, selection, cells, fitted, shards, costs)
    text = plan.model_dump_json(indent=2) + "\n"
    if arguments.output:
        write_text(arguments.output, text)
    if arguments.github_output:
        write_text(
            arguments.github_output,
            github_output(plan.shards, plan.gated_metric_count),
            "--github-output",
            mode="a",
        )
    print(text if arguments.json else plan_text(plan), end="")
    return ExitStatus.OK


def _suite(arguments: argparse.Namespace) -> tuple[Suite, tuple[Path, ...]]:
    """The suite, and the directories whose baselines approve its cells."""
    own, baselines = suite_of(arguments), baselines_of(arguments)
    if arguments.judge_from is None:
        return own, (baselines,)
    from k3perf.run.engine_environment import cache_directory
    from k3perf.store.base_checkout import judge_from

    root = own.root.parent
    cache = cache_directory(root / ".k3perf")
    judge = judge_from(root, arguments.judge_from, cache, option="--judge-from")
    return judged_suite(own, judge.suite), (baselines, judge.baselines_directory)


def _record(paths: list[Path], output: Path) -> int:
    from k3perf.store.atomic import replace_file
    from k3perf.store.results import read_results

    files = files_named("results.jsonl", paths)
    runs = [read_results(file) for file in files]
    # files of the first harness versions have no line for a session's end; there the
    # median bears with one that was cut short
    ended = [
        run.sessions[name]
        for run in runs
        for name in run.sessions
        if name in (run.ended_sessions or run.sessions)
    ]
    costs = record_costs(
        (session for session in ended if not session.injected), runs=(run.run_id for run in runs)
    )
    if not costs.session_s:
        raise UsageError(
            f"{', '.join(map(str, paths))}: no finished session found. Give results.jsonl"
            " files of finished runs."
        )
    earlier = costs_in(output, output.parent) if output.exists() else RecordedCosts()
    replace_file(output, costs.over(earlier).model_dump_json(indent=1) + "\n")
    print(
        f"{len(costs.session_s)} cells and {len(costs.engine_start_s)} engines of {len(files)} runs"
        f" written to {output}"
    )
    return ExitStatus.OK


def _too_long(shards: Iterable[Shard], limit_minutes: float | None) -> tuple[str, ...]:
    """A note for each shard that its job's limit would end."""
    if limit_minutes is None:
        return ()
    return tuple(
        f"shard {shard.hardware_class}-{shard.index} needs {shard.duration_s / 60:.0f} min, its"
        f" job ends after {limit_minutes:g}. Use more runners (--shards), or a smaller budget."
        for shard in shards
        if shard.duration_s > 60 * limit_minutes
    )


def _turn() -> str:
    """The commit, by which cells of a wide plan take turns. Empty: no repository."""
    try:
        return Repository(Path.cwd()).merge_base("HEAD")
    except UsageError:
        return ""


def _selection(suite: Suite, arguments: argparse.Namespace, rules: CiRules) -> Selection:
    if arguments.changed_since is None:
        return select_all(suite, "the whole suite was requested")
    repository = Repository(Path.cwd())
    return select(
        suite,
        repository.changed_since(arguments.changed_since),
        suite_folder=arguments.suite.as_posix(),
        rules=rules,
    )


def wanted_targets(suite: Suite, arguments: argparse.Namespace) -> set[str]:
    """Names of the targets that the options ask for."""
    named = (
        {suite.target(name).name for name in arguments.target}
        if arguments.target
        else set(suite.targets)
    )

    def fits(name: str) -> bool:
        target = suite.targets[name]
        whole = target.model.weights == "checkpoint"
        if (
            arguments.hardware_classes is not None
            and target.hardware.hardware_class not in arguments.hardware_classes.split(",")
        ):
            return False
        return (arguments.kind in (None, target.hardware.kind)) and arguments.whole_model in (
            None,
            "only" if whole else "never",
        )

    return {name for name in named if fits(name)}


def served_by_class(
    suite: Suite, cells: tuple[SelectedCell, ...]
) -> tuple[tuple[SelectedCell, ...], tuple[str, ...]]:
    """The cells that every runner of their class can serve, and a note for each other
    one: a CPU class promises instruction sets.
    """
    kept, notes = [], []
    for selected in cells:
        cell, hardware = selected.cell, selected.cell.target.hardware
        refusal = (
            suite.refusal_here(cell.target, cell.config, hardware.cpu_features)
            if hardware.kind == "cpu"
            else None
        )
        if refusal is None:
            kept.append(selected)
        else:
            needed = ", ".join(refusal.without_cpu_features)
            notes.append(
                f"{cell.cell_id} is not planned: {refusal.reason}; not every"
                f" {hardware.hardware_class} has {needed}"
            )
    return tuple(kept), tuple(notes)


def _approved(
    cells: tuple[SelectedCell, ...], has_baseline: HasBaseline
) -> tuple[tuple[SelectedCell, ...], tuple[str, ...]]:
    """The cells that have a baseline or should have one, and a note for each reason why
    others are candidates.
    """
    found = candidates_of((selected.cell for selected in cells), has_baseline)
    reasons: dict[str, list[str]] = {}
    for entry in found:
        reasons.setdefault(entry.reason, []).append(entry.cell.cell_id)
    notes = tuple(
        f"not planned without --candidates: {listed(names)}. No baseline: {reason}"
        for reason, names in reasons.items()
    )
    left_out = {entry.cell.cell_id for entry in found}
    return tuple(one for one in cells if one.cell.cell_id not in left_out), notes


def with_notes(selection: Selection, hardware_classes: str | None) -> Selection:
    """A touched cell that has no runner must show somewhere."""
    if hardware_classes is None:
        return selection
    hardware = [selected.cell.target.hardware for selected in selection.cells]
    absent = Counter(item.hardware_class for item in hardware)
    needs = {
        item.hardware_class: f" ({', '.join(item.cpu_features)} is needed)"
        for item in hardware
        if item.cpu_features
    }
    notes = tuple(
        f"{count} touched cells on {name} are not measured: no runner of this"
        f" class{needs.get(name, '')}"
        for name, count in absent.items()
        if name not in hardware_classes.split(",")
    )
    return Selection(selection.cells, (*selection.notes, *notes))


def device_notes(cells: Iterable[SelectedCell]) -> tuple[str, ...]:
    """Devices of this machine that do not answer, where cells for such devices are
    planned.
    """
    from k3perf.telemetry.hardware import silent_device_notes

    if all(selected.cell.target.hardware.kind != "nvidia" for selected in cells):
        return ()
    return tuple(f"on this machine {note}" for note in silent_device_notes())


def costs_in(path: Path | None, suite: Path) -> RecordedCosts:
    """The recorded costs, of the suite where no path is given. None recorded: empty."""
    chosen = path if path is not None else suite / "costs.json"
    if path is None and not chosen.exists():
        return RecordedCosts()
    next_step = "Correct or delete the file. Costs are only estimates."
    return read_record(RecordedCosts, chosen, next_step)


def _fit_by_class(
    cells: tuple[SelectedCell, ...],
    costs: CostModel,
    budget_minutes: float | None,
    importance: Importance,
) -> Fitted:
    budget_s = None if budget_minutes is None else budget_minutes * SECONDS_PER_MINUTE
    classes = dict.fromkeys(selected.cell.target.hardware.hardware_class for selected in cells)
    parts = [
        fit_budget(
            (
                selected
                for selected in cells
                if selected.cell.target.hardware.hardware_class == name
            ),
            costs,
            budget_s,
            importance,
        )
        for name in classes
    ]
    return Fitted(
        tuple(group for part in parts for group in part.groups),
        tuple(entry for part in parts for entry in part.left_out),
        over_budget=any(part.over_budget for part in parts),
    )
