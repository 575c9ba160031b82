"""``k3perf init``: a deployment to a suite in this repository, with a first baseline of
lock and memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from k3perf.cli.shared_options import add_engine_python_option
from k3perf.errors import ExitStatus, UsageError

_REASON: Final = "First baseline of lock and memory, recorded by k3perf init"
_RESULTS: Final = ".k3perf/results/init"
_PROPOSALS: Final = ".k3perf/proposals"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "init",
        help="write a suite for your deployment, with a first baseline of lock and memory",
        description=(
            "read how you deploy, write a suite into this directory, start the engine twice and"
            " record a first baseline of its lock and memory; `pytest` then gives the first"
            " verdict"
        ),
        epilog=(
            "exit status: 4 when the source cannot be read or a suite already exists, 10 when the"
            " engine cannot be recorded (the written files are kept)"
        ),
    )
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="SOURCE",
        help=(
            "the `vllm serve` command in quotes, vLLM's config.yaml, Helm values or a manifest"
            " (FILE#NAME for one of several), or http://HOST:PORT of a running server"
        ),
    )
    parser.add_argument(
        "--suite",
        default="perf_tests",
        metavar="DIR",
        help="directory to write (default: %(default)s)",
    )
    parser.add_argument(
        "--name", default="", help="name of the target (default: model and hardware)"
    )
    add_engine_python_option(parser)
    parser.add_argument(
        "--no-record", action="store_true", help="write the files, but start no engine"
    )
    parser.add_argument("--no-workflow", action="store_true", help="do not write a GitHub workflow")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the suite, record and accept its first baseline."""
    from k3perf.onboarding.write import write_surroundings

    root = Path.cwd()
    outside = arguments.source.startswith(("http://", "https://"))
    python = None if outside else _engine(arguments, root)
    target, notes, written = _write(arguments, root, python, outside=outside)
    written += write_surroundings(root, arguments.suite, target, workflow=not arguments.no_workflow)
    sys.stdout.writelines(f"wrote {path}\n" for path in written)
    sys.stdout.writelines(f"note: {note}\n" for note in notes)
    if python is not None:
        from k3perf.run.engine_environment import note_engine_python

        note_engine_python(python, root)
    server = ["--k3-server", arguments.source] if outside else []
    if arguments.no_record:
        sys.stdout.write(_how_to_record(arguments.suite, server))
        return ExitStatus.OK
    sys.stdout.flush()
    status = record(root, arguments.suite, server)
    if status == ExitStatus.OK:
        status = _gates_something(root, arguments.suite, target)
    if status != ExitStatus.OK:
        sys.stdout.write(
            "The files are written, but no baseline was recorded. Correct the cause, then run:\n"
            + _how_to_record(arguments.suite, server)
        )
        return status
    named = () if _bare(root, arguments.suite) else (arguments.suite,)
    command = " ".join(["pytest", *named, *server])
    sys.stdout.write(f"Commit the files, then run: {command}\n")
    return ExitStatus.OK


def record(root: Path, suite: str, server: list[str]) -> int:
    """Record, propose and accept. The status of the first command that fails."""
    pytest = [sys.executable, "-m", "pytest", suite, "--k3-record", "--k3-sessions", "2"]
    gated = ["--only-testable"] if server else []
    own = [sys.executable, "-m", "k3perf.cli.main", "baseline"]
    steps = (
        [*pytest, "--k3-quiet-wait", "0", "--k3-results", _RESULTS, "-q", *server],
        [*own, "propose", _RESULTS, "--suite", suite, "--proposals", _PROPOSALS, *gated],
        [*own, "accept", "--suite", suite, "--proposals", _PROPOSALS, "--reason", _REASON],
    )
    for step in steps:
        status = subprocess.run(step, cwd=root, check=False).returncode
        if status:
            return status
    return ExitStatus.OK


