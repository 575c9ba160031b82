"""What one value of a log or trace means: a moment, a token count, the name of a field.

A number says when something happened only with a unit. Since 1970 it has 10 digits in
seconds, 13 in milliseconds, 16 in microseconds and 19 in nanoseconds (until the year
2286), so its size is the unit. Any other number needs a unit from its field's name,
from the file's form or from the caller.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from k3perf.documents import yaml_of

MOST_TOKENS: Final = 10_000_000
_LARGEST: Final = 10**40
_DIGITS: Final = re.compile(r"\s*[+-]?\d{1,40}(\.\d{1,40})?([eE][+-]?\d{1,3})?\s*")


class TimeUnit(StrEnum):
    """Units of times in files; the value is what ``--time-unit`` takes."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"


UNIT_MS: Final = {
    TimeUnit.SECONDS: 1e3,
    TimeUnit.MILLISECONDS: 1.0,
    TimeUnit.MICROSECONDS: 1e-3,
    TimeUnit.NANOSECONDS: 1e-6,
}
_EPOCH: Final = {
    TimeUnit.SECONDS: (10**9, 10**10),
    TimeUnit.MILLISECONDS: (10**12, 10**13),
    TimeUnit.MICROSECONDS: (10**15, 10**16),
    TimeUnit.NANOSECONDS: (10**18, 10**19),
}
_FIELDS: Final = yaml_of(files("k3perf.workload").joinpath("log_fields.yaml").read_text("utf-8"))
_NAMED_UNITS: Final = {
    name: TimeUnit(unit) for unit, names in _FIELDS["units"].items() for name in names
}
_UNIT_SUFFIX: Final = re.compile(
    r"(?<=[a-z])(?:_|(?=[A-Z]))(" + "|".join(_NAMED_UNITS) + r")$", re.IGNORECASE
)
TIME_FIELDS: Final = tuple(_FIELDS["times"])
PROMPT_FIELDS: Final = frozenset(_FIELDS["prompt_tokens"])
REPLY_FIELDS: Final = frozenset(_FIELDS["reply_tokens"])
# (columns, the form's name, the unit of a time that is not since 1970)
CSV_FORMS: Final = tuple(
    (frozenset(form["columns"]), str(form["name"]), form["unit"] and TimeUnit(form["unit"]))
    for form in _FIELDS["csv_forms"]
)
# what is not a moment, in the words of the report
NO_UNIT: Final = "time without a unit (not since 1970)"
NOT_FINITE: Final = "time that is not finite"
OUTSIDE_YEARS: Final = "time outside the years 1970 to 2286"
NOT_A_TIME: Final = "time that is neither a number nor a date"
OTHER_UNIT: Final = "time of another size than the unit in its field's name"


@dataclass(frozen=True, slots=True)
class Moment:
    """``at_ms`` since 1970, or since the file's start where ``is_since_1970`` is false.
    ``reading``: how the value was read, for the report.
    """

    at_ms: float
    is_since_1970: bool
    reading: str


@lru_cache(maxsize=4096)
def normal_name(name: str) -> str:
    """A field's name without case, spaces and signs: ``Request tokens`` and
    ``request_tokens`` are one.
    """
    return "".join(character for character in name.casefold() if character.isalnum())


@lru_cache(maxsize=4096)
def named_unit(name: str) -> tuple[str, TimeUnit | None]:
    """A field's normal name without the unit that it ends in, and that unit:
    ``timestamp_ms``.
    """
    found = _UNIT_SUFFIX.search(name)
    if found is None:
        return normal_name(name), None
    return normal_name(name[: found.start()]), _NAMED_UNITS[found[1].casefold()]


def is_known_field(name: str) -> bool:
    """Whether a field of this name holds a time or a token count."""
    normal = normal_name(name)
    return normal in PROMPT_FIELDS or normal in REPLY_FIELDS or named_unit(name)[0] in TIME_FIELDS


def number(value: Any) -> int | float | None:
    """A number, or a string of digits as one; None for anything else, booleans among
    it.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        text = value.strip()
        value = int(text) if text.lstrip("+-").isdigit() else float(text)
    if isinstance(value, int) and abs(value) > _LARGEST:
        return math.inf if value > 0 else -math.inf  # beyond what a float can hold
    return value if isinstance(value, int | float) else None


def unit_by_size(value: float) -> TimeUnit | None:
    """The unit of a time since 1970; None when the value is not one."""
    return next((unit for unit, (low, high) in _EPOCH.items() if low <= value < high), None)


def moment(
    value: Any,
    *,
    field_unit: TimeUnit | None = None,
    given: TimeUnit | None = None,
    form: TimeUnit | None = None,
) -> Moment | str:
    """When that was, or why the value does not say it.

    Units come from ``given`` (the caller), else from the value's size, else from
    ``field_unit`` (the field's name) or ``form`` (the file's form).
    """
    found = number(value)
    if found is None:
        return _date(value) if isinstance(value, str) else NOT_A_TIME
    if not math.isfinite(found):
        return NOT_FINITE
    by_size = unit_by_size(found)
    unit = given or by_size or field_unit or form
    if unit is None:
        return NO_UNIT
    if given is None and None not in (by_size, field_unit) and by_size is not field_unit:
        return OTHER_UNIT
    if not 0 <= found < _EPOCH[unit][1]:
        return OUTSIDE_YEARS
    since = unit_by_size(found) is unit
    reading = f"{unit.name.lower()} since {'1970' if since else 'the start'}"
    return Moment(found * UNIT_MS[unit], since, reading)


def _date(text: str) -> Moment | str:
    cleaned = text.strip().removesuffix(" UTC")
    try:
        date = datetime.fromisoformat(cleaned)
        aware = date if date.tzinfo else date.replace(tzinfo=UTC)
        at_ms = aware.timestamp() * UNIT_MS[TimeUnit.SECONDS]
    except (ValueError, OverflowError):
        return NOT_A_TIME
    if not 0 <= at_ms < _EPOCH[TimeUnit.MILLISECONDS][1]:
        return OUTSIDE_YEARS
    has_zone = date.tzinfo is not None or cleaned != text.strip()
    return Moment(
        at_ms,
        True,
        f"ISO 8601 dates {'with' if has_zone else 'without'} a"
        f" zone{'' if has_zone else ', read as UTC'}",
    )


def token_count(value: Any) -> int | str:
    """A whole number of tokens, 1 or more, or why the value is not one. Whole floats
    are counts too.
    """
    found = number(value)
    if found is None:
        return "no token counts"
    if not math.isfinite(found) or found != int(found):
        return "token count that is not a whole number"
    if found < 1:
        return "no tokens in prompt or reply"
    return int(found) if found <= MOST_TOKENS else f"token count above {MOST_TOKENS:,}"
