"""Errors inside a stream, in the forms that servers, older servers and proxies use.
Pure.

    {"error": {"message": ..., "type": ..., "code": ...}}     vLLM, OpenAI
    {"object": "error", "message": ..., "type": ..., ...}     older vLLM, some proxies
    {"error": "..."}, {"errors": [...]}                       TGI, Triton, GraphQL
    {"detail": "..."}, {"detail": [{"msg": ...}]}             FastAPI
    {"message": ..., "code": ...}, {"error_msg": ...}         gateways
    {"choices": [{"finish_reason": "error"}]}                 an engine that gave up
    event: error                                              any data
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

_MESSAGES: Final = (
    "message",
    "msg",
    "error_msg",
    "error_message",
    "errorMessage",
    "reason",
    "title",
    "description",
)
_HOLDERS: Final = ("error", "errors", "detail", "details")
_KINDS: Final = ("type", "error_type", "code", "status", "status_code", "error_code")
GIVEN_UP: Final = ("error", "abort", "aborted")
"""Values of a choice's ``finish_reason`` for a request that the engine aborted."""
_ANSWER: Final = ("choices", "usage")


def error_in(event: Mapping[str, Any]) -> str | None:
    """The error message of the event, word for word. None for an event that is part of
    an answer.
    """
    for holder in _HOLDERS:
        if event.get(holder) and (holder.startswith("error") or not _is_answer(event)):
            return _text(event[holder], event)
    if (
        event.get("object") == "error"
        or event.get("type") == "error"
        or event.get("status") == "error"
    ):
        return _text(event, event)
    if not _is_answer(event) and any(
        isinstance(event.get(name), str) and event[name] for name in _MESSAGES
    ):
        return _text(event, event)
    return _given_up(event)


def error_text(payload: bytes) -> str:
    """The message of an event of the type ``error``, whatever its form."""
    try:
        event = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return payload.decode("utf-8", "replace").strip()
    if isinstance(event, dict):
        return error_in(event) or _text(event, event)
    return _text(event, {})


def _is_answer(event: Mapping[str, Any]) -> bool:
    return any(name in event for name in _ANSWER)


def _given_up(event: Mapping[str, Any]) -> str | None:
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        reason = choice.get("finish_reason") if isinstance(choice, Mapping) else None
        if reason in GIVEN_UP:
            return f'finish_reason "{reason}"'
    return None


def _text(value: Any, event: Mapping[str, Any]) -> str:
    """The message in ``value``, and the kinds of error next to it."""
    message = _message(value)
    named = value if isinstance(value, Mapping) else event
    kinds = [
        f"{named[name]}"
        for name in _KINDS
        if isinstance(named.get(name), str | int) and str(named[name]) not in ("", "error")
    ]
    return f"{message} ({', '.join(kinds)})" if kinds else message


def _message(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "; ".join(_message(part) for part in value)
    if isinstance(value, Mapping):
        for name in (*_MESSAGES, *_HOLDERS):
            if value.get(name):
                return _message(value[name])
    return orjson.dumps(value).decode()
