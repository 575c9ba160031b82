"""``k3perf ci check-judge``: what a change does to the rules that judge it, and whether
a person acknowledged it. Reads the files of both sides and runs none of them.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from k3perf.baselines.changes import MAXIMUM_BASELINE_BYTES
from k3perf.baselines.waivers import check_waivers
from k3perf.ci.judge_baselines import Baselines, baseline_changes, waiver_changes
from k3perf.ci.judge_changes import NOTHING, Effect, JudgeChange, suite_changes
from k3perf.ci.judge_table import counted, markdown_table, sorted_changes, text_table
from k3perf.cli.output import print_or_write
from k3perf.cli.shared_options import add_suite_option, suite_of
from k3perf.documents import read_text
from k3perf.errors import ConfigFileError, ExitStatus, UsageError, shortened
from k3perf.records.baseline import Baseline
from k3perf.store.base_checkout import BASELINES_FOLDER, SUITE_FOLDER, Judge, judge_from
from k3perf.store.baselines import RESTORE, parse_baseline, read_waivers
from k3perf.store.repository import Repository

_WAIVERS = "waivers.yaml"


def register_check_judge(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``check-judge``."""
    parser = commands.add_parser(
        "check-judge",
        help="show what a change does to tolerances, plans, cells, baselines and waivers",
        epilog="exit status: 15 when a rule became looser and no person acknowledged it",
    )
    parser.add_argument(
        "--base", required=True, metavar="REF", help="what the change is compared with"
    )
    parser.add_argument(
        "--head",
        metavar="REF",
        help="the change, read from git (default: the work tree)",
    )
    parser.add_argument(
        "--acknowledge",
        metavar="COMMIT",
        help="full hash of the head commit: a person has read its table",
    )
    parser.add_argument(
        "--format",
        choices=("text", "markdown"),
        default="text",
        help="form of the table (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write there instead of printing"
    )
    add_suite_option(parser)
    parser.set_defaults(run=run_check_judge)


def run_check_judge(arguments: argparse.Namespace) -> int:
    """Status 15 for a finding that is not acknowledged."""
    repository = Repository(Path.cwd())
    acknowledged = _acknowledged(repository, arguments.head, arguments.acknowledge)
    with tempfile.TemporaryDirectory() as scratch:
        changes = sorted_changes(tuple(_changes(repository, arguments, Path(scratch))))
    text = (
        text_table(changes)
        if arguments.format == "text"
        else markdown_table(changes, acknowledged=acknowledged)
    )
    print_or_write(text, arguments.output)
    if arguments.output is not None:
        print(counted(changes))
    if not any(one.finding for one in changes):
        return ExitStatus.OK
    if acknowledged:
        sys.stderr.write(f"k3perf: acknowledged for commit {arguments.acknowledge}\n")
        return ExitStatus.OK
    sys.stderr.write(
        "k3perf: the change alters what judges it. Undo that, or let a person read the table and"
        " acknowledge the commit (docs/ci.md).\n"
    )
    return ExitStatus.JUDGE_CHANGED


def _acknowledged(repository: Repository, head: str | None, given: str | None) -> bool:
    """Whether ``given`` names the judged commit. Raises UsageError when it names
    another, so that an acknowledgement never covers what no person read.
    """
    if given is None:
        return False
    commit = repository.checked_out() if head is None else repository.commit(head)
    if given != commit:
        raise UsageError(
            f"--acknowledge {shortened(given)!r}: the change is {commit}. Read its table, and give"
            " the full hash of a commit without changed files."
        )
    return True


def _changes(
    repository: Repository, arguments: argparse.Namespace, scratch: Path
) -> Iterator[JudgeChange]:
    commit = repository.merge_base(arguments.base, arguments.head or "HEAD")
    base = judge_from(repository.root, commit, scratch, option="--base")
    before = _baselines(base.baselines_directory)
    approved = frozenset(key for key, found in before.items() if isinstance(found, Baseline))
    head = _head(repository, arguments, scratch)
    if isinstance(head, JudgeChange):
        yield head
        return
    yield from suite_changes(base.suite, head.suite, approved)
    yield from baseline_changes(before, _baselines(head.baselines_directory))
    yield from _waivers(base, head, scratch)
    yield from _other_files(base.baselines_directory, head.baselines_directory)


def _head(
    repository: Repository, arguments: argparse.Namespace, scratch: Path
) -> Judge | JudgeChange:
    """The change's side. A commit may hold files of a later release, which this one
    does not read: that is a finding.
    """
    if arguments.head is None:
        suite = suite_of(arguments)
        return Judge("the work tree", suite, suite.root.parent / BASELINES_FOLDER)
    commit = repository.commit(arguments.head)
    try:
        return judge_from(repository.root, commit, scratch, option="--head")
    except UsageError as error:
        return JudgeChange("file", SUITE_FOLDER, "read", _said(error, scratch), Effect.CHANGED)


def _said(error: UsageError, scratch: Path) -> str:
    """The message without the place of the exported files."""
    return re.sub(rf"{re.escape(str(scratch))}/judges/[0-9a-f]+/", "", str(error))


def _baselines(directory: Path) -> Baselines:
    return {
        (path.parent.name, path.stem): _baseline(path)
        for path in sorted(directory.glob("*/*.json"))
    }


def _baseline(path: Path) -> Baseline | str:
    """The file's digest is not checked: the table says whether it fits."""
    if not path.is_file() or path.stat().st_size > MAXIMUM_BASELINE_BYTES:
        return f"is not a file of at most {MAXIMUM_BASELINE_BYTES:,} bytes"
    try:
        baseline = parse_baseline(path, read_text(path, RESTORE) or "")
    except ConfigFileError as error:
        return f"is not a baseline: {error.problem}"
    if (baseline.target, baseline.config) != (path.parent.name, path.stem):
        return f"is the baseline of {baseline.target}/{baseline.config}"
    return baseline


def _waivers(base: Judge, head: Judge, scratch: Path) -> Iterator[JudgeChange]:
    before = read_waivers(base.baselines_directory / _WAIVERS)
    path = head.baselines_directory / _WAIVERS
    try:
        after = read_waivers(path)
        if after != before:
            check_waivers(after, head.suite, path, today=datetime.now(UTC).date())
    except UsageError as error:
        yield JudgeChange("waiver", _WAIVERS, NOTHING, _said(error, scratch), Effect.LOOSER)
    else:
        yield from waiver_changes(before, after)


def _other_files(base: Path, head: Path) -> Iterator[JudgeChange]:
    """Such as the maximum sustainable rates, which decide a workload's plan."""
    names = {path.relative_to(root) for root in (base, head) for path in _others(root)}
    for name in sorted(names):
        was, now = (_content(root / name) for root in (base, head))
        if was != now:
            yield JudgeChange(
                "file", f"baselines/{name}", _digest(was), _digest(now), Effect.CHANGED
            )


def _others(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        own = path.relative_to(root)
        is_baseline = len(own.parts) == 2 and path.suffix == ".json"
        if path.is_file() and not is_baseline and own != Path(_WAIVERS):
            yield path


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _digest(content: bytes | None) -> str:
    return NOTHING if content is None else f"sha256 {hashlib.sha256(content).hexdigest()[:12]}"
