"""``k3perf history``: nightly results to the history file, and the history to slides,
an issue's text and a page.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from k3perf.ci.history import (
    AcknowledgedSlide,
    HistoryEntry,
    Series,
    Slide,
    entries_of,
    series_of,
    slides,
    unmeasured,
)
from k3perf.cli.output import write_text
from k3perf.cli.shared_options import add_suite_option, files_named, suite_of
from k3perf.documents import DocumentProblem, Misfit, json_of, read_text, validated, yaml_of
from k3perf.errors import ConfigFileError, ExitStatus

_NEXT_STEP = "Take the file from the perf-history branch; a broken line can be deleted."


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``history``."""
    parser = subparsers.add_parser(
        "history", help="keep the nightly numbers and find slides in them"
    )
    commands = parser.add_subparsers(dest="history_command", metavar="COMMAND", required=True)
    append = commands.add_parser(
        "append", help="add a night's measurements; a run that is already there is not added twice"
    )
    append.add_argument(
        "results",
        nargs="+",
        type=Path,
        help="measurements.json files, or directories that hold them",
    )
    append.set_defaults(run=run_append)
    missing = commands.add_parser(
        "unmeasured",
        help="name the planned cells without a valid session",
        epilog="exit status: 10 when a planned cell has no valid session",
    )
    missing.add_argument(
        "results",
        nargs="+",
        type=Path,
        help="measurements.json files, or directories that hold them",
    )
    missing.add_argument(
        "--plan", type=Path, required=True, metavar="FILE", help="plan.json of the night"
    )
    missing.set_defaults(run=run_unmeasured)
    changes = _register_changes(commands)
    page = commands.add_parser("page", help="write the history as one HTML page")
    page.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="HTML file to write"
    )
    page.set_defaults(run=run_page)
    for command in (changes, page):
        add_suite_option(command)
    for command in (append, changes, page):
        command.add_argument(
            "--history",
            type=Path,
            required=True,
            metavar="PATH",
            help="directory of the saved nights, or history.jsonl",
        )


