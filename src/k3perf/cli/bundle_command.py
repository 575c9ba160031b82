"""``k3perf bundle``: ``inventory`` on the host without a network, ``make`` where there
is one, ``verify`` after the copy.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from pydantic import ValidationError

from k3perf.cli.shared_options import count
from k3perf.documents import DocumentProblem, json_of, read_text
from k3perf.engine.bundle import archive
from k3perf.engine.bundle.host import HostInventory, read_inventory
from k3perf.engine.bundle.make import BundlePlan, make_bundle, read_recipe
from k3perf.errors import ExitStatus, UsageError, shortened

DEFAULT_PART_BYTES = 62_000_000
_GIVE_PYTHON = "Give the Python of the environment that the engine will run in."


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bundle`` and its three commands."""
    parser = subparsers.add_parser("bundle", help="packages for a host without a network")
    commands = parser.add_subparsers(dest="bundle_command", required=True, metavar="COMMAND")

    inventory = commands.add_parser(
        "inventory",
        help="print what Python and packages a host has, as JSON",
        epilog="exit status: 4 when --python does not run or prints no inventory",
    )
    inventory.add_argument(
        "--python",
        default=sys.executable,
        help="Python of the environment to list (default: this one)",
    )
    inventory.add_argument(
        "--show-script",
        action="store_true",
        help="print the script instead; it needs only the standard library",
    )
    inventory.set_defaults(run=_inventory)

    _register_make(commands)
    verify = commands.add_parser(
        "verify",
        help="check a bundle's files against its checksums",
        epilog="exit status: 10 when a file is missing or damaged",
    )
    verify.add_argument("folder", type=Path, help="directory that `bundle make` wrote")
    verify.set_defaults(run=_verify)


def _register_make(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    make = commands.add_parser(
        "make",
        help="download what a host lacks and pack it",
        epilog="exit status: 10 when pip cannot download a wheel",
    )
    make.add_argument(
        "--inventory",
        type=Path,
        required=True,
        help="host.json, as `bundle inventory` printed it on the host",
    )
    make.add_argument("--output", type=Path, required=True, help="a new or empty directory")
    make.add_argument(
        "--requirement",
        action="append",
        default=[],
        help="a requirement to carry, vllm==0.33.0 for instance; repeatable",
    )
    make.add_argument(
        "--requirements-file",
        type=Path,
        help="a complete pinned list: exactly these are carried, without looking up dependencies",
    )
    make.add_argument(
        "--recipe",
        type=Path,
        help="YAML with leave_out, strip and keep (default: the shipped one for Hopper)",
    )
    make.add_argument(
        "--leave-out",
        action="append",
        default=[],
        metavar="PATTERN",
        help="one more package not to carry; repeatable",
    )
    make.add_argument(
        "--part-size",
        type=count,
        default=DEFAULT_PART_BYTES,
        metavar="BYTES",
        help="largest part (default: %(default)s)",
    )
    make.add_argument(
        "--downloads", type=Path, help="where wheels are kept between runs (default: OUTPUT-wheels)"
    )
    make.set_defaults(run=_make)


def _inventory(arguments: argparse.Namespace) -> int:
    spec = importlib.util.find_spec("k3perf_probe.inventory")
    if spec is None or spec.origin is None:
        raise UsageError("k3perf_probe is not installed next to k3perf. Reinstall k3perf.")
    if arguments.show_script:
        sys.stdout.write(Path(spec.origin).read_text(encoding="utf-8"))
        return ExitStatus.OK
    try:
        done = subprocess.run(
            [arguments.python, spec.origin],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise UsageError(
            f"--python {arguments.python} does not run: {error.strerror}. {_GIVE_PYTHON}"
        ) from None
    said = done.stderr.strip()[-300:] or f"it ended with status {done.returncode}"
    if done.returncode != 0:
        raise UsageError(
            f"--python {arguments.python} could not list its packages: {said}. {_GIVE_PYTHON}"
        )
    try:
        HostInventory.model_validate(json_of(done.stdout))
    except (DocumentProblem, ValidationError):
        raise UsageError(
            f"--python {arguments.python} printed no inventory. {_GIVE_PYTHON}"
        ) from None
    sys.stdout.write(done.stdout)
    return ExitStatus.OK


def _make(arguments: argparse.Namespace) -> int:
    from k3perf.engine.bundle.closure import LeaveOut

    if bool(arguments.requirement) == bool(arguments.requirements_file):
        raise UsageError(
            "give either --requirement (dependencies are looked up) or --requirements-file (a"
            " complete list)."
        )
    leave_out, strip, keep = read_recipe(arguments.recipe)
    leave_out += tuple(LeaveOut(pattern, "--leave-out") for pattern in arguments.leave_out)
    requirements = tuple(arguments.requirement) or _requirement_lines(arguments.requirements_file)
    _check_requirements(
        requirements,
        (
            "--requirement"
            if arguments.requirement
            else f"--requirements-file {arguments.requirements_file}"
        ),
    )
    plan = BundlePlan(
        requirements,
        arguments.part_size,
        leave_out,
        strip,
        keep,
        closed=arguments.requirements_file is not None,
    )
    downloads = arguments.downloads or arguments.output.with_name(arguments.output.name + "-wheels")
    manifest = make_bundle(
        read_inventory(arguments.inventory),
        plan,
        arguments.output,
        download_folder=downloads,
        say=lambda line: print(line, file=sys.stderr),
    )
    for conflict in manifest["conflicts"]:
        print(f"warning: {conflict}", file=sys.stderr)
    print(
        json.dumps(
            {
                "output": str(arguments.output),
                "parts": manifest["parts"],
                "carried": len(manifest["carried"]),
            }
        )
    )
    return ExitStatus.OK


def _verify(arguments: argparse.Namespace) -> int:
    if not arguments.folder.is_dir():
        raise UsageError(
            f"{arguments.folder} is not a directory. Name the one that `k3perf bundle make` wrote."
        )
    problems = archive.verify(arguments.folder)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{arguments.folder}: all files are intact")
    return ExitStatus.INVALID if problems else ExitStatus.OK


def _requirement_lines(path: Path) -> tuple[str, ...]:
    text = read_text(path, "Give a text file with a requirement on each line.")
    if text is None:
        raise UsageError(
            f"--requirements-file {path}: file not found. Give a text file with a"
            " requirement on each line."
        )
    lines = [line.split("#")[0].strip() for line in text.replace("\\\n", " ").splitlines()]
    found = tuple(line.split(" --hash=")[0].strip() for line in lines if line)
    if not found:
        raise UsageError(
            f"--requirements-file {path} contains no requirement. Give a complete pinned list."
        )
    return found


def _check_requirements(requirements: tuple[str, ...], source: str) -> None:
    """Raises UsageError for a text that is not a requirement, before anything is
    downloaded.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requirements:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            raise UsageError(
                f"{source}: {shortened(text)!r} is not a requirement"
                f" ({shortened(str(error).splitlines()[0])}). Write it as vllm==0.33.0."
            ) from None
