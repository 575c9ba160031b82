"""``k3perf ci ...`` and ``k3perf merge``: the commands of the workflows. They read
result files as hostile input and end with the outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from k3perf.ci.merging import merge, retry_shards
from k3perf.cli.judge_command import register_check_judge
from k3perf.cli.output import print_or_write, write_text
from k3perf.cli.shared_options import add_suite_option, files_named, suite_of
from k3perf.documents import LARGEST_FOREIGN_BYTES, Misfit, foreign_record, validated
from k3perf.errors import ExitStatus, UsageError
from k3perf.records.outcome import exit_status
from k3perf.records.plan_file import PlanDocument
from k3perf.records.verdict import VerdictDocument

_MAXIMUM_FILES = 600


class RunnerRecord(BaseModel):
    """``runner.json`` next to a shard's results: where they were measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shard: str = Field(max_length=200)
    runner: str = Field(max_length=200)
    pool: str = Field(max_length=20, pattern=r"^[a-z0-9]*$")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``merge`` and ``ci``."""
    _register_merge(subparsers)
    commands = subparsers.add_parser(
        "ci", help="render results for GitHub and guard its pull requests"
    ).add_subparsers(dest="ci_command", metavar="COMMAND", required=True)
    for name, run, text in (
        ("comment", run_comment, "write the pull request's sticky comment"),
        ("summary", run_summary, "write the job summary"),
        ("annotations", run_annotations, "write annotations on the config files"),
    ):
        parser = commands.add_parser(
            name,
            help=text,
            epilog="exit status: 0 for every verdict, and for an invalid file, which it reports",
        )
        parser.add_argument("verdict", type=Path, help="verdict.json of a run or of k3perf merge")
        parser.add_argument("--plan", type=Path, help="plan.json, to name the excluded cells")
        parser.add_argument(
            "--output", type=Path, metavar="FILE", help="write there instead of printing"
        )
        if name != "annotations":
            parser.add_argument(
                "--run-url",
                default="",
                metavar="URL",
                help="page of the run, which has the HTML report and the results",
            )
        if name == "annotations":
            parser.add_argument(
                "--changed-since",
                metavar="REF",
                help="put annotations on the first line that differs from the merge base with REF",
            )
            parser.add_argument(
                "--head", default="HEAD", metavar="REF", help="the changed side (default: HEAD)"
            )
            parser.add_argument(
                "--format",
                choices=("commands", "check-run"),
                default="commands",
                help="form of the annotations (default: %(default)s)",
            )
            parser.add_argument(
                "--head-sha", default="", help="the commit that a check run belongs to"
            )
        parser.set_defaults(run=run)
    _register_guards(commands)


def _register_merge(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "merge",
        help="join the verdicts of a plan's shards; lost shards become INVALID cells",
        epilog="exit status: that of the joined verdict",
    )
    parser.add_argument(
        "results", nargs="*", type=Path, help="verdict files, or directories that hold them"
    )
    parser.add_argument(
        "--plan", type=Path, required=True, help="plan.json that the shards were made from"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the joined verdict there"
    )
    parser.add_argument("--strict", action="store_true", help="INCONCLUSIVE fails (exit status 13)")
    parser.set_defaults(run=run_merge)


def _register_guards(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    retry = commands.add_parser(
        "retry", help="write the matrix that measures INVALID cells again on another runner"
    )
    retry.add_argument("verdict", type=Path, help="verdict.json of k3perf merge")
    retry.add_argument("--plan", type=Path, required=True, help="plan.json of the first attempt")
    retry.add_argument(
        "--results",
        type=Path,
        help="directory of the first attempt's results, for their runner.json",
    )
    retry.add_argument("--pools", default="", metavar="A,B", help="names of the runner pools")
    retry.add_argument(
        "--github-output", type=Path, metavar="FILE", help="append the matrices there"
    )
    retry.set_defaults(run=run_retry)
    record = commands.add_parser(
        "record-runner", help="write runner.json: which runner measured a shard"
    )
    record.add_argument("--shard", required=True, help="name of the shard")
    record.add_argument("--output", type=Path, required=True, help="file to write")
    record.set_defaults(run=run_record_runner)
    baselines = commands.add_parser(
        "check-baselines",
        help="refuse baselines changed by hand, or with a loss and no reason",
        epilog="exit status: 4 when a baseline is refused",
    )
    baselines.add_argument(
        "--base", required=True, metavar="REF", help="what the branch is compared with"
    )
    add_suite_option(baselines)
    baselines.set_defaults(run=run_check_baselines)
    register_check_judge(commands)


def read_bounded(path: Path) -> bytes:
    """A regular file's bytes, at most ``LARGEST_FOREIGN_BYTES`` and one: links in
    artefacts could point anywhere. Raises UsageError.
    """
    if path.is_symlink() or not path.is_file():
        raise UsageError(
            f"{path}: not found, or not a regular file. Give the file that the run wrote."
        )
    try:
        with path.open("rb") as stream:
            return stream.read(LARGEST_FOREIGN_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def read_verdict(path: Path) -> VerdictDocument:
    """A verdict file. Raises UsageError."""
    return foreign_record(
        VerdictDocument,
        read_bounded(path),
        str(path),
        "a verdict file",
        "Give the verdict.json that a finished run wrote.",
    )


def read_plan(path: Path) -> PlanDocument:
    """A plan file. Raises UsageError."""
    return foreign_record(
        PlanDocument,
        read_bounded(path),
        str(path),
        "a plan file",
        "Write it with k3perf plan --output.",
    )


Renderer = Callable[[VerdictDocument, PlanDocument | None], str]


def _render(arguments: argparse.Namespace, render: Renderer, refused: Callable[[str], str]) -> int:
    """Render the verdict, or a refusal where it cannot be read. Status 0 both times:
    the poster did its job.
    """
    try:
        verdict = read_verdict(arguments.verdict)
        plan = read_plan(arguments.plan) if arguments.plan else None
    except UsageError as error:
        sys.stderr.write(f"k3perf: {error}\n")
        print_or_write(refused(str(error)), arguments.output)
    else:
        print_or_write(render(verdict, plan), arguments.output)
    return ExitStatus.OK


def run_comment(arguments: argparse.Namespace) -> int:
    """Status 0 even for unreadable results: then the comment says so."""
    from k3perf.ci.markdown import comment, refusal_comment

    return _render(arguments, partial(comment, run_url=arguments.run_url), refusal_comment)


def run_summary(arguments: argparse.Namespace) -> int:
    """As ``run_comment``."""
    from k3perf.ci.markdown import refusal_comment, summary

    return _render(arguments, partial(summary, run_url=arguments.run_url), refusal_comment)


def run_annotations(arguments: argparse.Namespace) -> int:
    """Workflow commands for the measuring workflow, or a check run's body for the
    reporting one.
    """
    from k3perf.ci.annotations import ChangedLines, check_run, refused_check_run, workflow_commands

    changed = ChangedLines(_changed_lines(arguments.changed_since, arguments.head))
    if arguments.format == "commands":
        return _render(
            arguments, lambda verdict, _: workflow_commands(verdict, changed), lambda _: ""
        )
    if not arguments.head_sha:
        raise UsageError("--format check-run needs --head-sha, the commit that was measured.")
    return _render(
        arguments,
        lambda verdict, plan: (
            json.dumps(check_run(verdict, plan, arguments.head_sha, changed)) + "\n"
        ),
        lambda reason: json.dumps(refused_check_run(reason, arguments.head_sha)) + "\n",
    )


def _changed_lines(base: str | None, head: str) -> dict[str, int]:
    if base is None:
        return {}
    from k3perf.store.repository import Repository

    repository = Repository(Path.cwd())
    return repository.first_changed_lines(repository.merge_base(base, head), head)


def _verdict_files(paths: list[Path]) -> list[Path]:
    found = files_named("verdict.json", paths)
    if len(found) > _MAXIMUM_FILES:
        raise UsageError(
            f"{len(found)} verdict files; a plan has at most {_MAXIMUM_FILES} with retries. Give"
            " one run's results."
        )
    return found


def run_merge(arguments: argparse.Namespace) -> int:
    """End with the joined verdict's exit status. An unreadable file counts as lost and
    is named.
    """
    plan = read_plan(arguments.plan)
    verdicts, unreadable = [], []
    for path in _verdict_files(arguments.results):
        try:
            verdicts.append(read_verdict(path))
        except UsageError as error:
            unreadable.append(str(error))
            sys.stderr.write(f"k3perf: {error}\n")
    for path in files_named("refused.txt", [p for p in arguments.results if p.is_dir()]):
        unreadable.append(read_bounded(path)[:300].decode("utf-8", "replace").strip())
    merged = merge(plan, verdicts, lost="; ".join(unreadable)[:1_000])
    if arguments.output:
        write_text(arguments.output, merged.to_json())
    print(
        f"{merged.outcome.value}: {len(merged.cells)} cells, {len(verdicts)} results,"
        f" {len(unreadable)} unreadable"
    )
    return exit_status(merged.outcome, strict=arguments.strict)


def run_retry(arguments: argparse.Namespace) -> int:
    """Print or append the matrices of one retry. Both are empty when no cell is
    INVALID.
    """
    from k3perf.ci.plan_output import github_output

    plan = read_plan(arguments.plan)
    pools = tuple(name for name in arguments.pools.split(",") if name)
    shards = retry_shards(
        plan, read_verdict(arguments.verdict), pools, _used_pools(arguments.results)
    )
    text = github_output(shards, plan.gated_metric_count)
    if arguments.github_output:
        write_text(arguments.github_output, text, "--github-output", mode="a")
    else:
        sys.stdout.write(text)
    return ExitStatus.OK


def _used_pools(folder: Path | None) -> dict[str, str]:
    used: dict[str, str] = {}
    for path in sorted(folder.rglob("runner.json"))[:_MAXIMUM_FILES] if folder is not None else []:
        try:
            record = foreign_record(
                RunnerRecord,
                read_bounded(path),
                str(path),
                "a runner record",
                "Any runner may take the retry.",
            )
        except UsageError as error:
            sys.stderr.write(f"k3perf: {error}\n")
            continue
        used[record.shard] = record.pool
    return used


def run_record_runner(arguments: argparse.Namespace) -> int:
    """Takes the runner's name and pool from the environment of the job."""
    pool = os.environ.get("K3PERF_POOL", "")
    runner = os.environ.get("RUNNER_NAME", "unknown")[:200]
    try:
        record = validated(RunnerRecord, {"shard": arguments.shard, "runner": runner, "pool": pool})
    except Misfit:
        raise UsageError(
            f"K3PERF_POOL is {pool!r}: use lower-case letters and digits, at most 20."
        ) from None
    write_text(arguments.output, record.model_dump_json() + "\n", make_folder=True)
    return ExitStatus.OK