def _register_changes(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    changes = commands.add_parser("changes", help="find regressions that later nights confirm")
    changes.add_argument("--json", action="store_true", help="print the slides as JSON")
    changes.add_argument(
        "--issue",
        type=Path,
        metavar="FILE",
        help="write the text of an issue there if there is a slide",
    )
    changes.add_argument(
        "--github-output",
        type=Path,
        metavar="FILE",
        help="append slides=true or slides=false for a workflow",
    )
    changes.set_defaults(run=run_changes)
    return changes


def read_history(path: Path) -> tuple[HistoryEntry, ...]:
    """Every line, of a missing file none. Of a directory its nights, and the lines of
    an older ``history.jsonl`` there. Raises ConfigFileError that names the first line
    that is not an entry.
    """
    if path.is_dir():
        from k3perf.ci.nights import history_entries
        from k3perf.store.nights import read_nights

        return (*read_history(path / "history.jsonl"), *history_entries(read_nights(path)))
    found = []
    for number, line in enumerate((read_text(path, _NEXT_STEP) or "").splitlines(), start=1):
        try:
            found.append(validated(HistoryEntry, json_of(line), "a history entry"))
        except DocumentProblem as problem:
            at = f" at {problem.place}" if isinstance(problem, Misfit) and problem.place else ""
            raise ConfigFileError(
                path, f"line {number}", None, f"{problem.problem}{at}", _NEXT_STEP
            ) from None
    return tuple(found)


def run_append(arguments: argparse.Namespace) -> int:
    """Appends what is new."""
    from k3perf.store.measurements import read_measurement_file

    known = {
        (entry.run_id, entry.target, entry.config, entry.workload, entry.metric)
        for entry in read_history(arguments.history)
    }
    fresh: list[HistoryEntry] = []
    files = files_named("measurements.json", arguments.results)
    for measured in map(read_measurement_file, files):
        fresh += entries_of(
            measured.cells,
            run_id=measured.run_id,
            commit=measured.commit,
            created_at_utc=measured.created_at_utc,
            vllm_version=measured.identity.get("vllm", "absent"),
        )
    fresh = [
        entry
        for entry in fresh
        if (entry.run_id, entry.target, entry.config, entry.workload, entry.metric) not in known
    ]
    write_text(
        arguments.history,
        "".join(entry.model_dump_json() + "\n" for entry in fresh),
        "--history",
        make_folder=True,
        mode="a",
    )
    print(f"{len(fresh)} entries of {len(files)} measurements.json added to {arguments.history}")
    return ExitStatus.OK


def run_unmeasured(arguments: argparse.Namespace) -> int:
    """Status 10 and one line a cell, on GitHub as errors, when a planned cell has no
    valid session.
    """
    from k3perf.cli.ci_command import read_plan
    from k3perf.store.measurements import read_measurement_file

    plan = read_plan(arguments.plan)
    files = files_named("measurements.json", arguments.results)
    lost = unmeasured(
        (entry.cell for entry in plan.cells),
        [cell for file in files for cell in read_measurement_file(file).cells],
    )
    prefix = "::error::" if os.environ.get("GITHUB_ACTIONS") else ""
    for cell in lost:
        print(f"{prefix}{cell}: no valid session; see the log of its shard")
    print(f"{len(plan.cells) - len(lost)} of {len(plan.cells)} planned cells have a valid session")
    return ExitStatus.INVALID if lost else ExitStatus.OK


def run_changes(arguments: argparse.Namespace) -> int:
    """Status 0 with and without slides: an old loss does not fail tonight's run."""
    from k3perf.ci.history_page import issue

    all_series, found = _series_and_slides(arguments)
    if found and arguments.issue:
        write_text(arguments.issue, issue(found), "--issue")
    if arguments.github_output:
        write_text(
            arguments.github_output,
            f"slides={json.dumps(bool(found))}\n",
            "--github-output",
            mode="a",
        )
    sys.stdout.write(
        json.dumps([_plain(slide) for slide in found], indent=1) + "\n"
        if arguments.json
        else _lines(found, all_series)
    )
    return ExitStatus.OK


def _series_and_slides(
    arguments: argparse.Namespace,
) -> tuple[tuple[Series, ...], tuple[Slide, ...]]:
    """Every series, and the slides of those that a tolerance gates."""
    all_series = series_of(existing_history(arguments.history))
    if not (arguments.suite / "tolerances.yaml").is_file():
        sys.stderr.write(f"k3perf: {arguments.suite} is not a suite; every metric is tested\n")
        return all_series, slides(all_series)
    suite = suite_of(arguments)
    gated = {
        (cell.target.name, cell.config.name, cell.workload.name, metric)
        for cell in suite.cells()
        for metric in suite.tolerances.for_cell(
            cell.target.name, cell.config.name, cell.workload.name
        )
    }
    judged = [
        series
        for series in all_series
        if (series.target, series.config, series.workload, series.metric) in gated
    ]
    known = _acknowledged(arguments.suite / "acknowledged_slides.yaml")
    return all_series, slides(judged, acknowledged=known)


def _acknowledged(path: Path) -> tuple[AcknowledgedSlide, ...]:
    step = "Each entry has target, config, workload, metric, day (YYYY-MM-DD), by and reason."
    text = read_text(path, step)
    if text is None:
        return ()
    try:
        entries = yaml_of(text, words=True)
        return validated(tuple[AcknowledgedSlide, ...], [] if entries is None else entries)
    except DocumentProblem as problem:
        raise problem.at(path, step) from None


def existing_history(path: Path) -> tuple[HistoryEntry, ...]:
    """As ``read_history``, but the file must exist."""
    from k3perf.store.nights import night_files

    if not path.is_file() and not path.is_dir():
        raise ConfigFileError(
            path,
            "",
            None,
            "file not found",
            "Check out the branch perf-history, and name its directory.",
        )
    found = read_history(path)
    if path.is_dir() and not found and not night_files(path):
        raise ConfigFileError(path, "", None, "holds no night", _NEXT_STEP)
    return found


def _plain(slide: Slide) -> dict[str, object]:
    series = slide.series
    return {
        "target": series.target,
        "config": series.config,
        "workload": series.workload,
        "metric": series.metric,
        "first_run_id": slide.first.run_id,
        "first_commit": slide.first.commit,
        "before_value": slide.before_value,
        "after_value": slide.after_value,
        "loss_ratio": slide.loss_ratio,
        "p_value": slide.p_value,
        "nights_since": slide.nights_since,
    }


def _lines(found: tuple[Slide, ...], all_series: tuple[Series, ...]) -> str:
    if not found:
        longest = max((len(series.values) for series in all_series), default=0)
        return f"no confirmed slide in {len(all_series)} series, the longest of {longest} nights\n"
    return "".join(
        f"{slide.series.target}-{slide.series.config}-{slide.series.workload}"
        f" {slide.series.metric}: {_loss(slide)} since {slide.first.created_at_utc}"
        f" ({slide.nights_since} nights, p {slide.p_value:.1e})\n"
        for slide in found
    )


def _loss(slide: Slide) -> str:
    if slide.loss_ratio is None:
        return f"{slide.before_value} -> {slide.after_value}"
    return f"{slide.loss_ratio:+.1%}"


def run_page(arguments: argparse.Namespace) -> int:
    """Writes the page, and its folder where there is none."""
    from k3perf.ci.history_page import page

    all_series, found = _series_and_slides(arguments)
    write_text(arguments.output, page(all_series, found), make_folder=True)
    print(f"wrote {arguments.output}")
    return ExitStatus.OK
