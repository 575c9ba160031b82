"""``k3perf upgrade``: the next vLLM beside the present one, and the one command that
accepts it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from k3perf.cli.shared_options import (
    add_baselines_option,
    add_engine_python_option,
    add_suite_option,
    baselines_of,
    suite_of,
)
from k3perf.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from k3perf.config.suite import Suite
    from k3perf.records.baseline import Baseline
    from k3perf.records.measurement import MeasurementFile
    from k3perf.records.verdict import VerdictDocument

_RESULTS: Final = ".k3perf/results/upgrade"
_AGAIN: Final = "Run `k3perf upgrade --engine NEXT` first."


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "upgrade",
        help="compare the next vLLM with the present one, and accept it",
        description=(
            "--engine measures both engines side by side and prints three tables and one verdict;"
            " --accept makes the lock and memory of the new engine the approved ones"
        ),
        epilog="exit status: that of the pytest run; 4 when --accept refuses",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--engine", metavar="NEXT", help="Python or virtual environment of the next vLLM"
    )
    what.add_argument(
        "--accept", metavar="RESULTS", help="accept the engine that this run measured"
    )
    what.add_argument("--show", metavar="RESULTS", help="print the tables of this run again")
    add_engine_python_option(parser)
    parser.add_argument(
        "--results",
        default=_RESULTS,
        metavar="DIR",
        help="directory of the run (default: %(default)s)",
    )
    parser.add_argument(
        "--reason", default="", help="with --accept: reason for the reviewer, at least 8 characters"
    )
    parser.add_argument("--by", default="", help="who accepts (default: the login name)")
    parser.add_argument(
        "--with-losses",
        action="store_true",
        help="with --accept: accept a regression",
    )
    add_suite_option(parser)
    add_baselines_option(parser)
    parser.add_argument(
        "pytest_arguments",
        nargs="*",
        metavar="PYTEST_ARGUMENT",
        help="after --: passed on to `pytest perf_tests`",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, show or accept."""
    if arguments.accept:
        return _accept(arguments, Path(arguments.accept))
    if arguments.reason or arguments.with_losses:
        raise UsageError("--reason and --with-losses belong to --accept RESULTS.")
    if arguments.show:
        sys.stdout.write(_tables(Path(arguments.show)))
        return ExitStatus.OK
    return _measure(arguments)


def _measure(arguments: argparse.Namespace) -> int:
    """Run ``ab`` with the present engine as base. The status is the run's own."""
    from k3perf.run.engine_environment import find_engine_python
    from k3perf.run.readiness import require_engine

    root = arguments.suite.resolve().parent
    base = find_engine_python(arguments.engine_python, root)
    candidate = python_of(arguments.engine)
    for python in (base, candidate):
        require_engine(python)
    if base.resolve() == candidate.resolve() and base.parent == candidate.parent:
        raise UsageError(
            f"--engine {arguments.engine} is the current engine. Install the next vLLM into"
            " another virtual environment."
        )
    results = Path(arguments.results)
    if (results / "results.jsonl").exists():
        raise UsageError(
            f"--results {results} already holds a run. Give another directory, or remove it."
        )
    words = [sys.executable, "-m", "pytest", str(arguments.suite)]
    words += ["--k3-suite", str(arguments.suite), "--k3-ab-base", str(base.parent.parent)]
    words += [f"--k3-engine-python={candidate}", f"--k3-results={results}"]
    sys.stdout.flush()
    status = subprocess.run([*words, *arguments.pytest_arguments], check=False).returncode
    if not (results / "verdict.json").is_file():
        return status
    sys.stdout.write(_tables(results))
    sys.stdout.write(
        f'To accept the new engine: k3perf upgrade --accept {results} --reason "WHY"\n'
    )
    return status


def python_of(given: str) -> Path:
    """The Python that ``--engine`` names. Raises UsageError."""
    path = Path(given)
    path = path / "bin" / "python" if path.is_dir() else path
    if not path.is_file():
        raise UsageError(
            f"--engine {given}: not found. Give a virtual environment or its bin/python."
        )
    return path.absolute()


def _tables(results: Path) -> str:
    from k3perf.report.upgrade_tables import upgrade_text

    file, verdict = _read(results)
    return upgrade_text(file.cells, verdict)


def _read(results: Path) -> tuple[MeasurementFile, VerdictDocument]:
    """Both files of an ``ab`` run. Raises ConfigFileError or UsageError."""
    from k3perf.documents import read_record
    from k3perf.records.verdict import VerdictDocument
    from k3perf.store.measurements import read_measurement_file

    file = read_measurement_file(results / "measurements.json")
    verdict = read_record(VerdictDocument, results / "verdict.json", _AGAIN, "a verdict file")
    if any(cell.mode != "ab" for cell in file.cells) or not file.cells:
        raise UsageError(f"{results} is not a run of two engines. {_AGAIN}")
    if file.injected:
        raise UsageError(f"{results} was measured with an injected fault ({file.injected}).")
    return file, verdict


def _accept(arguments: argparse.Namespace, results: Path) -> int:
    """Write every baseline of the run, or none."""
    from k3perf.baselines.upgraded import objections_to_upgrade
    from k3perf.records.samples import Arm
    from k3perf.report.upgrade_tables import release_of
    from k3perf.store.baselines import write_baseline

    if len(arguments.reason) < 8:
        raise UsageError(
            f"the reason {arguments.reason!r} is too short for a reviewer; write a sentence with"
            " --reason."
        )
    suite, root = suite_of(arguments), baselines_of(arguments)
    file, verdict = _read(results)
    against = objections_to_upgrade(verdict, suite, with_losses=arguments.with_losses)
    if against:
        raise UsageError(
            "not accepted, nothing was written:\n" + "\n".join(f"  {line}" for line in against)
        )
    made, left = _upgraded(arguments, suite, root, file)
    if not made:
        raise UsageError(f"no config of {results} has a baseline in {root}. Record them first.")
    for baseline in made:
        sys.stdout.write(f"wrote {write_baseline(root, baseline)}\n")
    sys.stdout.writelines(
        f"not measured, so still approved for the old engine: {name}\n" for name in left
    )
    release = release_of(file.cells, Arm.CANDIDATE)
    sys.stdout.write(f"vLLM {release} is accepted. Now make it the default engine.\n")
    return ExitStatus.OK


def _upgraded(
    arguments: argparse.Namespace, suite: Suite, root: Path, file: MeasurementFile
) -> tuple[list[Baseline], list[str]]:
    """The new baselines, and names of the targets' others, which the run omits."""
    from k3perf.baselines.accept import strictest_policy
    from k3perf.baselines.upgraded import upgraded
    from k3perf.cli.output import login_name
    from k3perf.records.baseline import Acceptance
    from k3perf.store.baselines import read_target_baselines

    acceptance = Acceptance(
        accepted_by=arguments.by or login_name(),
        reason=arguments.reason,
        accepted_at_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        commit=file.commit,
        run_ids=(file.run_id,),
    )
    made: list[Baseline] = []
    left: list[str] = []
    for target in dict.fromkeys(cell.target for cell in file.cells):
        policy = strictest_policy(suite, target, ())
        for baseline in read_target_baselines(root, target):
            cells = [
                cell
                for cell in file.cells
                if (cell.target, cell.config) == (target, baseline.config)
            ]
            if not cells:
                left.append(f"{target}/{baseline.config}")
                continue
            made.append(
                upgraded(
                    baseline,
                    cells,
                    policy=policy,
                    versions=file.identity,
                    acceptance=acceptance,
                )
            )
    return made, left
