"""The table of arguments of the engine's own vLLM, asked once for each installed vLLM
and cached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from k3perf.config.arguments import ArgumentTable, EngineTable, covered, parse_arguments
from k3perf.engine.installed_vllm import VllmStamp, list_arguments, read_stamp
from k3perf.errors import UsageError
from k3perf.run.engine_environment import cache_directory, find_engine_python
from k3perf.store.atomic import replace_file

FOLDER: Final = "arguments"


def table_of_engine(given: str | None, root: Path) -> EngineTable:
    """A function that asks the Python that a run would use. Until it is called nothing
    is read.

    ``given`` is the option's value. ``root`` holds ``.venv-engine`` and the cache.
    """

    def ask() -> ArgumentTable | str:
        try:
            python = find_engine_python(given, root)
        except UsageError:
            return ""
        return read_table(python, cache_directory(root / ".k3perf"))

    return ask


def require_known_arguments(
    cell: str, arguments: Mapping[str, Any], python: Path, cache_folder: Path
) -> None:
    """Raise UsageError for an argument that the vLLM of ``python`` does not take.

    It is asked only where the shipped table does not have its release. If it cannot be
    asked, the run goes on, and vLLM itself checks the arguments when it starts.
    """
    stamp = _stamp_of(python)
    if isinstance(stamp, str) or not stamp.release or covered(arguments, stamp.release):
        return
    table = read_table(python, cache_folder)
    if isinstance(table, str):
        return
    for name, value in arguments.items():
        found = table.objection(name, value)
        if found is not None:
            step = "Choose another config, or another engine with --k3-engine-python."
            raise UsageError(
                f"{cell}: {name} {value!r}: {found[0]}. {found[1]} Checked against {table.source}."
                f" {step}"
            )


@cache
def read_table(python: Path, cache_folder: Path) -> ArgumentTable | str:
    """The table of the vLLM that ``python`` has. A text says why there is none. Raises
    nothing.
    """
    stamp = _stamp_of(python)
    if isinstance(stamp, str):
        return stamp
    path = cache_folder / FOLDER / f"{hashlib.sha256(str(python).encode()).hexdigest()[:16]}.json"
    key = {"python": str(python), **asdict(stamp)}
    kept = _kept(path, key)
    if kept is None:
        answer = list_arguments(python)
        if isinstance(answer, str):
            return answer
        kept = {**key, "arguments": answer.get("arguments")}
        # a cache that cannot be written costs the next run a few seconds
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(kept))
    try:
        return ArgumentTable(
            parse_arguments(kept["arguments"]),
            f"vLLM {stamp.release or 'of no release'} of {python}",
        )
    except (KeyError, TypeError, AttributeError):
        return f"{python} listed vLLM's arguments in a form that k3perf does not know"


@cache
def _stamp_of(python: Path) -> VllmStamp | str:
    return read_stamp(python)


def _kept(path: Path, key: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = isinstance(kept, dict) and all(kept.get(name) == value for name, value in key.items())
    return kept if same and isinstance(kept.get("arguments"), dict) else None
