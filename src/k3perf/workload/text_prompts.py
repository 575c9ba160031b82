"""Real prompts from a file: ShareGPT-like conversations, chat messages and plain
prompts, as one JSON array or as JSON lines.

Reads the named file and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from k3perf.errors import ConfigFileError, UsageError, shortened

_PROMPT_KEYS: Final = ("prompt", "text", "question", "instruction", "input", "content")
_OUTPUT_KEYS: Final = ("output_tokens", "max_tokens", "output_length", "expected_output_len")
_ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bard": "assistant",
    "system": "system",
    "developer": "developer",
}
_MOST_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class PromptText:
    """What one request adds to its conversation. ``output_token_count`` is the file's,
    or None.
    """

    messages: tuple[Message, ...]
    output_token_count: int | None = None


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The conversations of a file, each a tuple of turns. ``sha256`` is the file's.
    ``omitted_count``: records without a user's message.
    """

    path: str
    sha256: str
    conversations: tuple[tuple[PromptText, ...], ...]
    omitted_count: int = 0


def read_prompts(path: Path) -> PromptFile:
    """Read a prompt file. Raises UsageError for a file that cannot be read, and
    ConfigFileError for one that holds no prompt.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"--prompts {path}: {error.strerror}. Give a JSON or JSONL file."
        ) from None
    conversations = []
    reasons: list[str] = []
    omitted = 0
    for where, record in _records(path, data):
        turns = _turns(record)
        if turns:
            conversations.append(turns)
            continue
        omitted += 1
        if len(reasons) < _MOST_REASONS:
            reasons.append(where)
    if not conversations:
        raise ConfigFileError(
            path,
            reasons[0] if reasons else "line 1",
            "",
            "no prompt was found",
            "Give `conversations` (ShareGPT), `messages` (chat), or `prompt` in each record.",
        )
    return PromptFile(str(path), hashlib.sha256(data).hexdigest(), tuple(conversations), omitted)


def _records(path: Path, data: bytes) -> Iterator[tuple[str, Any]]:
    """(place, record) for each record of the file."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompts {path}: not UTF-8 at byte {error.start}") from None
    if text.lstrip().startswith("["):
        try:
            array = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--prompts {path}: not valid JSON ({error})") from None
        yield from ((f"[{number}]", record) for number, record in enumerate(array))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigFileError(
                path,
                f"line {number}",
                shortened(line.strip()),
                f"not valid JSON ({error})",
                "Write one JSON value per line, or one JSON array.",
            ) from None


def _turns(record: Any) -> tuple[PromptText, ...]:
    """The turns of one record. Its replies are omitted: the server gives others."""
    if isinstance(record, str):
        return (PromptText((Message("user", record),)),) if record.strip() else ()
    if isinstance(record, list):
        return _turns_of_messages(record, None)
    if not isinstance(record, dict):
        return ()
    output_tokens = _output_tokens(record)
    for key in ("conversations", "conversation", "messages"):
        if isinstance(record.get(key), list):
            return _turns_of_messages(record[key], output_tokens)
    body = record.get("body")
    if isinstance(body, dict):  # a line of an OpenAI batch file
        return _turns(body)
    for key in _PROMPT_KEYS:
        if isinstance(record.get(key), str) and record[key].strip():
            return (PromptText((Message("user", record[key]),), output_tokens),)
    return ()


def _turns_of_messages(messages: list[Any], output_tokens: int | None) -> tuple[PromptText, ...]:
    turns: list[PromptText] = []
    pending: list[Message] = []
    for entry in messages:
        message = _message(entry)
        if message is None or message.role == "assistant":
            continue
        pending.append(message)
        if message.role == "user":
            turns.append(PromptText(tuple(pending), output_tokens))
            pending = []
    return tuple(turns)


def _message(entry: Any) -> Message | None:
    if not isinstance(entry, dict):
        return None
    role = _ROLES.get(str(entry.get("role", entry.get("from", ""))).lower())
    content = entry.get("content", entry.get("value"))
    if isinstance(content, list):  # parts of a multimodal message
        content = "\n".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    if role is None or not isinstance(content, str) or not content.strip():
        return None
    return Message(role, content)


def _output_tokens(record: dict[str, Any]) -> int | None:
    for key in _OUTPUT_KEYS:
        value = record.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
