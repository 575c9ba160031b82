"""What a check of the machine found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """FAIL stops the start; WARN is shown and left to the round rules, which see what
    it does to the numbers.
    """

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was read and needed, and the next step when it is not OK."""

    name: str
    level: Level
    reading: str
    needed: str
    text: str = ""


def judged(
    name: str,
    fit: bool,
    reading: str,
    needed: str,
    text: str = "",
    *,
    otherwise: Level = Level.FAIL,
) -> Finding:
    """OK without a text if ``fit``, else ``otherwise`` with it."""
    return (
        Finding(name, Level.OK, reading, needed)
        if fit
        else Finding(name, otherwise, reading, needed, text)
    )