def run_check_baselines(arguments: argparse.Namespace) -> int:
    """Status 0 when every changed baseline is one that ``accept`` wrote, with a reason
    for each loss.
    """
    from k3perf.baselines.changes import BaselineChange, check
    from k3perf.report.escaping import command_data, command_property, visible
    from k3perf.store.repository import Repository

    repository = Repository(Path.cwd())
    base = repository.merge_base(arguments.base)
    changed = [
        change
        for change in repository.changed_since(base)
        if change.path.startswith("baselines/") and change.path.endswith(".json")
    ]
    changes = [
        BaselineChange(
            change.path,
            repository.read_at(base, change.path),
            None if change.deleted else read_bounded(Path(change.path)),
        )
        for change in changed
    ]
    collected = frozenset(
        (cell.target.name, cell.config.name) for cell in suite_of(arguments).cells()
    )
    findings = check(changes, collected=collected)
    for finding in findings:
        text = f"{finding.problem}. {finding.next_step}"
        on_github = f"::error file={command_property(finding.path)}::{command_data(text)}"
        print(
            on_github
            if os.environ.get("GITHUB_ACTIONS")
            else f"{visible(finding.path, 300)}: {text}"
        )
    print(f"{len(changes)} baselines changed, {len(findings)} problems found")
    return ExitStatus.USAGE if findings else ExitStatus.OK
