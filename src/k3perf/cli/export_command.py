"""``k3perf export CONFIG --target T``: the native configuration file and the exact
command for production.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from pathlib import Path
from typing import Any, Final

from k3perf.cli.output import write_text
from k3perf.cli.shared_options import add_suite_option, suite_of
from k3perf.config.models import ModelSource, TargetSpec
from k3perf.engine.launchers import LAUNCH_KINDS, render_launch
from k3perf.engine.model_directory import materialise
from k3perf.engine.render import deployment
from k3perf.errors import UsageError
from k3perf.run.engine_environment import cache_directory

EXPORTS: Final = Path(".k3perf") / "exports"
"""Where ``--launch`` writes by default, next to the suite: git ignores it, so
that an export changes no selection of cells.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "export",
        help="print the vLLM configuration file and command that a config is deployed with",
    )
    parser.add_argument("config", metavar="CONFIG", help="name of a declared config")
    parser.add_argument("--target", required=True, metavar="T", help="name of a declared target")
    parser.add_argument(
        "--model",
        help=(
            "model directory or checkpoint to deploy, with its own weights (default: the target's)"
        ),
    )
    parser.add_argument(
        "--output",
        metavar="PATH",
        help=(
            "write the configuration file there instead of printing it; with --launch a directory"
            " (default: one under .k3perf/exports)"
        ),
    )
    parser.add_argument(
        "--launch",
        choices=LAUNCH_KINDS,
        help="write the files that start it on one or several hosts into the directory --output",
    )
    add_suite_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print or write the file. The command always goes to standard output."""
    suite = suite_of(arguments)
    target = suite.target(arguments.target)
    config = suite.config(arguments.config)
    refusal = suite.refusal(target, config)
    if refusal:
        raise UsageError(
            f"{target.name} does not take {config.name}: {refusal}. Choose another config or"
            " target."
        )
    engine_arguments = suite.engine_arguments(target, config)
    target = _with_model(target, arguments.model, arguments.config)
    if arguments.launch:
        return _write_launch(arguments, target, engine_arguments, suite.root)
    cache = cache_directory(suite.root.parent / ".k3perf") / "models"
    model = _model(
        target,
        suite.root,
        cache,
        "Set K3PERF_CACHE to a writable directory, or give --model.",
    )
    path = Path(arguments.output or f"{config.name}.yaml")
    deployed = deployment(target, engine_arguments, model, config_path=str(path))
    environment = [
        f"{name}={shlex.quote(value)}" for name, value in sorted(deployed.environment.items())
    ]
    command = " ".join([*environment, shlex.join(deployed.command)])
    if arguments.output:
        write_text(path, deployed.config_file_text)
        sys.stdout.write(f"wrote {path}\n{command}\n")
    else:
        sys.stdout.write(f"# {path}\n{deployed.config_file_text}\n# start with:\n# {command}\n")
    sys.stdout.write("".join(f"# note: {note}\n" for note in _device_notes(target)))
    if target.model.weights == "dummy":
        sys.stdout.write(
            f"# {target.name} serves a model with dummy weights; give --model to deploy one that"
            " has weights\n"
        )
    return 0


def _with_model(target: TargetSpec, given: str | None, config: str) -> TargetSpec:
    """The target with ``--model``, a checkpoint with weights, as its model, or with the
    config's own variant.
    """
    if not given:
        own = {"directory": target.model.directory_for(config)}
        return target.model_copy(update={"model": target.model.model_copy(update=own)})
    model = ModelSource(
        checkpoint=given, weights="checkpoint", trust_remote_code=target.model.trust_remote_code
    )
    return target.model_copy(update={"model": model})


def _model(target: TargetSpec, suite_root: Path, stand_ins: Path, next_step: str) -> str:
    """What is served: a stand-in, which is committed without a tokenizer, as a copy
    under ``stand_ins`` that vLLM can serve.

    ``next_step`` is what the error says when ``stand_ins`` cannot be written.
    """
    if target.model.directory is None:
        return str(target.model.checkpoint)
    return str(
        materialise(suite_root / target.model.directory, stand_ins, next_step=next_step).resolve()
    )


def _write_launch(
    arguments: argparse.Namespace,
    target: TargetSpec,
    engine_arguments: dict[str, Any],
    suite_root: Path,
) -> int:
    name = f"{target.name}-{arguments.config}-{arguments.launch}"
    folder = Path(arguments.output) if arguments.output else suite_root.parent / EXPORTS / name
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            f"--output {folder} is a file; --launch writes several files. Name a directory."
        )
    placed = (
        target.launch.options.get("model") if not arguments.model else None
    )  # where the target says that its hosts have the model
    model = placed or _model(
        target,
        suite_root,
        folder / "model",
        "Name a writable directory with --output, or give --model.",
    )
    files = render_launch(arguments.launch, engine_arguments, target, {"model": model})
    for file_name, text in files.items():
        _write(folder / file_name, text)
    sys.stdout.write("".join(f"wrote {folder / file_name}\n" for file_name in files))
    if target.model.directory is not None and not placed:
        sys.stdout.write(_where_it_must_lie(model, arguments.launch))
    sys.stdout.write("".join(f"note: {note}\n" for note in _device_notes(target)))
    return 0


def _device_notes(target: TargetSpec) -> tuple[str, ...]:
    """Devices of this machine that do not answer, for a target of such devices."""
    from k3perf.telemetry.hardware import silent_device_notes

    if target.hardware.kind != "nvidia":
        return ()
    return tuple(f"on this machine {note}" for note in silent_device_notes())


def _write(path: Path, text: str) -> None:
    try:
        write_text(path, text, make_folder=True)
        if text.startswith("#!"):
            path.chmod(0o755)
    except (UsageError, OSError):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)  # half a script would start something else
        raise


def _where_it_must_lie(model: str, kind: str) -> str:
    """One line: the files name a directory of this host."""
    if kind == "kubernetes":
        return f"every pod needs {model} mounted at this same path; or give --model\n"
    return f"{model} must lie at this same path on every host; or give --model\n"
