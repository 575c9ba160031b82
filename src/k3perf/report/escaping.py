"""Text and numbers from outside to text that GitHub shows as written: no markup, HTML,
mention, link or workflow command.
"""

from __future__ import annotations

import re
import unicodedata

from k3perf.units import format_bytes

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")
_KEPT = frozenset(" ,.;=/%-+'?")
_ZERO_WIDTH_SPACE = "\u200b"
# GitHub makes links and mentions out of rendered text, so entities do not stop it:
# these need a break between the characters.
_AUTOLINKS = re.compile(r"@|#|www\.|://|\bGH-", re.IGNORECASE)
_LARGEST_PLAIN_NUMBER = 1e15


def visible(text: str, limit: int) -> str:
    """One line of at most ``limit`` characters without control, direction, surrogate or
    other invisible characters.
    """
    shown = "".join(
        " " if unicodedata.category(character)[0] in "CZ" else character
        for character in text[: 4 * limit]
    )
    squeezed = re.sub(r" +", " ", shown).strip()
    return squeezed if len(squeezed) <= limit else squeezed[: limit - 1] + "…"


def prose(text: str, limit: int = 300) -> str:
    """Text for a paragraph or table cell: every character that could mean something to
    Markdown or HTML becomes an entity.
    """
    broken = _AUTOLINKS.sub(
        lambda match: match[0][0] + _ZERO_WIDTH_SPACE + match[0][1:], visible(text, limit)
    )
    return _entities(broken)


def code(text: str, limit: int = 80) -> str:
    """A name in code type. Plain names go between backticks, others through entities
    inside the HTML element.
    """
    shown = visible(text, limit)
    return f"`{shown}`" if _PLAIN_NAME.fullmatch(shown) else f"<code>{_entities(shown)}</code>"


def _entities(text: str) -> str:
    return "".join(
        character
        if character in _KEPT
        or character == _ZERO_WIDTH_SPACE
        or (character.isalnum() and unicodedata.category(character)[0] in "LN")
        else f"&#{ord(character)};"
        for character in text
    )


def command_data(text: str, limit: int = 1_000) -> str:
    """The message of a workflow command, on one line. ``%`` and line ends are escaped
    as the runner undoes them.
    """
    return visible(text, limit).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def command_property(text: str, limit: int = 200) -> str:
    """A property of a workflow command: ``:`` and ``,`` are escaped too."""
    return command_data(text, limit).replace(":", "%3A").replace(",", "%2C")


def number(value: float | None, unit: str = "") -> str:
    """A number with its unit and four significant digits. Bytes in binary units, None
    as ``-``.
    """
    if value is None:
        return "-"
    if abs(value) >= _LARGEST_PLAIN_NUMBER:
        return f"{value:.3e}"
    if unit == "bytes":
        return f"{format_bytes(value)} ({value:,.0f})" if abs(value) >= 1024 else f"{value:.0f} B"
    shown = f"{value:,.0f}" if value == int(value) and abs(value) >= 1_000 else f"{value:.4g}"
    return f"{shown} {prose(unit, 20)}" if unit else shown


def percent(ratio: float | None) -> str:
    """A loss as a signed percentage, positive is worse. None as ``-``."""
    if ratio is None:
        return "-"
    return f"{ratio * 100:+.1f} %" if abs(ratio) < 100 else f"{ratio * 100:+.1e} %"
