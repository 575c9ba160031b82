"""YAML files to frozen models: the one place of this layer that reads files.

Every failure becomes one ``ConfigFileError`` with file, key, value and next step. Nothing is resolved here (``k3perf.config.suite`` does).
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from k3perf.errors import ConfigFileError

try:  # libyaml reads a suite six times as fast; PyYAML's wheels have it, a build from source may not
    from yaml import CSafeLoader as _SafeLoader
except ImportError:
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Document = TypeVar("Document", bound=BaseModel)

_MISSING: Final = "required key is missing"


class _UniqueKeyLoader(_SafeLoader):
    """Safe loader that refuses a key written twice, which plain YAML would let win in silence."""


def _construct_unique(loader: _UniqueKeyLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=deep)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a word or a number", key_node.start_mark)
        if key in mapping:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is written twice", key_node.start_mark)
        mapping[key] = loader.construct_object(value_node, deep=deep)
    return mapping


# Dates stay the text that was written; a model decides what a date looks like.
_UniqueKeyLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_unique)


def read_yaml(path: Path) -> dict[str, Any]:
    """One YAML mapping. Raises ConfigFileError when the file is missing, unreadable, no YAML or no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigFileError(path, "", None, "no such file", "Create it or correct the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(path, "", None, f"cannot be read: {error}", "Check its permissions and that it is UTF-8 text.") from None
    try:
        data = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 (a SafeLoader subclass)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else ""
        problem = str(getattr(error, "problem", None) or error).replace("\n", " ")
        raise ConfigFileError(path, where, None, f"is no valid YAML: {problem}", "Correct the line.") from None
    if not isinstance(data, dict):
        raise ConfigFileError(path, "", data, "must be a mapping of keys to values", "Compare with a neighbouring file.")
    return data


def parse(model: type[Document], data: dict[str, Any], path: Path) -> Document:
    """``data`` as a ``model``. Raises one ConfigFileError for all problems, each with its key, value and next step."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _joined(model, error, path) from None


def load_document(model: type[Document], path: Path) -> Document:
    """Read and validate one file."""
    return parse(model, read_yaml(path), path)


def _joined(model: type[BaseModel], error: ValidationError, path: Path) -> ConfigFileError:
    found = error.errors(include_url=False, include_context=False)
    # a mistyped key comes first: it explains the missing one, and often more
    found.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    problems = [_problem(model, problem, path) for problem in found]
    return ConfigFileError(
        path, problems[0].key, problems[0].value, problems[0].problem, problems[0].next_step, others=tuple(_unexplained(problems))
    )


def _unexplained(problems: list[ConfigFileError]) -> Iterator[ConfigFileError]:
    """All but the first, without required keys that an unknown key beside them was meant to be."""
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
        return ConfigFileError(path, key, None, _MISSING, f"Add {location[-1]!r}; docs/configs.md lists every key.")
    message = problem["msg"].removeprefix("Value error, ")
    shown = None if isinstance(value, dict) else value
    return ConfigFileError(path, key or model.__name__, shown, message, "Correct the value; docs/configs.md lists every key.")


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
