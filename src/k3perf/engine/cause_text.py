"""A statement of a log as the text of a cause: one line of at most 600 characters, with
the lines that say why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from k3perf.engine import log_patterns
from k3perf.engine.log_statements import Statement

LONGEST_CAUSE: Final = 600
_LONGEST_HEAD: Final = 280
_LONGEST_LINE: Final = 240
_CUT: Final = " ... "
# pydantic shows the value that it was given: a whole configuration
_LONG_INPUT: Final = re.compile(r", input_value=.{60,}?(?=, input_type=|\]$)")


def joined(message: Sequence[str]) -> str:
    """The message on one line, runs of blanks as one."""
    return " ".join(" ".join(message).split())


def chosen_message(statement: Statement) -> list[str]:
    """Of a chain the last message that is not second-hand and not the end of a process
    that was asked to end. Else the last one.
    """
    own = [
        message
        for message in statement.messages
        if not log_patterns.matches("second_hand", message[0])
        and not log_patterns.matches("ended", message[0].strip())
    ]
    return (own or statement.messages)[-1]


def cause_text(statement: Statement, *, suffix: str = "") -> str:
    """The statement's message, and a chain's first one too, where there is room."""
    message = chosen_message(statement)
    room = LONGEST_CAUSE - len(suffix)
    text = shortened(message, room) + suffix
    first = statement.messages[0]
    if first is not message and not log_patterns.matches("second_hand", first[0]):
        caused = (
            f" ({'caused by' if statement.direct_cause else 'after'}"
            f" {shortened(first, _LONGEST_LINE)})"
        )
        repeated = joined(first) in text or joined(message) in joined(first)
        if not repeated and len(text) + len(caused) <= LONGEST_CAUSE:
            text += caused
    return text


def shortened(message: Sequence[str], room: int) -> str:
    """The message on one line of at most ``room`` characters: the first line and those
    that give a reason before all others.
    """
    lines = [_LONG_INPUT.sub("", line.strip()) for line in message]
    kept = [
        lines[0],
        *(line for line in lines[1:] if line and not log_patterns.matches("noise", line)),
    ]
    whole = joined(kept)
    if len(whole) <= room:
        return whole
    reasons = _reasons(kept)
    if not reasons:
        return _cut(whole, room)
    head = _cut(kept[0], min(_LONGEST_HEAD, room))
    for line in reasons:
        further = _cut(line, _LONGEST_LINE)
        if len(head) + len(_CUT) + len(further) > room:
            break
        head += (" " if head.endswith(":") else _CUT) + further
    return joined([head])


def _reasons(lines: Sequence[str]) -> list[str]:
    """The lines after the first that say why, and the one below each that only
    announces it (``Last error:``).
    """
    found = []
    for before, line in pairwise(lines):
        announced = before.rstrip().endswith(":") and log_patterns.matches("reasons", before)
        if announced or (log_patterns.matches("reasons", line) and not line.rstrip().endswith(":")):
            found.append(line)
    return found


def _cut(text: str, room: int) -> str:
    """Head and tail of a text that is too long: the reason stands at either end."""
    if len(text) <= room:
        return text
    tail = room // 4
    return text[: room - tail - len(_CUT)] + _CUT + text[-tail:]