def _write(
    arguments: argparse.Namespace, root: Path, python: Path | None, *, outside: bool
) -> tuple[str, list[str], list[str]]:
    """The target's name, the notes and the written paths."""
    from dataclasses import replace

    from k3perf.engine.installed_vllm import installed_vllm
    from k3perf.onboarding.machine import machine_of, model_config_of, with_local_model
    from k3perf.onboarding.serving import may_be_secret
    from k3perf.onboarding.sources import serving_of
    from k3perf.onboarding.suite_files import Machine, draft
    from k3perf.onboarding.write import write_suite
    from k3perf.run.argument_table import table_of_engine
    from k3perf.telemetry.hardware import detect_hardware

    serving = serving_of(arguments.source)
    own = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("VLLM_") and not may_be_secret(name)
    }
    inherited = sorted(set(own) - set(serving.environment)) if python is not None else []
    serving = replace(
        serving,
        model=with_local_model(serving, root),
        environment={**{name: own[name] for name in inherited}, **serving.environment},
    )
    config = model_config_of(serving.model)
    notes = list(serving.notes)
    if inherited:
        notes.append(f"copied from this shell into the target: {', '.join(inherited)}")
    if Path(serving.model).is_absolute():
        notes.append(f"the target holds the model's path on this machine: {serving.model}")
    if config is None:
        notes.append(
            f"config.json of {serving.model} was not found, so prompts use 1,000 token ids; set"
            " model.vocabulary_size in the target before you gate timings"
        )
    if outside:
        machine = (
            Machine("nvidia", "server") if serving.rank_count > 1 else Machine("cpu", "server")
        )
        notes.append("the server does not show its hardware; set `hardware` in the target")
    else:
        distribution = "" if python is None else installed_vllm(python).distribution
        machine = machine_of(detect_hardware(), serving, distribution)
    made = draft(
        serving,
        machine,
        day=datetime.now(UTC).strftime("%Y-%m-%d"),
        model_config=config,
        suite=arguments.suite,
        name=arguments.name,
        started_here=not outside,
    )
    table = table_of_engine(str(python), root) if python is not None else None
    return made.target, notes, write_suite(made, root, arguments.suite, table)


def _engine(arguments: argparse.Namespace, root: Path) -> Path | None:
    """The engine's Python. Without one only ``--no-record`` can go on."""
    from k3perf.run.engine_environment import find_engine_python
    from k3perf.run.readiness import require_engine

    try:
        python = find_engine_python(arguments.engine_python, root)
        require_engine(python)
    except UsageError:
        if arguments.no_record and not arguments.engine_python:
            return None
        raise
    return python


def _gates_something(root: Path, suite: str, target: str) -> int:
    """Say what the new baseline holds. INVALID if that is nothing."""
    from k3perf.onboarding.suite_files import CONFIG_NAME
    from k3perf.store.baselines import read_baseline

    baseline = read_baseline((root / suite).parent / "baselines", target, CONFIG_NAME)
    if baseline is None:
        return ExitStatus.NO_BASELINE
    metrics = [entry.metric for entry in baseline.exact]
    for workload in baseline.workloads:
        metrics += [one.metric for one in workload.metrics if one.metric not in workload.not_gated]
    keys_count = len(baseline.resolved_config)
    sys.stdout.write(
        f"Recorded: {keys_count or 'no'} keys of the lock, {', '.join(metrics) or 'no metric'}\n"
    )
    return ExitStatus.OK if keys_count or metrics else ExitStatus.INVALID


def _bare(root: Path, suite: str) -> bool:
    """Whether plain ``pytest`` runs the suite: this command has written pytest.ini."""
    path = root / "pytest.ini"
    return path.is_file() and f"testpaths = {suite}\n" in path.read_text(encoding="utf-8")


def _how_to_record(suite: str, server: list[str]) -> str:
    extra = f" {' '.join(server)}" if server else ""
    return (
        f"  pytest {suite} --k3-record --k3-sessions 2 --k3-results {_RESULTS}{extra}\n"
        f"  k3perf baseline propose {_RESULTS}\n"
        f'  k3perf baseline accept --reason "{_REASON}"\n'
    )
