"""Turn one exchange into its request sample: events, token counts, status.

Pure. Runs after the round (or between turns of a conversation), so that its cost never
delays a read. Never raises: any bytes give one sample with one status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

from k3perf.load.exchange import Exchange
from k3perf.load.stream_tokens import (
    DETAIL_LIMIT,
    StreamTokens,
    chunks_and_count,
    read_stream,
    shown,
)
from k3perf.records.samples import RequestSample, RequestStatus

# the engine's error message is kept word for word
_ERROR_LIMIT: Final = 2000
OK_STATUS: Final = 200


@dataclass(frozen=True, slots=True)
class Expected:
    """The values that a response is compared with.

    ``prompt_token_count`` is None for a prompt of text, which only the server counts.
    ``exact``: the server was asked for exactly this output, so fewer tokens are an
    error.
    """

    prompt_token_count: int | None
    output_token_count: int
    sequence_count: int = 1
    exact: bool = True


def decode_exchange(
    exchange: Exchange, expected: Expected, *, request_index: int, round_end_ns: int
) -> RequestSample:
    """The sample of one exchange. ``round_end_ns`` is the end of an exchange that never
    ended.
    """
    stream = _stream_of(exchange)
    chunks, count = chunks_and_count(stream)
    status, detail = _judge(exchange, stream, count, expected)
    return RequestSample(
        request_index=request_index,
        status=status,
        scheduled_ns=exchange.scheduled_ns,
        sent_ns=exchange.sent_ns,
        end_ns=exchange.end_ns if exchange.end_ns is not None else round_end_ns,
        chunks=chunks,
        prompt_token_count=(
            stream.prompt_count
            if stream.prompt_count is not None
            else expected.prompt_token_count or 0
        ),
        requested_output_token_count=expected.output_token_count * expected.sequence_count,
        output_token_count=count if count is not None else 0,
        sequence_count=expected.sequence_count,
        cached_prompt_token_count=stream.cached_count,
        detail=detail[: _ERROR_LIMIT if status is RequestStatus.ENGINE_ERROR else DETAIL_LIMIT],
        distinct_token_count=stream.distinct_id_count,
    )


def reply_token_ids(exchange: Exchange) -> tuple[int, ...]:
    """The ids of the reply's first sequence as the server returned them, or an empty
    tuple.
    """
    stream = _stream_of(exchange, keep_ids=True)
    return tuple(token for ids in stream.first_sequence_ids for token in ids)


def reply_text(exchange: Exchange) -> str:
    """The text of the reply's first sequence, without reasoning."""
    stream = read_stream(exchange.pieces, exchange.times_ns, keep_text=True)
    return "".join(stream.first_sequence_text)


def json_problem(text: str) -> str:
    """What is wrong with a structured reply, or nothing."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return f"the structured reply is not valid JSON: {error}: {text[:80]!r}"
    return ""


def _stream_of(exchange: Exchange, *, keep_ids: bool = False) -> StreamTokens:
    if exchange.status_code != OK_STATUS or not _is_event_stream(exchange):
        return StreamTokens()
    return read_stream(exchange.pieces, exchange.times_ns, keep_ids=keep_ids)


def _is_event_stream(exchange: Exchange) -> bool:
    return exchange.content_type.split(";", 1)[0].strip().lower() == "text/event-stream"


def _judge(
    exchange: Exchange, stream: StreamTokens, count: int | None, expected: Expected
) -> tuple[RequestStatus, str]:
    broken = _transport_problem(exchange, stream)
    if broken is not None:
        return broken
    if count is None:
        return RequestStatus.NO_USAGE, "neither token ids nor usage in the stream"
    if count and not stream.chunks and not stream.text_reads_ns:
        return (
            RequestStatus.BAD_PAYLOAD,
            f"the usage says {count} tokens, but no chunk of the stream carried one",
        )
    if stream.id_count and stream.usage_count is not None and stream.usage_count != count:
        return (
            RequestStatus.BAD_PAYLOAD,
            f"the stream's ids are {count} tokens, its usage says {stream.usage_count}",
        )
    if (wrong := _wrong_count(stream, count, expected)) is not None:
        return wrong
    if not stream.chunks and stream.text_reads_ns:
        return (
            RequestStatus.OK,
            "no counts per chunk; the usage total was shared out evenly over the chunks",
        )
    return RequestStatus.OK, ""


def _wrong_count(
    stream: StreamTokens, count: int, expected: Expected
) -> tuple[RequestStatus, str] | None:
    asked = expected.output_token_count * expected.sequence_count
    if count < asked and (expected.exact or not count):
        return RequestStatus.SHORT, f"{count} of {asked} tokens"
    if count > asked:
        return RequestStatus.LONG, f"{count} tokens, {asked} were requested"
    sent = expected.prompt_token_count
    if sent is not None and stream.prompt_count is not None and stream.prompt_count != sent:
        return (
            RequestStatus.WRONG_PROMPT,
            f"the server read {stream.prompt_count} prompt tokens, {sent} were sent",
        )
    return None


def _transport_problem(
    exchange: Exchange, stream: StreamTokens
) -> tuple[RequestStatus, str] | None:
    if exchange.failure is not None:
        return exchange.failure
    if exchange.status_code == 0:
        return (
            (RequestStatus.BAD_PAYLOAD, f"not an HTTP response: {shown(exchange.first_bytes)}")
            if exchange.first_bytes
            else (RequestStatus.CUT, "closed without a response")
        )
    body = b"".join(exchange.pieces[:16])
    if exchange.status_code != OK_STATUS:
        return RequestStatus.HTTP_STATUS, f"{exchange.status_code} {shown(body)}".strip()
    if exchange.content_encoding not in ("", "identity"):
        what = (
            f"the body is encoded as {exchange.content_encoding}, which was not requested:"
            " something between client and engine changes it"
        )
        return RequestStatus.BAD_PAYLOAD, what
    if not _is_event_stream(exchange):
        said = shown(body)
        what = (
            f"content type {exchange.content_type or 'missing'} where text/event-stream was"
            " expected"
        )
        return RequestStatus.BAD_PAYLOAD, f"{what}: {said}" if said else what
    if stream.problem is not None:
        return stream.problem
    if not stream.done:
        return RequestStatus.CUT, "the stream ended without [DONE]"
    return None
