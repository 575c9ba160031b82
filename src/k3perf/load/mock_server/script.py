"""(behaviour, request) to the timed bytes of one reply. Pure but for the seeded
generator that it gets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import orjson

from k3perf.load.mock_server.behaviour import Behaviour, Fault, FaultKind

_FIRST_TOKEN_ID: Final = 10
_TOKEN_IDS: Final = 1000
# four bytes of UTF-8, to be split in the middle
_FACE: Final = "\N{GRINNING FACE}".encode()


class Then(Enum):
    """The action that follows a step's bytes."""

    GO_ON = "go on"
    FINISHED = "finished"
    RESET = "reset"
    CLOSE = "close"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class Step:
    """Wait ``gap_ns`` after the previous step was due, then send ``data``, which holds
    ``token_count`` tokens.
    """

    gap_ns: int
    data: bytes
    token_count: int = 0
    then: Then = Then.GO_ON


@dataclass(frozen=True, slots=True)
class Asked:
    """The parts of a request that the mock server uses."""

    ordinal: int
    chat: bool
    stream: bool
    prompt_token_count: int
    output_token_count: int
    sequence_count: int
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    cached_token_count: int | None = None


def script(behaviour: Behaviour, asked: Asked, generator: random.Random) -> Iterator[Step]:
    """The steps of the reply, generated one at a time."""
    fault = behaviour.fault_for(asked.ordinal)
    ttft_ns = behaviour.ttft.draw_ns(generator)
    at_once = _without_a_stream(fault, ttft_ns)
    if at_once is not None:
        yield at_once
        return
    if not asked.stream:
        yield _whole_reply(behaviour, asked, ttft_ns, generator)
        return
    yield from _Reply(behaviour, asked, fault, generator).steps(ttft_ns)


def _without_a_stream(fault: Fault | None, ttft_ns: int) -> Step | None:
    kind = fault.kind if fault else None
    if kind is FaultKind.HTTP_429:
        return Step(
            0,
            _response(
                "429 Too Many Requests", {"error": {"message": "too many requests", "code": 429}}
            ),
            then=Then.FINISHED,
        )
    if kind is FaultKind.HTTP_500:
        return Step(
            0,
            _response(
                "500 Internal Server Error", {"error": {"message": "engine core died", "code": 500}}
            ),
            then=Then.FINISHED,
        )
    if kind is FaultKind.CLOSED:
        return Step(ttft_ns, b"", then=Then.CLOSE)
    if kind is FaultKind.NOT_HTTP:
        return Step(ttft_ns, b"SSH-2.0-OpenSSH_9.7\r\n\r\n", then=Then.CLOSE)
    return None


def _response(status: str, payload: object) -> bytes:
    body = orjson.dumps(payload)
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length:"
        f" {len(body)}\r\n\r\n".encode()
        + body
    )


def _whole_reply(
    behaviour: Behaviour, asked: Asked, ttft_ns: int, generator: random.Random
) -> Step:
    count = asked.output_token_count * asked.sequence_count
    gap_ns = ttft_ns + sum(
        behaviour.itl.draw_ns(generator) for _ in range(asked.output_token_count - 1)
    )
    text = "".join(f" t{_token_id(position)}" for position in range(asked.output_token_count))
    content: dict[str, Any] = (
        {"message": {"role": "assistant", "content": text}} if asked.chat else {"text": text}
    )
    choices = [
        {"index": index, "finish_reason": "length", **content}
        for index in range(asked.sequence_count)
    ]
    usage = {
        "prompt_tokens": asked.prompt_token_count,
        "completion_tokens": count,
        "total_tokens": asked.prompt_token_count + count,
    }
    reply = {
        "id": f"cmpl-{asked.ordinal}",
        "model": behaviour.model_name,
        "choices": choices,
        "usage": usage,
    }
    return Step(gap_ns, _response("200 OK", reply), count, Then.FINISHED)


def _token_id(position: int) -> int:
    return _FIRST_TOKEN_ID + position % _TOKEN_IDS


def _event(payload: bytes) -> bytes:
    """One server-sent event as one HTTP chunk."""
    return b"%x\r\ndata: %b\n\n\r\n" % (len(payload) + 8, payload)


