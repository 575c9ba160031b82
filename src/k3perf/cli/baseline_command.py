"""``k3perf baseline propose | accept | show``: recorded runs to a reviewable proposal,
and the only way into ``baselines/``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from k3perf.baselines.accept import (
    accepted,
    changes,
    objections,
    strictest_policy,
)
from k3perf.baselines.need import omitted_text, only_testable
from k3perf.baselines.propose import propose
from k3perf.baselines.testable import testable
from k3perf.ci.commits import distinct_commits
from k3perf.cli.baseline_lines import (
    Refusal,
    accepted_gains,
    environment_lines,
    mending,
    scaling_lines,
    target_baselines,
)
from k3perf.cli.output import login_name
from k3perf.cli.shared_options import add_baselines_option, add_suite_option, baselines_of, suite_of
from k3perf.config.suite import Suite
from k3perf.errors import ExitStatus, UnknownNameError, UsageError
from k3perf.records.baseline import Acceptance, Baseline
from k3perf.records.measurement import CellMeasurement, MeasurementFile
from k3perf.report.baseline_table import committed_table, proposal_table
from k3perf.store.baselines import (
    Proposal,
    read_baseline,
    read_proposals,
    read_target_baselines,
    write_baseline,
    write_proposal,
)
from k3perf.store.measurements import read_measurement_file

PENDING = "(pending)"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("baseline", help="propose, accept and show committed baselines")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    proposing = _register_propose(actions)
    accepting = actions.add_parser("accept", help="write pending proposals into the baselines")
    accepting.add_argument(
        "cells", nargs="*", metavar="TARGET/CONFIG", help="which proposals (default: all)"
    )
    accepting.add_argument(
        "--reason", required=True, help="why these numbers are right, at least 8 characters"
    )
    accepting.add_argument("--by", default="", help="who accepts (default: the login name)")
    accepting.set_defaults(run=run_accept)
    showing = actions.add_parser("show", help="print committed baselines")
    showing.add_argument(
        "cells", nargs="*", metavar="TARGET/CONFIG", help="which baselines (default: all)"
    )
    showing.set_defaults(run=run_show)
    for action in (proposing, accepting, showing):
        add_suite_option(action)
        add_baselines_option(action)
    for action in (proposing, accepting):
        action.add_argument(
            "--proposals",
            metavar="DIR",
            default=".k3perf/proposals",
            help="directory of pending proposals (default: .k3perf/proposals)",
        )


def _register_propose(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    proposing = actions.add_parser(
        "propose",
        help="make proposals from measurements.json files; writes no baseline",
        epilog="exit status: 4 when accept would refuse a proposal",
    )
    proposing.add_argument(
        "results",
        nargs="+",
        metavar="RESULT",
        help="measurements.json of a run, or the run's directory",
    )
    proposing.add_argument(
        "--new-anchor",
        action="store_true",
        help="start a new anchor for the cumulative cap; accept then needs a reason for it",
    )
    proposing.add_argument(
        "--across-commits",
        action="store_true",
        help=(
            "combine runs of several commits, all named in the baseline: for recordings of several"
            " days"
        ),
    )
    proposing.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TARGET/CONFIG",
        help="propose only this one; repeatable",
    )
    proposing.add_argument(
        "--only-testable",
        action="store_true",
        help=(
            "leave every metric out of the gate that the recorded noise cannot test; where that is"
            " all timings, the gate is lock and memory only"
        ),
    )
    proposing.set_defaults(run=run_propose)
    return proposing


def _measurement_files(names: Sequence[str]) -> list[MeasurementFile]:
    """The measurement files of the named runs. Raises UsageError for a run that is
    named twice, or that had an injected fault.
    """
    found: dict[str, str] = {}
    files = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            path /= "measurements.json"
        file = read_measurement_file(path)
        if file.injected:
            raise UsageError(
                f"{path} was measured with an injected fault ({file.injected}); a baseline"
                " needs the unmodified engine."
            )
        if file.run_id in found:
            raise UsageError(
                f"{path} and {found[file.run_id]} hold the same run {file.run_id}; its sessions"
                " would count twice. Name it once."
            )
        found[file.run_id] = str(path)
        files.append(file)
    return files


def run_propose(arguments: argparse.Namespace) -> int:
    """Write one proposal for each (target, config). Print its table and objections."""
    suite, root = suite_of(arguments), baselines_of(arguments)
    files = _measurement_files(arguments.results)
    groups: dict[tuple[str, str], list[CellMeasurement]] = {}
    for file in files:
        for cell in file.cells:
            groups.setdefault((cell.target, cell.config), []).append(cell)
    if not groups:
        raise UsageError("nothing to propose: the given files contain no measured cell.")
    chosen = _chosen(
        arguments.only,
        tuple(f"{target}/{config}" for target, config in groups),
        "recording",
        "The files contain no other.",
    )
    wanted = {key: cells for key, cells in sorted(groups.items()) if "/".join(key) in chosen}
    if not arguments.across_commits:
        for target, config in wanted:
            _require_one_commit(target, config, files)
    proposed = {
        key: _propose(suite, root, cells, files, new_anchor=arguments.new_anchor)
        for key, cells in wanted.items()
    }
    refused = [
        problem
        for baseline in proposed.values()
        if (problem := _put_forward(suite, root, baseline, proposed, arguments)) is not None
    ]
    if refused:
        sys.stdout.write(mending(refused, arguments.results))
        return ExitStatus.USAGE
    sys.stdout.write('Review the tables, then: k3perf baseline accept --reason "WHY"\n')
    return ExitStatus.OK


def _put_forward(
    suite: Suite,
    root: Path,
    baseline: Baseline,
    proposed: Mapping[tuple[str, str], Baseline],
    arguments: argparse.Namespace,
) -> Refusal | None:
    """Write one proposal, and print its table and what stands against it."""
    target, config = baseline.target, baseline.config
    previous = read_baseline(root, target, config)
    policy = strictest_policy(suite, target, target_baselines(root, target, proposed.values()))
    if arguments.only_testable:
        baseline = only_testable(baseline, testable(baseline, policy))
    rows = changes(baseline, previous, policy.known_tolerances)
    against = objections(
        baseline,
        previous,
        policy,
        new_anchor=arguments.new_anchor,
        step="it needs --new-anchor with a reason",
    )
    path = write_proposal(
        Path(arguments.proposals),
        Proposal(
            schema_version=1,
            new_anchor=arguments.new_anchor,
            objections=against,
            baseline=baseline,
        ),
    )
    sys.stdout.write(f"{target}/{config} -> {path}\n{proposal_table(rows)}")
    sys.stdout.writelines(
        f"  {line}\n"
        for line in (
            *scaling_lines(suite, root, baseline),
            *environment_lines(baseline),
            *omitted_text(baseline),
        )
    )
    sys.stdout.writelines(f"  cannot be accepted: {objection}\n" for objection in against)
    if not against:
        return None
    noisy_count = len(testable(baseline, policy))
    return Refusal(target, config, bool(noisy_count), len(against) > noisy_count)


def run_accept(arguments: argparse.Namespace) -> int:
    """Write waiting proposals into the baselines. One refused proposal stops all of
    them.
    """
    suite, root = suite_of(arguments), baselines_of(arguments)
    waiting = {
        f"{proposal.baseline.target}/{proposal.baseline.config}": (path, proposal)
        for path, proposal in read_proposals(Path(arguments.proposals))
    }
    chosen = _chosen(
        arguments.cells, tuple(waiting), "proposal", "Run k3perf baseline propose first."
    )
    if len(arguments.reason) < 8:
        raise UsageError(
            f"the reason {arguments.reason!r} is too short for a reviewer; write a sentence."
        )
    if not chosen:
        raise UsageError(
            f"no proposal in {arguments.proposals}. Run k3perf baseline propose RESULT first."
        )
    refused = []
    proposals = [waiting[name][1] for name in chosen]
    for name, proposal in zip(chosen, proposals, strict=True):
        refused += [
            f"{name}: {objection}"
            for objection in _objections_now(suite, root, proposal, proposals)
        ]
    if refused:
        raise UsageError(
            "not accepted, nothing was written:\n" + "\n".join(f"  {line}" for line in refused)
        )
    gains = {name: accepted_gains(suite, root, waiting[name][1], proposals) for name in chosen}
    for name in chosen:
        path, proposal = waiting[name]
        written = write_baseline(
            root,
            accepted(
                proposal.baseline,
                by=arguments.by or login_name(),
                reason=arguments.reason,
                at=datetime.now(UTC),
            ),
        )
        path.unlink()
        sys.stdout.write(f"wrote {written}\n")
        sys.stdout.writelines(f"  {line}\n" for line in gains[name])
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Print committed baselines with their provenance and noise."""
    suite = suite_of(arguments)
    root = baselines_of(arguments, existing=arguments.baselines is not None)
    found = {
        f"{target}/{baseline.config}": baseline
        for target in suite.targets
        for baseline in read_target_baselines(root, target)
    }
    chosen = _chosen(
        arguments.cells,
        tuple(found),
        "baseline",
        "Record it with k3perf baseline propose and accept.",
    )
    for name in chosen:
        baseline = found[name]
        acceptance = baseline.acceptance
        sys.stdout.write(
            f"{name} on {baseline.hardware_class}, accepted by {acceptance.accepted_by} at"
            f" {acceptance.accepted_at_utc} ({acceptance.reason}), commit {acceptance.commit}, runs"
            f" {', '.join(acceptance.run_ids)}\n"
        )
        sys.stdout.writelines(f"  {line}\n" for line in environment_lines(baseline))
        known = strictest_policy(suite, baseline.target, ()).known_tolerances
        sys.stdout.write(committed_table(changes(baseline, baseline, known)))
    if not chosen:
        sys.stdout.write(f"no baseline is committed in {root}\n")
    return 0


