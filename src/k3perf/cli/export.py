"""``k3perf export CONFIG --target T``: the native configuration file and the exact command for production."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from k3perf.cli.suite_option import add_suite_option, suite_of
from k3perf.config.models import TargetSpec
from k3perf.engine.launchers import LAUNCH_KINDS, render_launch
from k3perf.engine.model_directory import materialise
from k3perf.engine.render import deployment
from k3perf.errors import UsageError
from k3perf.run.engine_environment import cache_directory


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("export", help="print the vLLM configuration file and command that a config is deployed with")
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("--target", required=True, metavar="T")
    parser.add_argument("--model", help="model directory or checkpoint to deploy (default: the target's)")
    parser.add_argument("--output", metavar="FILE", help="write the configuration file there instead of printing it")
    parser.add_argument(
        "--launch", choices=LAUNCH_KINDS, help="write the files that start it on one or several hosts into the folder --output"
    )
    add_suite_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print or write the file; the command always goes to standard output as a comment beside it."""
    suite = suite_of(arguments)
    target = suite.target(arguments.target)
    config = suite.config(arguments.config)
    refusal = suite.refusal(target, config)
    if refusal:
        raise UsageError(f"{target.name} does not take {config.name}: {refusal}. Choose another config or target.")
    if arguments.launch:
        return _write_launch(arguments, target, suite.engine_arguments(target, config), suite.root)
    model = _model(arguments, target, suite.root, cache_directory(suite.root.parent / ".k3perf") / "models")
    path = Path(arguments.output or f"{config.name}.yaml")
    deployed = deployment(target, suite.engine_arguments(target, config), model, config_path=str(path))
    environment = [f"{name}={shlex.quote(value)}" for name, value in sorted(deployed.environment.items())]
    command = " ".join([*environment, shlex.join(deployed.command)])
    if arguments.output:
        try:
            path.write_text(deployed.config_file_text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output {path} cannot be written: {error}. Name a file in a folder that exists.") from None
        sys.stdout.write(f"wrote {path}\n{command}\n")
    else:
        sys.stdout.write(f"# {path}\n{deployed.config_file_text}\n# start with:\n# {command}\n")
    return 0


def _model(arguments: argparse.Namespace, target: TargetSpec, suite_root: Path, stand_ins: Path) -> str:
    """What is served: a stand-in, which is committed without a tokenizer, as a copy under ``stand_ins`` that vLLM can serve."""
    if arguments.model or target.model.directory is None:
        return str(arguments.model or target.model.checkpoint)
    return str(materialise(suite_root / target.model.directory, stand_ins))


def _write_launch(arguments: argparse.Namespace, target: TargetSpec, engine_arguments: dict[str, Any], suite_root: Path) -> int:
    folder = Path(arguments.output or f"{target.name}-{arguments.config}-{arguments.launch}")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output {folder} is a file; --launch writes several files. Name a folder.")
    model = _model(arguments, target, suite_root, folder.absolute() / "model")
    files = render_launch(arguments.launch, engine_arguments, target, {"model": model})
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            path.chmod(0o755)
    sys.stdout.write("".join(f"wrote {folder / name}\n" for name in files))
    return 0