class _Reply:
    """The streamed form. Event bytes are joined from prepared parts, since this is the
    mock's hot path.
    """

    def __init__(
        self, behaviour: Behaviour, asked: Asked, fault: Fault | None, generator: random.Random
    ) -> None:
        self._behaviour = behaviour
        self._asked = asked
        self._fault = fault
        self._generator = generator
        kind = fault.kind if fault else None
        self._kind = kind
        self._ids = asked.return_token_ids and kind not in (
            FaultKind.NO_COUNTS,
            FaultKind.ONLY_FINAL_USAGE,
        )
        self._usage = asked.continuous_usage and kind not in (
            FaultKind.NO_COUNTS,
            FaultKind.ONLY_FINAL_USAGE,
        )
        self._target = self._planned_tokens()
        object_name = "chat.completion.chunk" if asked.chat else "text_completion"
        self._start = b'{"id":"cmpl-%d","object":"%b","created":1,"model":"%b","choices":[' % (
            asked.ordinal,
            object_name.encode(),
            behaviour.model_name.encode(),
        )

    def steps(self, ttft_ns: int) -> Iterator[Step]:
        """Head, empty chunks, tokens and end, or fewer if a fault strikes."""
        yield Step(0, self._head())
        rest_ns = ttft_ns
        if self._behaviour.empty_chunks:
            for number in range(self._behaviour.empty_chunks):
                yield Step(0 if number else ttft_ns // 2, self._empty())
            rest_ns = ttft_ns - ttft_ns // 2
        sent = 0
        while sent < self._target:
            if (
                self._fault is not None
                and sent >= self._fault.after_tokens
                and (broken := self._breakage()) is not None
            ):
                yield from broken
                return
            count = min(self._behaviour.chunk_tokens, self._target - sent)
            gap_ns = (
                rest_ns
                if sent == 0
                else sum(self._behaviour.itl.draw_ns(self._generator) for _ in range(count))
            )
            data = b"".join(
                self._tokens(sent, count, index) for index in range(self._asked.sequence_count)
            )
            yield from self._maybe_split(gap_ns, data, count * self._asked.sequence_count, sent)
            sent += count
        yield from self._end(sent)

    def _planned_tokens(self) -> int:
        asked = self._asked.output_token_count
        if self._kind is FaultKind.FEWER_TOKENS:
            return max(asked - 1, 0)
        return asked + 1 if self._kind is FaultKind.MORE_TOKENS else asked

    def _head(self) -> bytes:
        content_type = (
            b"text/html"
            if self._kind is FaultKind.WRONG_CONTENT_TYPE
            else b"text/event-stream; charset=utf-8"
        )
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
            % content_type
        )

    def _empty(self) -> bytes:
        if self._asked.chat:
            return _event(
                self._start
                + b'{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
            )
        return _event(self._start + b'{"index":0,"text":"","finish_reason":null}]}')

    def _tokens(self, sent: int, count: int, index: int) -> bytes:
        text = b"".join(b" t%d" % _token_id(position) for position in range(sent, sent + count))
        if self._kind is FaultKind.SPLIT_UTF8:
            text += b" " + _FACE
        if self._asked.chat:
            channel = (
                b"reasoning_content" if sent < self._behaviour.reasoning_tokens else b"content"
            )
            content = b'"delta":{"%b":"%b"}' % (channel, text)
        else:
            content = b'"text":"%b"' % text
        ids = b""
        if self._ids:
            ids = b',"token_ids":[%b]' % b",".join(
                b"%d" % _token_id(position) for position in range(sent, sent + count)
            )
        usage = b""
        if self._usage:
            done = sent * self._asked.sequence_count + count * (index + 1)
            usage = b',"usage":{%b}' % self._counts(done)
        return _event(
            b'%b{"index":%d,%b,"logprobs":null,"finish_reason":null%b}]%b}'
            % (self._start, index, content, ids, usage)
        )

    def _counts(self, done: int) -> bytes:
        prompt = self._asked.prompt_token_count
        counts = b'"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d' % (
            prompt,
            prompt + done,
            done,
        )
        if self._asked.cached_token_count is not None:
            counts += (
                b',"prompt_tokens_details":{"cached_tokens":%d}' % self._asked.cached_token_count
            )
        return counts

    def _maybe_split(self, gap_ns: int, data: bytes, token_count: int, sent: int) -> Iterator[Step]:
        """Under SPLIT_UTF8, split the tokens' bytes into two writes, a moment apart."""
        if self._kind is not FaultKind.SPLIT_UTF8 or sent == 0:
            yield Step(gap_ns, data, token_count)
            return
        cut = data.index(_FACE) + 2
        late_ns = min(gap_ns // 2, 1_000_000)
        yield Step(gap_ns - late_ns, data[:cut])
        yield Step(late_ns, data[cut:], token_count)

    def _breakage(self) -> tuple[Step, ...] | None:
        gap_ns = self._behaviour.itl.draw_ns(self._generator)
        if self._kind is FaultKind.RESET:
            return (Step(gap_ns, b"", then=Then.RESET),)
        if self._kind is FaultKind.CUT:
            return (Step(gap_ns, b"", then=Then.CLOSE),)
        if self._kind is FaultKind.STALL:
            return (Step(gap_ns, b"", then=Then.HANG),)
        if self._kind is FaultKind.NO_DONE:
            return (Step(gap_ns, b"0\r\n\r\n", then=Then.FINISHED),)
        if self._kind is FaultKind.INVALID_JSON:
            return Step(gap_ns, _event(b'{"choices":[{"index":0,"te')), Step(
                0, self._tail(), then=Then.FINISHED
            )
        if self._kind is FaultKind.ERROR_EVENT:
            return Step(
                gap_ns, _event(b'{"error":{"message":"EngineCore died","code":500}}')
            ), Step(0, self._tail(), then=Then.FINISHED)
        return None

    def _tail(self) -> bytes:
        return _event(b"[DONE]") + b"0\r\n\r\n"

    def _end(self, sent: int) -> Iterator[Step]:
        final = b""
        if self._asked.include_usage and self._kind is not FaultKind.NO_COUNTS:
            final = _event(
                self._start + b'],"usage":{%b}}' % self._counts(sent * self._asked.sequence_count)
            )
        yield Step(0, final + self._tail(), then=Then.FINISHED)
