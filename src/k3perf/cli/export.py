"""``k3perf export CONFIG --target T``: the native configuration file and the exact command for production."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from k3perf.cli.suite_option import add_suite_option, suite_of
from k3perf.engine.render import deployment
from k3perf.errors import UsageError


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("export", help="print the vLLM configuration file and command that a config is deployed with")
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("--target", required=True, metavar="T")
    parser.add_argument("--model", help="model directory or checkpoint to deploy (default: the target's)")
    parser.add_argument("--output", metavar="FILE", help="write the configuration file there instead of printing it")
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
    model = arguments.model or target.model.checkpoint or str(suite.root / str(target.model.directory))
    path = Path(arguments.output or f"{config.name}.yaml")
    deployed = deployment(target, suite.engine_arguments(target, config), model, config_path=str(path))
    environment = [f"{name}={shlex.quote(value)}" for name, value in sorted(deployed.environment.items())]
    command = " ".join([*environment, shlex.join(deployed.command)])
    if arguments.output:
        path.write_text(deployed.config_file_text, encoding="utf-8")
        sys.stdout.write(f"wrote {path}\n{command}\n")
    else:
        sys.stdout.write(f"# {path}\n{deployed.config_file_text}\n# start with:\n# {command}\n")
    return 0
