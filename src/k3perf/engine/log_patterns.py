"""The patterns of ``log_patterns.yaml``, compiled once, at their first use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

FILE: Final = "log_patterns.yaml"
_GROUP_NAME: Final = re.compile(r"\(\?P<\w+>")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One entry of the file. ``given`` holds what else it says (``depth``, ``signal``,
    ``by_source``)."""

    regex: re.Pattern[str]
    reason: str
    given: dict[str, Any]


@cache
def document() -> dict[str, Any]:
    """The whole file as it is."""
    loaded = yaml.safe_load(files("k3perf.engine").joinpath(FILE).read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)  # noqa: S101  (a file of the package)
    return loaded


@cache
def patterns(section: str) -> tuple[Pattern, ...]:
    """The entries of one section, in order."""
    return tuple(
        Pattern(
            re.compile(entry["pattern"]),
            entry["reason"],
            {key: value for key, value in entry.items() if key not in ("pattern", "reason")},
        )
        for entry in document()[section]
    )


@cache
def _any_of(section: str) -> re.Pattern[str]:
    """The section as one expression without named groups: whether anything fits is
    asked of every line.
    """
    parts = (
        _GROUP_NAME.sub("(?:", entry["pattern"])
        for entry in document()[section]
        if not entry.get("by_source")
    )
    return re.compile(
        "|".join(f"(?i:{part[4:]})" if part.startswith("(?i)") else f"(?:{part})" for part in parts)
    )


def matches(section: str, text: str) -> bool:
    """Whether any entry of the section is found in the text."""
    return _any_of(section).search(text) is not None


def starts_with(section: str, text: str) -> bool:
    """Whether any entry of the section fits the text's beginning."""
    return _any_of(section).match(text) is not None


def matches_one(text: str, *sections: str) -> bool:
    """Whether an entry of any of the sections is found in the text."""
    return any(matches(section, text) for section in sections)


def first(section: str, text: str) -> tuple[Pattern, re.Match[str]] | None:
    """The first entry of the section that is found in the text, with its match."""
    for entry in patterns(section):
        match = entry.regex.search(text)
        if match is not None:
            return entry, match
    return None
