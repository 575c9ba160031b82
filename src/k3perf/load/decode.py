"""Turn the timed reads of one response into its request sample: HTTP framing,
server-sent events, JSON, token counts, status.

Pure. Runs after the round (or between turns of a conversation), so that its cost never
delays a read. Never raises: any bytes give one sample with one status.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import httptools
import orjson

from k3perf.load.exchange import Exchange
from k3perf.load.stream_error import GIVEN_UP, error_in, error_text
from k3perf.records.samples import ChunkRecord, RequestSample, RequestStatus

_TEXT_KEYS: Final = ("text", "content", "reasoning_content", "reasoning", "refusal")
_DETAIL_LIMIT: Final = 200
# the engine's error message is kept word for word
_ERROR_LIMIT: Final = 2000
_DONE: Final = b"[DONE]"
_DATA: Final = b"data: "
_DATA_SIZE: Final = len(_DATA)
_EVENT_END: Final = b"\n\n"


@dataclass(frozen=True, slots=True)
class Expected:
    """The values that a response is compared with."""

    prompt_token_count: int
    output_token_count: int
    sequence_count: int = 1


@dataclass(slots=True)
class _Body:
    """Decode HTTP framing: status, content type, and body pieces, each with the time of
    the read that completed it.
    """

    status_code: int = 0
    content_type: str = ""
    content_encoding: str = ""
    complete: bool = False
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    now_ns: int = 0
    parser: Any = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.content_type = value.decode("latin-1")
        elif name.lower() == b"content-encoding":
            self.content_encoding = value.decode("latin-1").strip().lower()

    def on_headers_complete(self) -> None:
        self.status_code = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.pieces.append((self.now_ns, body))

    def on_message_complete(self) -> None:
        self.complete = True


@dataclass(slots=True)
class _Stream:
    """Counts gathered over a stream's events."""

    chunks: list[ChunkRecord] = field(default_factory=list)
    id_count: int = 0
    first_sequence_ids: list[list[int]] = field(default_factory=list)
    last_usage: dict[str, Any] | None = None
    usage_count: int | None = None
    usage_risen: int = 0
    usage_continuous: bool = False
    text_reads_ns: list[int] = field(default_factory=list)
    prompt_count: int | None = None
    cached_count: int | None = None
    done: bool = False
    event_type: bytes = b""
    problem: tuple[RequestStatus, str] | None = None


def decode_exchange(
    exchange: Exchange, expected: Expected, *, request_index: int, round_end_ns: int
) -> RequestSample:
    """The sample of one exchange. ``round_end_ns`` is the end of an exchange that never
    ended.
    """
    body = _unframe(exchange)
    stream = _read_events(body) if body.status_code == 200 and _is_event_stream(body) else _Stream()
    chunks, count = _chunks_and_count(stream)
    status, detail = _judge(exchange, body, stream, count, expected)
    return RequestSample(
        request_index=request_index,
        status=status,
        scheduled_ns=exchange.scheduled_ns,
        sent_ns=exchange.sent_ns,
        end_ns=exchange.end_ns if exchange.end_ns is not None else round_end_ns,
        chunks=chunks,
        prompt_token_count=(
            stream.prompt_count if stream.prompt_count is not None else expected.prompt_token_count
        ),
        requested_output_token_count=expected.output_token_count * expected.sequence_count,
        output_token_count=count if count is not None else 0,
        sequence_count=expected.sequence_count,
        cached_prompt_token_count=stream.cached_count,
        detail=detail[: _ERROR_LIMIT if status is RequestStatus.ENGINE_ERROR else _DETAIL_LIMIT],
        distinct_token_count=(
            len(set().union(*stream.first_sequence_ids)) if stream.first_sequence_ids else None
        ),
    )


def reply_token_ids(exchange: Exchange) -> tuple[int, ...]:
    """The ids of the reply's first sequence as the server returned them, or an empty
    tuple.
    """
    body = _unframe(exchange)
    if body.status_code != 200 or not _is_event_stream(body):
        return ()
    return tuple(token for ids in _read_events(body).first_sequence_ids for token in ids)


def _unframe(exchange: Exchange) -> _Body:
    body = _Body()
    parser = httptools.HttpResponseParser(body)
    body.parser = parser
    for at_ns, data in exchange.reads:
        body.now_ns = at_ns
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            body.complete = False
            return body
    return body


def _is_event_stream(body: _Body) -> bool:
    return body.content_type.split(";", 1)[0].strip().lower() == "text/event-stream"


def _read_events(body: _Body) -> _Stream:
    stream = _Stream()
    pending = b""
    for at_ns, piece in body.pieces:
        if (
            not pending
            and piece.startswith(_DATA)
            and piece.endswith(_EVENT_END)
            and _read_usual_event(stream, piece, at_ns)
        ):
            continue
        if pending or not piece.endswith(b"\n"):
            piece = pending + piece  # noqa: PLW2901 - the piece is completed by what was left over
            cut = piece.rfind(b"\n") + 1
            pending = piece[cut:]
            piece = piece[:cut]  # noqa: PLW2901
        for line in piece.split(b"\n"):
            _read_line(stream, line, at_ns)
            if stream.problem is not None:
                return stream
    if stream.last_usage:
        try:
            _take_usage(stream, stream.last_usage)
        except (AttributeError, TypeError, ValueError) as error:
            stream.problem = (RequestStatus.BAD_PAYLOAD, f"unexpected form of usage ({error})")
    return stream


