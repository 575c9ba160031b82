"""Count the tokens of a reply's events: by ids, by rising usage, or by text. Pure.
Never raises: a problem is noted in the stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from k3perf.load.alike_events import DATA, is_one_data_line, like_first_token
from k3perf.load.server_events import EventReader
from k3perf.load.stream_error import GIVEN_UP, error_in, error_text
from k3perf.records.samples import ChunkRecord, RequestStatus

DETAIL_LIMIT: Final = 200
_TEXT_KEYS: Final = ("text", "content", "reasoning_content", "reasoning", "refusal")
_DONE: Final = b"[DONE]"
_DATA_SIZE: Final = len(DATA)


@dataclass(slots=True)
class StreamTokens:
    """Counts gathered over a stream's events."""

    keeps_text: bool = False
    chunks: list[ChunkRecord] = field(default_factory=list)
    id_count: int = 0
    first_sequence_ids: list[list[int]] = field(default_factory=list)
    alike_ids: set[bytes] = field(default_factory=set)
    first_sequence_text: list[str] = field(default_factory=list)
    last_alike: bytes = b""
    usage_count: int | None = None
    usage_risen: int = 0
    usage_continuous: bool = False
    text_reads_ns: list[int] = field(default_factory=list)
    prompt_count: int | None = None
    cached_count: int | None = None
    done: bool = False
    problem: tuple[RequestStatus, str] | None = None

    @property
    def distinct_id_count(self) -> int | None:
        """Different ids of the first sequence. None where the server returns none."""
        ids = set().union(*self.first_sequence_ids) | {int(one) for one in self.alike_ids}
        return len(ids) if ids else None


def read_stream(
    pieces: list[bytes],
    times_ns: list[int],
    *,
    keep_ids: bool = False,
    keep_text: bool = False,
) -> StreamTokens:
    """Read the events of a body. ``times_ns[i]`` is when ``pieces[i]`` was read.
    ``keep_ids`` and ``keep_text`` also gather the ids and the text of the first
    sequence.
    """
    stream = StreamTokens(keeps_text=keep_text)
    alike = [] if keep_text or keep_ids else like_first_token(pieces)
    if len(alike) < len(pieces):
        alike = [*alike, *[None] * (len(pieces) - len(alike))]
    _read_pieces(stream, pieces, times_ns, alike)
    if stream.problem is None and stream.last_alike:
        _take_usage(stream, orjson.loads(stream.last_alike[_DATA_SIZE:])["usage"])
    return stream


def _read_pieces(
    stream: StreamTokens,
    pieces: list[bytes],
    times_ns: list[int],
    alike: list[re.Match[bytes] | None],
) -> None:
    """Count every event. ``stream.last_alike`` is an event that was not decoded, if no
    later one has usage.
    """
    reader = EventReader()
    between_events = True
    at_ns = 0
    form_known = False
    for at_ns, piece, matched in zip(times_ns, pieces, alike, strict=True):
        if between_events:
            if matched is not None and form_known:
                # the event differs from a decoded one only in its text and numbers
                stream.chunks.append(ChunkRecord(at_ns, 1))
                stream.id_count += 1
                stream.alike_ids.add(matched[1])
                stream.last_alike = piece
                continue
            if _is_one_event(stream, piece) and _read_usual_event(stream, piece, at_ns):
                # prompt and cached tokens are the same in every event that is alike
                form_known = form_known or matched is not None
                continue
        for event_type, payload in reader.feed(piece):
            _read_event(stream, event_type, payload, at_ns)
            if stream.problem is not None:
                return
        between_events = reader.between_events
    for event_type, payload in reader.end():
        _read_event(stream, event_type, payload, at_ns)


def _is_one_event(stream: StreamTokens, piece: bytes) -> bool:
    """Whether the piece can be read without the decoder of events."""
    return not stream.keeps_text and is_one_data_line(piece)


def shown(payload: bytes) -> str:
    """The beginning of the payload, for a message."""
    return payload[:DETAIL_LIMIT].decode("utf-8", "replace").strip()


def _read_usual_event(stream: StreamTokens, piece: bytes, at_ns: int) -> bool:
    """Decode a piece that is one whole event of the common form (a server that returns
    ids and counts). Otherwise do nothing.

    Several events in one piece are not valid JSON, so they are skipped too.
    """
    try:
        # the line ends after it are white space
        event = orjson.loads(piece[_DATA_SIZE:])
        (choice,) = event["choices"]
        ids, usage = choice["token_ids"], event["usage"]
        if (
            not ids
            or not isinstance(ids, list)
            or not usage
            or choice["index"] != 0
            or "error" in event
            or choice.get("finish_reason") in GIVEN_UP
        ):
            return False
        count = len(ids)
        _take_usage(stream, usage)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    stream.chunks.append(ChunkRecord(at_ns, count))
    stream.first_sequence_ids.append(ids)
    stream.id_count += count
    return True


