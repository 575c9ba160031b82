"""What is known of the arguments of ``vllm serve``: names, kinds, forms and choices.

The table of the engine's own Python counts where there is one, since a fork or a newer
release has other arguments. The shipped table (``vllm_arguments.json``, generated
by ``scripts/list-vllm-arguments.py``) is what is looked at first, and the fallback.
Names are written with underscores in the suite and rendered with dashes for the server.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from k3perf.config.log_environment import FIXED
from k3perf.config.owned_arguments import owned, owned_table
from k3perf.errors import ConfigFileError

Place = Literal["target", "config", "refusal"]

_USUAL_BUILD: Final = re.compile(r"(cpu|cu\d+|rocm\d*|xpu)?")


@dataclass(frozen=True, slots=True)
class ArgumentDef:
    """One argument. ``kind`` is ``flag`` or ``value``. ``choices`` is empty where any
    value may be given.

    ``form`` of a value: ``one`` text, ``optional``, a ``list``, ``append`` (one text
    each time it is given) or ``json`` (a list as JSON text). ``releases``: those that
    were seen to have it.
    """

    name: str
    kind: str
    choices: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    form: str = "one"
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArgumentTable:
    """Arguments by name, and where they come from: ``vLLM 0.34.0 of
    /opt/engine/bin/python``.
    """

    arguments: Mapping[str, ArgumentDef]
    source: str

    def objection(self, name: str, value: Any) -> tuple[str, str] | None:
        """Problem and next step of an argument that this vLLM does not take so (None:
        it does).
        """
        return self.unknown(name) or _wrong_value(self.arguments[name], value)

    def unknown(self, name: str) -> tuple[str, str] | None:
        """Problem and next step of a name that this vLLM does not have (None: it has
        it).
        """
        if name in self.arguments:
            return None
        known = next((own.name for own in self.arguments.values() if name in own.aliases), None)
        if known is not None:
            return f"is another name of {known}", f"Write {known}."
        positive = name.removeprefix("no_")
        if positive != name and positive in self.arguments:
            return "is the negative form of a flag", f"Write {positive}: false."
        near = difflib.get_close_matches(name.replace("-", "_"), self.arguments, n=1)
        hint = (
            f"Did you mean {near[0]!r}?"
            if near
            else "Names are those of `vllm serve --help=all`, with underscores."
        )
        return "unknown vLLM argument", hint


EngineTable = Callable[[], "ArgumentTable | str"]
"""Asks the engine's Python for its own table. A text says why there is none, if there
is a Python.
"""


@cache
def shipped_table() -> ArgumentTable:
    """Every argument of every release that k3perf knows."""
    raw = json.loads(
        files("k3perf.config").joinpath("vllm_arguments.json").read_text(encoding="utf-8")
    )
    arguments = parse_arguments(raw["arguments"])
    releases = sorted({release for own in arguments.values() for release in own.releases})
    return ArgumentTable(arguments, f"the table that k3perf ships (vLLM {' and '.join(releases)})")


def parse_arguments(raw: Mapping[str, Mapping[str, Any]]) -> dict[str, ArgumentDef]:
    """Arguments by name, of the JSON that ``k3perf_probe.arguments`` and the script
    write.
    """
    return {
        name: ArgumentDef(
            name,
            entry["kind"],
            tuple(entry["choices"]),
            tuple(entry.get("releases", ())),
            entry.get("form", "one"),
            tuple(entry.get("aliases", ())),
        )
        for name, entry in raw.items()
    }


def covered(names: Iterable[str], release: str) -> bool:
    """Whether the shipped table was made with this very release and lists every name
    for it.

    A local version that is not the usual mark of a build (``+cu130``) is a fork, which
    it is not.
    """
    public, _, local = release.partition("+")
    known = shipped_table().arguments
    return _USUAL_BUILD.fullmatch(local) is not None and all(
        name in known and public in known[name].releases for name in names
    )


def argument_problems(
    arguments: Mapping[str, Any],
    path: Path,
    key: str,
    *,
    place: Place,
    engine_table: EngineTable | None = None,
) -> Iterator[ConfigFileError]:
    """Each argument that vLLM does not take so, or that is not the file's to give.

    ``engine_table`` is asked only about what the shipped table objects to. A refusal's
    ``when`` may name what `parallelism` makes of it.
    """
    for name, value in arguments.items():
        at = f"{key}.{name}"
        other = (
            owned_table().get(name)
            if place == "refusal"
            else owned(name, value, in_config=place == "config")
        )
        if other is not None:
            yield ConfigFileError(path, at, value, *other)
            continue
        found = _objection(name, value, engine_table)
        if found is not None:
            yield ConfigFileError(path, at, value, *found)


def environment_problems(
    environment: Mapping[str, str], path: Path, key: str
) -> Iterator[ConfigFileError]:
    """Each variable that decides the form of the engine's log, which the harness sets
    itself.
    """
    for name, value in environment.items():
        if name in FIXED:
            problem = "is set by the harness, which reads the engine's log"
            step = "Remove it."
            yield ConfigFileError(path, f"{key}.{name}", value, problem, step)


def unknown_argument(name: str) -> str:
    """Why ``name`` is not in the shipped table, and the next step. Empty where it
    is.
    """
    table = shipped_table()
    found = table.unknown(name)
    return "" if found is None else f"{found[0]}. {found[1]} Checked against {table.source}."


def _objection(name: str, value: Any, engine_table: EngineTable | None) -> tuple[str, str] | None:
    """Problem and next step, which names the table that was used. None without an
    objection.
    """
    shipped = shipped_table()
    found = shipped.objection(name, value)
    if found is None:
        return None
    own = engine_table() if engine_table is not None else ""
    if isinstance(own, ArgumentTable):
        found = own.objection(name, value)
        return None if found is None else (found[0], f"{found[1]} Checked against {own.source}.")
    why = f", since {own}" if own else ""
    step = "For another vLLM, name its Python with K3PERF_ENGINE_PYTHON or --k3-engine-python."
    return found[0], f"{found[1]} Checked against {shipped.source}{why}. {step}"


def native_value(name: str, value: Any) -> Any:
    """The value as vLLM's ``--config`` file must hold it: some lists only as JSON
    text.
    """
    definition = shipped_table().arguments.get(name)
    if definition is None or not isinstance(value, list):
        return value
    if definition.form == "json":
        return json.dumps(value)
    return [json.dumps(item) if isinstance(item, dict) else item for item in value]


def _wrong_value(definition: ArgumentDef, value: Any) -> tuple[str, str] | None:
    if definition.kind == "flag" and not isinstance(value, bool):
        return "is a flag", "Give true or false."
    if definition.kind == "value" and isinstance(value, bool) and definition.form != "optional":
        return "takes a value, not true or false", "Give the value vLLM should get."
    given = value if isinstance(value, list) else [value]
    if isinstance(value, list) and definition.form in ("one", "optional"):
        return "takes one value, not a list", "Give one value."
    if definition.form == "append" and len(given) != 1:
        return (
            "can be given once in a configuration file",
            "Give one value; more need the command line of the deployment.",
        )
    wrong = [item for item in given if definition.choices and str(item) not in definition.choices]
    return (
        ("is not among vLLM's choices", f"Use one of: {', '.join(definition.choices)}.")
        if wrong
        else None
    )
