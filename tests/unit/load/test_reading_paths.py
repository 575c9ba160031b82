"""The short ways to read a stream's events give what decoding every event gives."""

from __future__ import annotations

import json
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from k3perf.load import stream_tokens
from k3perf.load.decode import Expected, decode_exchange
from k3perf.load.exchange import Exchange

TEXTS = st.one_of(
    st.sampled_from(["", "a", " the", '"', "\\", "\n", "\t", "é", "\u2028", "\x85", "😀", '":1}']),
    st.text(max_size=6),
)
LOGPROBS = st.sampled_from([None, {"content": [{"token": "a", "logprob": -0.5, "bytes": [97]}]}])


@st.composite
def usages(draw, tokens: int) -> dict:
    usage: dict = {"prompt_tokens": 9, "completion_tokens": tokens}
    if draw(st.booleans()):
        usage["total_tokens"] = tokens + 9
    if draw(st.integers(0, 3)) == 0:
        usage["prompt_tokens_details"] = draw(st.sampled_from([None, {"cached_tokens": 4}]))
    if draw(st.integers(0, 7)) == 0:
        del usage["prompt_tokens"]
    return usage


@st.composite
def bodies(draw) -> bytes:
    """A reply of one server: mostly alike events, with what real ones mix in."""
    chat, has_ids, has_usage = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    sequences = draw(st.sampled_from([1, 1, 1, 2, 3]))
    escaped = draw(st.booleans())
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    ending = draw(st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"]))
    body, tokens = "", 0
    for _ in range(draw(st.integers(0, 24))):
        count = draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
        tokens += count
        text = draw(TEXTS)
        choice: dict = {"index": draw(st.integers(0, sequences - 1))}
        if chat:
            key = draw(st.sampled_from(["content", "content", "reasoning", "reasoning_content"]))
            choice["delta"] = {key: text}
        else:
            choice["text"] = text
        if draw(st.integers(0, 5)) == 0:
            choice["logprobs"] = draw(LOGPROBS)
        choice["finish_reason"] = draw(st.sampled_from([None] * 12 + ["stop", "length", "error"]))
        if has_ids and draw(st.integers(0, 9)):
            ids = [draw(st.integers(0, 200_000)) for _ in range(count)]
            choice["token_ids"] = ids or draw(st.sampled_from([[], None]))
        event: dict = {"id": "c", "choices": [choice]}
        if has_usage and draw(st.integers(0, 9)):
            event["usage"] = draw(usages(tokens))
        lines = json.dumps(event, ensure_ascii=escaped, separators=separators)
        if draw(st.integers(0, 11)) == 0:  # white space between tokens may be a line's end
            first, comma, rest = lines.partition(f"{separators[0]}")
            lines = f"{first}{comma}{ending}data: {rest}"
        body += f"data: {lines}{ending}{ending}"
        if draw(st.integers(0, 15)) == 0:
            body += f": comment{ending}{ending}"
    if draw(st.booleans()):
        final = {"choices": [], "usage": draw(usages(tokens))}
        body += f"data: {json.dumps(final)}{ending}{ending}"
    if draw(st.integers(0, 9)):
        body += f"data: [DONE]{ending}{ending}"
    return body.encode("utf-8", "surrogatepass")


@st.composite
def streams(draw) -> list[bytes]:
    """The body in pieces: one for each event, or cut anywhere."""
    body = draw(bodies())
    whole = [one + b"\n\n" for one in body.split(b"\n\n") if one]
    if b"".join(whole) != body:
        whole = [body]
    cuts = draw(st.lists(st.integers(0, len(body)), max_size=draw(st.sampled_from([0, 0, 4]))))
    pieces, position = [], 0
    for piece in whole:
        inside = sorted({cut - position for cut in cuts if 0 < cut - position < len(piece)})
        ends = [*inside, len(piece)]
        pieces += [piece[begin:end] for begin, end in zip([0, *inside], ends, strict=True)]
        position += len(piece)
    return pieces


def sample(pieces: list[bytes]):
    exchange = Exchange(0, 1, 0)
    exchange.sent_ns, exchange.end_ns = 2, 10_000
    exchange.status_code, exchange.content_type = 200, "text/event-stream"
    exchange.pieces[:] = pieces
    exchange.times_ns[:] = range(1000, 1000 + len(pieces))
    return decode_exchange(
        exchange, Expected(9, 12, exact=False), request_index=0, round_end_ns=20_000
    )


def decoded_in_full(pieces: list[bytes]):
    with (
        mock.patch.object(stream_tokens, "like_first_token", return_value=[]),
        mock.patch.object(stream_tokens, "_is_one_event", return_value=False),
    ):
        return sample(pieces)


def plain(text: bytes, token: int, usage: bytes) -> bytes:
    head = b'data: {"choices":[{"index":0,"text":"' + text + b'","token_ids":[%d]}]' % token
    return head + b',"usage":' + usage + b"}\n\n"


COUNT = b'{"completion_tokens":%d}'
FULL = b'{"prompt_tokens":9,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":4}}'
DONE = b"data: [DONE]\n\n"


@settings(max_examples=300, deadline=None)
@given(streams())
@example([plain(b"a", 1, FULL % 1), plain(b"a", 2, COUNT % 2), DONE])
@example([*(plain(b"a", n, FULL % n) for n in range(1, 10)), plain(b"a", 9, COUNT % 10), DONE])
def test_every_way_of_reading_gives_the_same_sample(pieces):
    assert sample(pieces) == decoded_in_full(pieces)


@pytest.mark.parametrize("count", [1, 12])
def test_a_line_end_inside_an_event_is_not_white_space(count):
    """JSON allows it there, but it ends the data line."""
    broken = plain(b"a", 1, COUNT % 1).replace(b',"usage"', b',\n"usage"')
    pieces = [broken] * count + [DONE]
    assert sample(pieces) == decoded_in_full(pieces)


def test_the_short_ways_are_taken():
    """Else the comparison above would compare decoding with itself."""
    pieces = [plain(b"a", n, FULL % n) for n in range(1, 13)]
    assert all(stream_tokens.like_first_token(pieces))
    with mock.patch.object(stream_tokens, "_read_event", side_effect=AssertionError):
        assert sample(pieces).output_token_count == 12
