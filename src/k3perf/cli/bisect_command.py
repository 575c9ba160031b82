"""``k3perf bisect``: the first commit or engine version with a loss, by the suite's own
judge in ab mode. It goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from k3perf.ci.bisection import Answer, Question, judged_point, next_step
from k3perf.cli.shared_options import add_suite_option, count, suite_of
from k3perf.errors import ExitStatus, UnknownNameError, UsageError
from k3perf.records.bisection import BisectionState, Finding, PointJudgement


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``bisect``."""
    parser = subparsers.add_parser(
        "bisect",
        help="find the commit or engine version that caused a loss",
        epilog="exit status: 0 with or without a culprit, 10 when the evidence cannot decide",
    )
    parser.add_argument("good", metavar="GOOD", help="commit or engine version before the loss")
    parser.add_argument("bad", metavar="BAD", help="commit or engine version with the loss")
    parser.add_argument("--cell", required=True, metavar="CELL", help="TARGET-CONFIG-WORKLOAD")
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="an engine version and its Python, from old to new; repeatable (default: commits)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        default=Path(".k3perf/bisect.json"),
        metavar="FILE",
        help="file that keeps the comparisons so far (default: %(default)s)",
    )
    parser.add_argument(
        "--attempts",
        type=count,
        default=2,
        metavar="N",
        help="most runs of an undecided or INVALID point (default: %(default)s)",
    )
    parser.add_argument(
        "--run",
        dest="command",
        default="",
        metavar="COMMAND",
        help=(
            "measure with this command instead; {base}, {point} and {results} are replaced, and it"
            " leaves verdict.json in {results}"
        ),
    )
    add_suite_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask, measure and write down, until there is an answer."""
    state = _state(arguments)
    while True:
        step = next_step(state, attempts=arguments.attempts)
        if isinstance(step, Answer):
            break
        print(f"comparing {step.point} with {step.base}", flush=True)
        judgement = _measured(arguments, step, len(state.judgements))
        told = f"{judgement.finding} ({judgement.why})" if judgement.why else judgement.finding
        print(f"{step.point}: {told}", flush=True)
        state = state.model_copy(update={"judgements": (*state.judgements, judgement)})
        _write(arguments.state, state)
    for one in state.judgements:
        print(f"  {one.point} against {one.base}: {one.finding}; results in {one.results}")
    print(step.text)
    return ExitStatus.OK if step.decided else ExitStatus.INVALID


def _state(arguments: argparse.Namespace) -> BisectionState:
    """Where an earlier bisection of these points stopped, or the start."""
    from k3perf.documents import read_record

    suite = suite_of(arguments)
    known = tuple(cell.cell_id for cell in suite.cells())
    if arguments.cell not in known:
        raise UnknownNameError("cell", arguments.cell, known, "See pytest --collect-only.")
    points = tuple(_engines(arguments)) if arguments.engine else _commits(arguments)
    fresh = BisectionState(cell=arguments.cell, points=points)
    if not arguments.state.exists():
        return fresh
    step = f"Delete {arguments.state} to start again, or name another --state."
    earlier = read_record(BisectionState, arguments.state, step, "the state of a bisection")
    if (earlier.cell, earlier.points) != (fresh.cell, fresh.points):
        raise UsageError(
            f"{arguments.state} holds a different bisection ({earlier.cell}, {earlier.points[0]} to"
            f" {earlier.points[-1]}). {step}"
        )
    print(f"continuing after {len(earlier.judgements)} comparisons in {arguments.state}")
    return earlier


def _write(path: Path, state: BisectionState) -> None:
    from k3perf.store.atomic import replace_file

    replace_file(path, state.model_dump_json(indent=1) + "\n")


def _engines(arguments: argparse.Namespace) -> dict[str, str]:
    """Name to Python, from GOOD to BAD."""
    found: dict[str, str] = {}
    for text in arguments.engine:
        name, _, python = text.partition("=")
        if not name or not python or name in found:
            raise UsageError(f"--engine {text}: give each version once, as NAME=PYTHON.")
        found[name] = python
    names = list(found)
    for name in (arguments.good, arguments.bad):
        if name not in found:
            raise UnknownNameError("engine version", name, tuple(names), "Name it with --engine.")
    first, last = names.index(arguments.good), names.index(arguments.bad)
    if first >= last:
        raise UsageError(f"{arguments.good} is not older than {arguments.bad} in --engine.")
    for name in names[first : last + 1]:
        if not arguments.command and not Path(found[name]).is_file():
            raise UsageError(f"--engine {name}: not found: {found[name]}. Give its Python.")
    return {name: found[name] for name in names[first : last + 1]}


def _commits(arguments: argparse.Namespace) -> tuple[str, ...]:
    from k3perf.store.repository import Repository

    points = Repository(Path.cwd()).first_parents(arguments.good, arguments.bad)
    if len(points) < 2:
        raise UsageError(f"no commit lies between {arguments.good} and {arguments.bad}.")
    return points


def _measured(arguments: argparse.Namespace, step: Question, number: int) -> PointJudgement:
    """Run the judge. Without a readable verdict the point is INVALID, never good."""
    from k3perf.cli.ci_command import read_verdict

    results = (arguments.state.parent / f"bisect-{number}").resolve()
    results.mkdir(parents=True, exist_ok=True)
    verdict = results / "verdict.json"
    verdict.unlink(missing_ok=True)
    status = _run_judge(arguments, step, results)
    try:
        document = read_verdict(verdict)
    except UsageError as error:
        why = f"the run ended with status {status} and without a verdict ({error})"
        return PointJudgement(
            base=step.base,
            point=step.point,
            finding=Finding.INVALID,
            why=why[:2_000],
            results=str(results),
        )
    return judged_point(step.base, step.point, document.cells, arguments.cell, str(results))


def _run_judge(arguments: argparse.Namespace, step: Question, results: Path) -> int:
    from k3perf.store.repository import Repository

    if arguments.command:
        names = {"base": step.base, "point": step.point, "results": str(results)}
        words = [
            word.format(**names) if "{" in word else word for word in shlex.split(arguments.command)
        ]
        return _call(words, Path.cwd())
    cells = results / "cells.json"
    cells.write_text(f'["{arguments.cell}"]\n', encoding="utf-8")
    target = next(c.target.name for c in suite_of(arguments).cells() if c.cell_id == arguments.cell)
    words = [sys.executable, "-m", "pytest", "--k3-mode", "ab", "--k3-target", target]
    words += ["--k3-cells", str(cells), "--k3-results", str(results), "--k3-plain"]
    if arguments.engine:
        pythons = _engines(arguments)
        base = Path(pythons[step.base]).absolute().parent.parent
        words += ["--k3-ab-base", str(base), "--k3-engine-python", pythons[step.point]]
        return _call([*words, str(arguments.suite)], Path.cwd())
    tree = (arguments.state.parent / "bisect-tree").resolve()
    Repository(Path.cwd()).work_tree_at(tree, step.point)
    words += ["--k3-ab-base", step.base, str(tree / arguments.suite.name)]
    engine = os.environ.get("K3PERF_ENGINE_PYTHON") or str(
        Path(".venv-engine/bin/python").resolve()
    )
    return _call([*words, "--rootdir", str(tree), "--k3-engine-python", engine], tree)


def _call(words: list[str], where: Path) -> int:
    try:
        return subprocess.run(words, cwd=where, check=False).returncode
    except OSError as error:
        raise UsageError(f"--run {words[0]}: {error.strerror}. Give a program.") from None
