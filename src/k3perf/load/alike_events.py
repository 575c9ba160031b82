"""Recognise events that differ from a decoded one only in text and numbers. Pure.

A server writes one event after the other in one form. So the first event with a token
is decoded, and an expression is made of its bytes: the text may be any plain string,
and the token's id and the counts any numbers. What matches is valid JSON of the same
structure, and holds exactly one id. Matching costs a third of decoding
(docs/studies/2026-11-29-client-cost.md).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import orjson

from k3perf.load.stream_error import GIVEN_UP, error_in

_FIRST_PIECES: Final = 4
_FEWEST_PIECES: Final = 8
DATA: Final = b"data: "
_END: Final = b"\n\n"
# a JSON string without control characters, of ASCII, with simple escapes
_PLAIN: Final = rb"[ !#-\[\]-~]*(?:\\[nrtbf\"\\/][ !#-\[\]-~]*)*"
_NUMBER: Final = rb"(?:0|[1-9][0-9]{0,17})"
_CAPTURED: Final = b"(" + _NUMBER + b")"  # group 1 of a match: the token's id
# An unescaped quote cannot be part of a string, so each key below is a key, or a whole
# string that looks like one. The latter leaves a wrong count, and the event is refused.
_VARIABLE: Final = re.compile(
    rb'("(?:text|content|reasoning|reasoning_content)":")(' + _PLAIN + rb')(?=")'
    rb'|("token_ids":\[)([0-9]+)(?=\])'
    rb'|("(?:completion_tokens|total_tokens)":)([0-9]+)(?=[,}])'
)
_TEXT, _IDS, _COUNT = 1, 3, 5


def like_first_token(pieces: list[bytes]) -> list[re.Match[bytes] | None]:
    """For each piece whether it is an event like the first with a token. Empty if the
    first pieces hold no event of the usual form, or if the reply is short.
    """
    if len(pieces) < _FEWEST_PIECES:
        return []
    for piece in pieces[:_FIRST_PIECES]:
        form = _form_of(piece)
        if form:
            return list(map(_compiled(form).fullmatch, pieces))
    return []


def is_one_data_line(piece: bytes) -> bool:
    """Whether the piece is one data line and an empty one. A line end is white space to
    JSON, but ends the data line.
    """
    return (
        piece.startswith(DATA)
        and piece.find(_END[:1]) == len(piece) - len(_END)
        and piece.endswith(_END)
        and b"\r" not in piece
    )


@lru_cache(maxsize=64)
def _compiled(form: bytes) -> re.Pattern[bytes]:
    return re.compile(form)


def _form_of(piece: bytes) -> bytes:
    """The expression for events like this one. Empty for an event that is not one whole
    usual event with exactly one id.
    """
    if not (is_one_data_line(piece) and _is_usual(piece)):
        return b""
    form = b""
    position = 0
    kinds = []
    for match in _VARIABLE.finditer(piece):
        kind = match.lastindex or 0
        kinds.append(kind - 1)
        form += re.escape(piece[position : match.start(kind)])
        form += _PLAIN if kind - 1 == _TEXT else _NUMBER if kind - 1 != _IDS else _CAPTURED
        position = match.end()
    if kinds.count(_TEXT) != 1 or kinds.count(_IDS) != 1 or kinds.count(_COUNT) > 2:
        return b""
    return form + re.escape(piece[position:])


def _is_usual(piece: bytes) -> bool:
    """Whether the piece is one event with one choice, one id, usage and no error."""
    try:
        event = orjson.loads(piece[len(DATA) :])
        (choice,) = event["choices"]
        (_,) = choice["token_ids"]
        return (
            choice["index"] == 0
            and choice.get("finish_reason") not in GIVEN_UP
            and isinstance(event["usage"]["completion_tokens"], int)
            and error_in(event) is None
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