def _sources(target: str, config: str, files: Sequence[MeasurementFile]) -> list[MeasurementFile]:
    return [
        file
        for file in files
        if any((cell.target, cell.config) == (target, config) for cell in file.cells)
    ]


def _require_one_commit(target: str, config: str, files: Sequence[MeasurementFile]) -> None:
    commits = sorted(distinct_commits(file.commit for file in _sources(target, config, files)))
    if len(commits) > 1:
        raise UsageError(
            f"{target}/{config}: the runs come from different commits ({', '.join(commits)})."
            " Propose from runs of one commit, or add --across-commits if the changes between them"
            " do not affect the measurements."
        )


def _propose(
    suite: Suite,
    root: Path,
    cells: Sequence[CellMeasurement],
    files: Sequence[MeasurementFile],
    *,
    new_anchor: bool,
) -> Baseline:
    target, config = cells[0].target, cells[0].config
    suite.config(config)
    sources = _sources(target, config, files)
    acceptance = Acceptance(
        accepted_by=PENDING,
        reason="not accepted yet",
        accepted_at_utc=PENDING,
        commit=", ".join(distinct_commits(file.commit for file in sources)),
        run_ids=tuple(dict.fromkeys(file.run_id for file in sources)),
    )
    return propose(
        cells,
        versions=_agreed(sources),
        policy=strictest_policy(suite, target, ()),
        previous=read_baseline(root, target, config),
        acceptance=acceptance,
        new_anchor=new_anchor,
    )


def _agreed(sources: Sequence[MeasurementFile]) -> dict[str, str]:
    """Values that all runs agree on. The sessions' environments are kept one by one."""
    first = sources[0].identity
    return {
        name: value
        for name, value in first.items()
        if all(file.identity.get(name) == value for file in sources)
    }


def _objections_now(
    suite: Suite, root: Path, proposal: Proposal, proposals: Sequence[Proposal]
) -> tuple[str, ...]:
    """Objections to a proposal when all ``proposals`` are accepted."""
    baseline = proposal.baseline
    together = target_baselines(root, baseline.target, [item.baseline for item in proposals])
    return objections(
        baseline,
        read_baseline(root, baseline.target, baseline.config),
        strictest_policy(suite, baseline.target, together),
        new_anchor=proposal.new_anchor,
        step="propose it with --new-anchor and say why",
    )


def _chosen(
    names: Sequence[str], known: tuple[str, ...], kind: str, next_step: str
) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise UnknownNameError(kind, name, known, next_step)
    return tuple(names) or known
