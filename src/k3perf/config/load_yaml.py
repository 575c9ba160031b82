"""YAML files to frozen models: the one place of this layer that reads files.

Every failure becomes one ``ConfigFileError`` with file, key, value and next step.
Nothing is resolved here (``k3perf.config.suite`` does).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel

from k3perf.documents import DocumentProblem, Misfit, read_text, validated, yaml_of
from k3perf.errors import ConfigFileError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Document = TypeVar("Document", bound=BaseModel)

_MISSING: Final = "required key is missing"


def read_yaml(path: Path) -> dict[str, Any]:
    """One YAML mapping. Raises ConfigFileError when the file is missing, unreadable, no
    YAML or no mapping.
    """
    text = read_text(path, "Check its permissions and that it is UTF-8 text.")
    if text is None:
        raise ConfigFileError(path, "", None, "no such file", "Create it or correct the path.")
    try:
        data = yaml_of(text)
    except DocumentProblem as problem:
        raise problem.at(
            path, "Correct the line." if problem.place else "Correct the file."
        ) from None
    if not isinstance(data, dict):
        raise ConfigFileError(
            path,
            "",
            data,
            "must be a mapping of keys to values",
            "Compare with a neighbouring file.",
        )
    return data


def parse(model: type[Document], data: dict[str, Any], path: Path) -> Document:
    """``data`` as a ``model``. Raises one ConfigFileError for all problems, each with
    its key, value and next step.
    """
    try:
        return validated(model, data)
    except Misfit as misfit:
        raise _joined(model, misfit, path) from None


def load_document(model: type[Document], path: Path) -> Document:
    """Read and validate one file."""
    return parse(model, read_yaml(path), path)


def _joined(model: type[BaseModel], misfit: Misfit, path: Path) -> ConfigFileError:
    # a mistyped key comes first: it explains the missing one, and often more
    found = sorted(misfit.every, key=lambda problem: problem["type"] != "extra_forbidden")
    problems = [_problem(model, problem, path) for problem in found]
    return ConfigFileError(
        path,
        problems[0].key,
        problems[0].value,
        problems[0].problem,
        problems[0].next_step,
        others=tuple(_unexplained(problems)),
    )


def _unexplained(problems: list[ConfigFileError]) -> Iterator[ConfigFileError]:
    """All but the first, without required keys that an unknown key beside them was
    meant to be.
    """
    meant = {f"{problem.key.rpartition('.')[0]} {problem.next_step}" for problem in problems}
    for problem in problems[1:]:
        place, _, name = problem.key.rpartition(".")
        if not (problem.problem == _MISSING and f"{place} {_did_you_mean(name)}" in meant):
            yield problem


def _problem(model: type[BaseModel], problem: ErrorDetails, path: Path) -> ConfigFileError:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    value = problem["input"]
    kind = problem["type"]
    if kind == "extra_forbidden":
        return ConfigFileError(path, key, value, "unknown key", _suggest(model, location))
    if kind == "missing":
        return ConfigFileError(
            path, key, None, _MISSING, f"Add {location[-1]!r}; docs/configs.md lists every key."
        )
    message = problem["msg"].removeprefix("Value error, ")
    shown = None if isinstance(value, dict) else value
    return ConfigFileError(
        path,
        key or model.__name__,
        shown,
        message,
        "Correct the value; docs/configs.md lists every key.",
    )


def _did_you_mean(name: str) -> str:
    return f"Did you mean {name!r}?"


def _suggest(model: type[BaseModel], location: list[str]) -> str:
    fields: list[str] = list(model.model_fields)
    current: Any = model
    for part in location[:-1]:
        field = getattr(current, "model_fields", {}).get(part)
        current = field.annotation if field is not None else None
        fields = list(getattr(current, "model_fields", {}))
    near = difflib.get_close_matches(location[-1], fields, n=1)
    if near:
        return _did_you_mean(near[0])
    return f"Known keys here: {', '.join(fields)}." if fields else "Remove it."