def _read_line(stream: _Stream, line: bytes, at_ns: int) -> None:
    """Read one line of a server-sent event. An empty line ends the event
    and its type.
    """
    if line.startswith(b"data:"):
        _read_event(stream, line[5:].strip(), at_ns)
    elif line.startswith(b"event:"):
        stream.event_type = line[6:].strip()
    elif not line.strip():
        stream.event_type = b""


def _read_usual_event(stream: _Stream, piece: bytes, at_ns: int) -> bool:
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
    except (KeyError, TypeError, ValueError):
        return False
    stream.chunks.append(ChunkRecord(at_ns, count))
    stream.first_sequence_ids.append(ids)
    stream.id_count += count
    stream.last_usage = usage  # of all usage only the last one matters
    return True


def _read_event(stream: _Stream, payload: bytes, at_ns: int) -> None:
    if payload == _DONE:
        stream.done = True
        return
    if stream.event_type == b"error":
        stream.problem = (RequestStatus.ENGINE_ERROR, f"error in the stream: {error_text(payload)}")
        return
    try:
        event = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        stream.problem = (
            RequestStatus.BAD_PAYLOAD,
            f"invalid JSON in the stream: {error}: {_shown(payload)}",
        )
        return
    if not isinstance(event, dict):
        stream.problem = (
            RequestStatus.BAD_PAYLOAD,
            f"a stream event is not an object: {_shown(payload)}",
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
            f"unexpected form of a stream event ({error}): {_shown(payload)}",
        )


def _count_tokens(stream: _Stream, event: dict[str, Any], at_ns: int) -> None:
    """Count a chunk's tokens: its ids, or the rise of its usage. Text alone only shows
    that there was a token.
    """
    ids = 0
    text = False
    for choice in event.get("choices") or ():
        token_ids = _list_of_ids(choice)
        if token_ids:
            ids += len(token_ids)
            if not choice.get("index"):
                stream.first_sequence_ids.append(token_ids)
        elif not text:
            text = _has_text(choice)
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


def _list_of_ids(choice: dict[str, Any]) -> list[int]:
    token_ids = choice.get("token_ids")
    if token_ids and not isinstance(token_ids, list):
        raise TypeError("token_ids is not a list")
    return token_ids or []


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or choice
    return any(delta.get(key) for key in _TEXT_KEYS) or bool(delta.get("tool_calls"))


def _take_usage(stream: _Stream, usage: dict[str, Any]) -> int:
    """Note the counts and return by how many output tokens the usage rose."""
    stream.last_usage = None
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


def _chunks_and_count(stream: _Stream) -> tuple[tuple[ChunkRecord, ...], int | None]:
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


def _judge(
    exchange: Exchange, body: _Body, stream: _Stream, count: int | None, expected: Expected
) -> tuple[RequestStatus, str]:
    broken = _transport_problem(exchange, body, stream)
    if broken is not None:
        return broken
    if count is None:
        return RequestStatus.NO_USAGE, "neither token ids nor usage in the stream"
    if stream.id_count and stream.usage_count is not None and stream.usage_count != count:
        return (
            RequestStatus.BAD_PAYLOAD,
            f"the stream's ids are {count} tokens, its usage says {stream.usage_count}",
        )
    asked = expected.output_token_count * expected.sequence_count
    if count < asked:
        return RequestStatus.SHORT, f"{count} of {asked} tokens"
    if count > asked:
        return RequestStatus.LONG, f"{count} tokens, {asked} were requested"
    if stream.prompt_count is not None and stream.prompt_count != expected.prompt_token_count:
        return (
            RequestStatus.WRONG_PROMPT,
            (
                f"the server read {stream.prompt_count} prompt tokens,"
                f" {expected.prompt_token_count} were sent"
            ),
        )
    if not stream.chunks and stream.text_reads_ns:
        return (
            RequestStatus.OK,
            "no counts per chunk; the usage total was shared out evenly over the chunks",
        )
    return RequestStatus.OK, ""


def _transport_problem(
    exchange: Exchange, body: _Body, stream: _Stream
) -> tuple[RequestStatus, str] | None:
    if exchange.failure is not None:
        return exchange.failure
    if body.status_code == 0:
        shown = _shown(b"".join(part for _, part in exchange.reads))
        return (
            (RequestStatus.BAD_PAYLOAD, f"not an HTTP response: {shown}")
            if shown
            else (RequestStatus.CUT, "closed without a response")
        )
    if body.status_code != 200:
        return (
            RequestStatus.HTTP_STATUS,
            f"{body.status_code} {_shown(b''.join(piece for _, piece in body.pieces))}".strip(),
        )
    if body.content_encoding not in ("", "identity"):
        what = (
            f"the body is encoded as {body.content_encoding}, which was not requested: something"
            " between client and engine changes it"
        )
        return RequestStatus.BAD_PAYLOAD, what
    if not _is_event_stream(body):
        said = _shown(b"".join(piece for _, piece in body.pieces))
        what = f"content type {body.content_type or 'missing'} where text/event-stream was expected"
        return RequestStatus.BAD_PAYLOAD, f"{what}: {said}" if said else what
    if stream.problem is not None:
        return stream.problem
    if not stream.done:
        return RequestStatus.CUT, "the stream ended without [DONE]"
    return None


def _shown(payload: bytes) -> str:
    return payload[:_DETAIL_LIMIT].decode("utf-8", "replace").strip()
