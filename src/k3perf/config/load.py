"""YAML files to frozen models: the one place of this layer that reads files.

Every failure becomes one ``ConfigFileError`` with file, key, value and next step. Nothing is resolved here (``k3perf.config.suite`` does).
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from k3perf.documents import DocumentProblem, read_text, yaml_of
from k3perf.errors import ConfigFileError

Document = TypeVar("Document", bound=BaseModel)


def read_yaml(path: Path) -> dict[str, Any]:
    """One YAML mapping. Raises ConfigFileError when the file is missing, unreadable, no YAML or no mapping."""
    text = read_text(path, "Check its permissions and that it is UTF-8 text.")
    if text is None:
        raise ConfigFileError(path, "", None, "no such file", "Create it or correct the path.")
    try:
        data = yaml_of(text)
    except DocumentProblem as problem:
        raise problem.at(path, "Correct the line." if problem.place else "Correct the file.") from None
    if not isinstance(data, dict):
        raise ConfigFileError(path, "", data, "must be a mapping of keys to values", "Compare with a neighbouring file.")
    return data


def parse(model: type[Document], data: dict[str, Any], path: Path) -> Document:
    """``data`` as a ``model``; the first problem is reported with its key, value and, for a mistyped key, the nearest known one."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _first_problem(model, error, path) from None


def load_document(model: type[Document], path: Path) -> Document:
    """Read and validate one file."""
    return parse(model, read_yaml(path), path)


def _first_problem(model: type[BaseModel], error: ValidationError, path: Path) -> ConfigFileError:
    problems = error.errors(include_url=False, include_context=False)
    # A mistyped key is reported twice, as unknown and as missing; the unknown one is what the author can see.
    problem = next((found for found in problems if found["type"] == "extra_forbidden"), problems[0])
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    value = problem["input"]
    kind = problem["type"]
    others = error.error_count() - 1
    more = f" ({others} more problem{'s' if others > 1 else ''} after this one.)" if others else ""
    if kind == "extra_forbidden":
        return ConfigFileError(path, key, value, "unknown key", _suggest(model, location) + more)
    if kind == "missing":
        return ConfigFileError(path, key, None, "required key is missing", f"Add {location[-1]!r}; docs/configs.md lists every key.{more}")
    message = problem["msg"].removeprefix("Value error, ")
    shown = None if isinstance(value, dict) else value
    return ConfigFileError(path, key or model.__name__, shown, message, f"Correct the value; docs/configs.md lists every key.{more}")


def _suggest(model: type[BaseModel], location: list[str]) -> str:
    fields: list[str] = list(model.model_fields)
    current: Any = model
    for part in location[:-1]:
        field = getattr(current, "model_fields", {}).get(part)
        current = field.annotation if field is not None else None
        fields = list(getattr(current, "model_fields", {}))
    near = difflib.get_close_matches(location[-1], fields, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Known keys here: {', '.join(fields)}." if fields else "Remove it."
