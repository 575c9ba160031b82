"""Text of a file to plain data, and plain data to a record: the one parser and the one
validator of all documents that come from outside.

Every way in which a file can be unfit ends in one exception. Plain data is made of
dict, list, str, int, float, bool and None, nested at most ``LARGEST_DEPTH`` deep,
without a key written twice, NaN, infinity or an integer beyond 64 bits. A record is a
frozen dataclass or a pydantic model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

import yaml

from k3perf.errors import ConfigFileError, UsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

# libyaml reads a suite six times as fast; PyYAML's wheels have it, a build from source
# may not
try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

LARGEST_DEPTH: Final = 64
LARGEST_INTEGER: Final = 2**64
LARGEST_DOCUMENT_BYTES: Final = 256 << 20
LARGEST_FOREIGN_BYTES: Final = 16 << 20
"""Of a file that may come from a stranger's pull request."""

MOST_VALUES: Final = 5_000_000
"""Aliases let a few lines of YAML stand for more values than memory holds."""

_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


Record = TypeVar("Record")


class DocumentProblem(Exception):
    """Why a text is not a document.

    ``problem`` may quote the text. ``kind`` never does: use it for files of strangers.
    ``place`` is a line or a key, empty for the whole text. ``value`` is what stands
    there, None if unknown.
    """

    def __init__(self, kind: str, problem: str = "", place: str = "", value: Any = None) -> None:
        self.kind = kind
        self.problem = problem or kind
        self.place = place
        self.value = value
        super().__init__(self.problem)

    def at(self, path: Path, next_step: str) -> ConfigFileError:
        """As the error of the file ``path``."""
        scalar = isinstance(self.value, str | int | float | bool)
        return ConfigFileError(
            path, self.place, self.value if scalar else None, self.problem, next_step
        )


class Misfit(DocumentProblem):
    """The first value that does not fit a record; ``every`` holds it and the others.

    ``kind`` is pydantic's error type, ``location`` the keys and indices that lead to
    the value.
    """

    def __init__(self, error: ValidationError, what: str = "") -> None:
        found = error.errors(include_url=False, include_context=False)
        first = found[0]
        self.location = tuple(str(part) for part in first["loc"])
        self.every = found
        message = first["msg"].removeprefix("Value error, ")
        super().__init__(
            first["type"],
            f"is not {what}: {message}" if what else message,
            ".".join(self.location),
            first["input"] if self.location else None,
        )


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """The validator of a record. Its ``json_schema()`` describes the document."""
    from pydantic import TypeAdapter  # here, since `memory plan` runs without pydantic

    return TypeAdapter(kind)


def validated(kind: type[Record], data: Any, what: str = "") -> Record:
    """Plain data as the record ``kind``. Raises Misfit; ``what`` begins its message:
    "is not WHAT".
    """
    from pydantic import ValidationError

    try:
        record: Record = adapter(cast(Hashable, kind)).validate_python(data)
    except ValidationError as error:
        raise Misfit(error, what) from None
    return record


def read_record(kind: type[Record], path: Path, next_step: str, what: str = "") -> Record:
    """The JSON file as the record ``kind``. Raises ConfigFileError with file, key,
    value and problem.
    """
    data = read_json(path, next_step)
    try:
        return validated(kind, data, what)
    except Misfit as misfit:
        raise misfit.at(path, next_step) from None


def foreign_record(
    kind: type[Record], content: bytes, shown_name: str, what: str, next_step: str
) -> Record:
    """A record from a stranger's bytes. Raises UsageError, which never quotes the
    content.
    """
    if len(content) > LARGEST_FOREIGN_BYTES:
        raise UsageError(
            f"{shown_name}: {len(content)} bytes, {what} has at most {LARGEST_FOREIGN_BYTES}."
            f" {next_step}"
        )
    try:
        return validated(kind, json_of(content))
    except DocumentProblem as problem:
        raise UsageError(f"{shown_name} is not {what}: {unquoted(problem)}. {next_step}") from None


def unquoted(problem: DocumentProblem) -> str:
    """The problem, and its key where that is a plain word, without any other text of
    the document.
    """
    shown = isinstance(problem, Misfit) and re.fullmatch(r"[\w.]{1,200}", problem.place)
    return f"{problem.kind} at {problem.place}" if shown else problem.kind