def _read_event(stream: StreamTokens, event_type: bytes, payload: bytes, at_ns: int) -> None:
    payload = payload.strip()
    if payload == _DONE:
        stream.done = True
        return
    if event_type == b"error":
        stream.problem = (RequestStatus.ENGINE_ERROR, f"error in the stream: {error_text(payload)}")
        return
    try:
        event = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        stream.problem = (
            RequestStatus.BAD_PAYLOAD,
            f"invalid JSON in the stream: {error}: {shown(payload)}",
        )
        return
    if not isinstance(event, dict):
        stream.problem = (
            RequestStatus.BAD_PAYLOAD,
            f"a stream event is not an object: {shown(payload)}",
        )
        return
    if (said := error_in(event)) is not None:
        stream.problem = (RequestStatus.ENGINE_ERROR, f"error in the stream: {said}")
        return
    try:
        _count_tokens(stream, event, at_ns)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        stream.problem = (
            RequestStatus.BAD_PAYLOAD,
            f"unexpected form of a stream event ({error}): {shown(payload)}",
        )


def _count_tokens(stream: StreamTokens, event: dict[str, Any], at_ns: int) -> None:
    """Count a chunk's tokens: its ids, or the rise of its usage. Text alone only shows
    that there was a token.
    """
    ids, text = _ids_and_text(stream, event.get("choices") or ())
    risen = 0
    usage = event.get("usage")
    if usage:
        risen = _take_usage(stream, usage)
        if event.get("choices"):
            stream.usage_continuous = True
    if ids:
        stream.id_count += ids
        stream.chunks.append(ChunkRecord(at_ns, ids))
    elif risen > 0 and stream.usage_continuous and not stream.id_count:
        stream.usage_risen += risen
        stream.chunks.append(ChunkRecord(at_ns, risen))
    elif text:
        stream.text_reads_ns.append(at_ns)


def _ids_and_text(stream: StreamTokens, choices: Iterable[dict[str, Any]]) -> tuple[int, bool]:
    """The number of ids in an event, and whether a choice without ids has text."""
    ids = 0
    text = False
    for choice in choices:
        token_ids = _list_of_ids(choice)
        if token_ids:
            ids += len(token_ids)
            if not choice.get("index"):
                stream.first_sequence_ids.append(token_ids)
        elif not text:
            text = _has_text(choice)
        if stream.keeps_text and not choice.get("index"):
            _keep_text(stream, choice)
    return ids, text


def _list_of_ids(choice: dict[str, Any]) -> list[int]:
    token_ids = choice.get("token_ids")
    if token_ids and not isinstance(token_ids, list):
        raise TypeError("token_ids is not a list")
    return token_ids or []


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or choice
    return any(delta.get(key) for key in _TEXT_KEYS) or bool(delta.get("tool_calls"))


def _keep_text(stream: StreamTokens, choice: dict[str, Any]) -> None:
    """Keep the answer's text. A conversation quotes it without the reasoning."""
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    if isinstance(text, str) and text:
        stream.first_sequence_text.append(text)


def _take_usage(stream: StreamTokens, usage: dict[str, Any]) -> int:
    """Note the counts and return by how many output tokens the usage rose."""
    stream.last_alike = b""
    before = stream.usage_count or 0
    completion = usage.get("completion_tokens")
    if completion is not None:
        stream.usage_count = int(completion)
    if usage.get("prompt_tokens") is not None:
        stream.prompt_count = int(usage["prompt_tokens"])
    details = usage.get("prompt_tokens_details")
    if details and details.get("cached_tokens") is not None:
        stream.cached_count = int(details["cached_tokens"])
    return (stream.usage_count or 0) - before


def chunks_and_count(stream: StreamTokens) -> tuple[tuple[ChunkRecord, ...], int | None]:
    """Chunks with their counts, and the count of all tokens (None without ids and
    usage).
    """
    if stream.chunks:
        return tuple(stream.chunks), stream.id_count if stream.id_count else stream.usage_risen
    if not stream.text_reads_ns:
        return (), stream.usage_count
    reads_ns = stream.text_reads_ns
    if stream.usage_count is None or stream.usage_count < len(reads_ns):
        return tuple(ChunkRecord(at_ns, 1) for at_ns in reads_ns), stream.usage_count
    share, rest = divmod(stream.usage_count, len(reads_ns))
    return (
        tuple(
            ChunkRecord(at_ns, share + (position < rest)) for position, at_ns in enumerate(reads_ns)
        ),
        stream.usage_count,
    )