def read_text(path: Path, next_step: str) -> str | None:
    """The file's text without a byte-order mark, or None if it does not
    exist. Raises ConfigFileError for all else.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_DOCUMENT_BYTES + 1)
        return text_of(content)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigFileError(
            path, "", None, f"cannot be read: {error.strerror}", next_step
        ) from None
    except DocumentProblem as problem:
        raise problem.at(path, next_step) from None


def read_json(path: Path, next_step: str, *, finite: bool = True) -> Any:
    """The JSON file as plain data (``json_of``). Raises ConfigFileError, also for a
    missing file.
    """
    text = read_text(path, next_step)
    if text is None:
        raise ConfigFileError(path, "", None, "file not found", next_step)
    try:
        return json_of(text, finite=finite)
    except DocumentProblem as problem:
        raise problem.at(path, next_step) from None


def text_of(content: bytes) -> str:
    """UTF-8 text, with or without a byte-order mark. Raises DocumentProblem."""
    if len(content) > LARGEST_DOCUMENT_BYTES:
        raise DocumentProblem(
            f"is larger than {LARGEST_DOCUMENT_BYTES >> 20} MiB, the limit for a document"
        )
    if content.startswith(_UTF16_MARKS):
        raise DocumentProblem("is UTF-16 text; save it as UTF-8")
    zero = content.find(b"\0")
    if zero >= 0:
        raise DocumentProblem(f"is not UTF-8 text: byte {zero} is zero")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentProblem(f"is not UTF-8 text: byte {error.start} does not fit") from None


def json_of(text: str | bytes, *, finite: bool = True) -> Any:
    """JSON text to plain data. Raises DocumentProblem.

    ``finite=False`` takes NaN and Infinity, which are not JSON but stand in the
    config.json of published models.
    """
    words = text_of(text) if isinstance(text, bytes) else text
    if not words.strip():
        raise DocumentProblem("is empty")
    try:
        data = json.loads(
            words, object_pairs_hook=_unique, parse_constant=_refuse_constant if finite else None
        )
    except json.JSONDecodeError as error:
        raise DocumentProblem(
            "is not valid JSON",
            f"is not valid JSON, or was cut short: {error.msg}",
            f"line {error.lineno}",
        ) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # more digits than Python converts
        raise _too_large() from None
    if "\\ud" in words.lower():
        _refuse_half_characters(data)
    return _bounded(data, finite=finite)


def yaml_of(text: str, *, words: bool = False) -> Any:
    """One YAML document to plain data, None for an empty text. Dates stay text, with
    ``words`` numbers too. Raises DocumentProblem.
    """
    try:
        data = yaml.load(text, Loader=_WordLoader if words else _UniqueKeyLoader)  # noqa: S506 (SafeLoader subclasses)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}" if mark is not None else ""
        problem = str(getattr(error, "problem", None) or error).replace("\n", " ")
        raise DocumentProblem("is not valid YAML", f"is not valid YAML: {problem}", place) from None
    except RecursionError:
        raise _too_deep() from None
    except (
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        OverflowError,
    ) as error:  # of a tag's constructor
        raise DocumentProblem(
            "is not valid YAML", f"is not valid YAML: a value cannot be read ({str(error)[:100]})"
        ) from None
    return _bounded(data)


class _UniqueKeyLoader(_SafeLoader):
    """Safe loader that refuses a key written twice, which plain YAML would let win in
    silence.
    """


class _WordLoader(_UniqueKeyLoader):
    """Numbers and days stay the text that was written: 0.30 as a number is 0.3, another
    release.
    """


def _construct_unique(
    loader: _UniqueKeyLoader, node: yaml.MappingNode, deep: bool = False
) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=deep)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a word or a number", key_node.start_mark
            )
        if key in mapping:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is written twice", key_node.start_mark
            )
        mapping[key] = loader.construct_object(value_node, deep=deep)
    return mapping


def _resolvers_without(*kinds: str) -> dict[str, list[tuple[str, Any]]]:
    return {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in kinds]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


# Dates stay the text that was written; a model decides what a date looks like.
_UniqueKeyLoader.yaml_implicit_resolvers = _resolvers_without("timestamp")
_WordLoader.yaml_implicit_resolvers = _resolvers_without("timestamp", "float", "int")
_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in mapping if names.count(name) > 1)
        raise DocumentProblem("a key is written twice", f"key {twice!r} is written twice")
    return mapping


def _refuse_constant(text: str) -> NoReturn:
    raise DocumentProblem(
        "holds a number that is not finite", f"holds {text}, which is not a JSON number"
    )


def _refuse_half_characters(data: Any) -> None:
    """JSON can write one half of a surrogate pair, which no file and no terminal
    takes.
    """
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DocumentProblem(
            "holds half a character", "holds half a character (a lone surrogate)"
        ) from None
    except RecursionError:
        raise _too_deep() from None


def _bounded(data: Any, *, finite: bool = True) -> Any:
    """``data``, level by level: recursion could not look at what is nested too deep, or
    in itself.
    """
    level: list[Any] = [[data]]
    depth = count = 0
    while level:
        if depth > LARGEST_DEPTH:
            raise _too_deep()
        depth += 1
        deeper: list[Any] = []
        for container in level:
            count += len(container)
            if count > MOST_VALUES:
                raise DocumentProblem(f"expands to more than {MOST_VALUES} values")
            for value in container.values() if isinstance(container, dict) else container:
                if isinstance(value, dict | list):
                    deeper.append(value)
                elif (kind := _unfit(value, finite=finite)) is not None:
                    raise DocumentProblem(
                        f"holds {kind}", f"holds {kind}: {str(value)[:40]}", _place_of(data, value)
                    )
        level = deeper
    return data


def _unfit(value: Any, *, finite: bool) -> str | None:
    """What is wrong with a single value, or None if a document may hold it."""
    kind = type(value)
    if kind is float and finite and not math.isfinite(value):
        return "a number that is not finite"
    if kind is int and abs(value) > LARGEST_INTEGER:
        return "an integer of more than 64 bits"
    return (
        None
        if kind in (str, int, float, bool, type(None))
        else f"a value of the kind {kind.__name__}"
    )


def _place_of(data: Any, wanted: Any) -> str:
    """The dotted key of ``wanted`` itself. The search ends at the largest depth, since
    aliases can lead in a circle.
    """
    level: list[tuple[str, Any]] = [("", data)]
    for _ in range(LARGEST_DEPTH):
        deeper: list[tuple[str, Any]] = []
        for place, value in level:
            if value is wanted:
                return place
            items = (
                value.items()
                if isinstance(value, dict)
                else enumerate(value)
                if isinstance(value, list)
                else ()
            )
            deeper += [(f"{place}.{key}" if place else str(key), held) for key, held in items]
        level = deeper
    return ""


def _too_deep() -> DocumentProblem:
    return DocumentProblem(f"is nested more than {LARGEST_DEPTH} levels deep")


def _too_large() -> DocumentProblem:
    return DocumentProblem("holds an integer of more than 64 bits")
