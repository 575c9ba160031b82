"""Bytes of a response to one sample: counts, times and statuses for any bytes."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3perf.load.decode import Expected, decode_exchange, reply_text, reply_token_ids
from k3perf.load.exchange import Exchange
from k3perf.records.samples import RequestStatus

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding:"
    b" chunked\r\n\r\n"
)
LAST = b"0\r\n\r\n"


def event(payload) -> bytes:
    data = (
        b"data: "
        + (payload if isinstance(payload, bytes) else json.dumps(payload).encode())
        + b"\n\n"
    )
    return b"%x\r\n%s\r\n" % (len(data), data)


DONE = event(b"[DONE]")


def chunk(ids=(), *, text="x", usage=None, index=0, **choice):
    entry = {"index": index, "text": text, "token_ids": list(ids) or None} | choice
    return {"choices": [entry]} | (
        {"usage": {"prompt_tokens": 9, "completion_tokens": usage}} if usage is not None else {}
    )


def decode(*reads: bytes, tokens=3, sequences=1, head=HEAD, failure=None):
    exchange = Exchange(0, 1, 0)
    exchange.sent_ns = 2
    exchange.end_ns = 10_000
    for position, data in enumerate((head, *reads)):
        if exchange.failure is None:
            exchange.feed(1000 + position, data)
    exchange.failure = exchange.failure or failure
    return decode_exchange(
        exchange, Expected(9, tokens, sequences), request_index=4, round_end_ns=20_000
    )


def seen(sample):
    return [(entry.at_ns - 1000, entry.token_count) for entry in sample.chunks]


def test_tokens_are_counted_by_ids_and_timed_by_their_read():
    sample = decode(
        event(chunk([7], usage=1)),
        event(chunk([8, 9], usage=3)),
        event({"choices": [], "usage": None}),
        DONE + LAST,
    )
    assert (sample.status, sample.detail) == (RequestStatus.OK, "")
    assert seen(sample) == [(1, 1), (2, 2)]
    assert (sample.output_token_count, sample.prompt_token_count, sample.request_index) == (3, 9, 4)


def test_tokens_are_counted_by_rising_usage_without_ids():
    sample = decode(
        event(chunk(usage=0, text="")), event(chunk(usage=2)), event(chunk(usage=3)), DONE + LAST
    )
    assert sample.status is RequestStatus.OK
    assert seen(sample) == [(2, 2), (3, 1)]


def test_empty_and_role_chunks_carry_no_token():
    role = {
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
        "usage": {"completion_tokens": 0},
    }
    text = {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": {"completion_tokens": 3}}
    sample = decode(event(role), event(chunk(text="")), event(text), DONE + LAST)
    assert sample.first_token_ns == 1003
    assert sample.status is RequestStatus.OK


@pytest.mark.parametrize(
    "channel", ["reasoning_content", "reasoning", "content", "refusal", "tool_calls"]
)
def test_any_channel_is_the_first_token(channel):
    said = [{"index": 0}] if channel == "tool_calls" else "a"
    sample = decode(
        event({"choices": [{"index": 0, "delta": {channel: said}}]}),
        event({"choices": [{"index": 0, "delta": {"content": "b"}}]}),
        event({"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 9}}),
        DONE + LAST,
    )
    assert seen(sample) == [(1, 2), (2, 1)]
    assert sample.status is RequestStatus.OK
    assert "shared out" in sample.detail


def test_parallel_sequences_are_counted_together():
    chunks = [event(chunk([token], index=index)) for token in (5, 6) for index in (0, 1)]
    sample = decode(*chunks, DONE + LAST, tokens=2, sequences=2)
    assert (sample.status, sample.output_token_count, sample.sequence_count) == (
        RequestStatus.OK,
        4,
        2,
    )
    assert sample.requested_output_token_count == 4


def test_cached_tokens_are_reported():
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 6},
    }
    assert (
        decode(
            event(chunk([1, 2, 3])), event({"choices": [], "usage": usage}), DONE + LAST
        ).cached_prompt_token_count
        == 6
    )
    assert decode(event(chunk([1, 2, 3], usage=3)), DONE + LAST).cached_prompt_token_count is None


def test_a_character_split_over_reads_counts_when_it_is_complete():
    whole = event(
        json.dumps(chunk([1, 2, 3], text="\N{GRINNING FACE}", usage=3), ensure_ascii=False).encode()
    )
    cut = whole.index("\N{GRINNING FACE}".encode()) + 2
    sample = decode(whole[:cut], whole[cut:], DONE + LAST)
    assert (sample.status, seen(sample)) == (RequestStatus.OK, [(2, 3)])


GOOD = event(chunk([1, 2, 3], usage=3))
REPLY = b"".join((GOOD, DONE, LAST))


@given(st.lists(st.integers(1, len(REPLY) - 1), max_size=12))
def test_where_reads_are_cut_changes_nothing_but_the_time(cuts):
    places = sorted({0, *cuts, len(REPLY)})
    sample = decode(*(REPLY[start:end] for start, end in pairwise(places)))
    assert (sample.status, sample.output_token_count) == (RequestStatus.OK, 3)


@pytest.mark.parametrize(
    ("reads", "status", "detail"),
    [
        ((event(chunk([1, 2])), DONE + LAST), RequestStatus.SHORT, "2 of 3"),
        (
            (event(chunk([1, 2, 3, 4])), DONE + LAST),
            RequestStatus.LONG,
            "4 tokens, 3 were requested",
        ),
        ((GOOD,), RequestStatus.CUT, "without [DONE]"),
        ((GOOD, LAST), RequestStatus.CUT, "without [DONE]"),
        ((event(b'{"choices":[{"te'), DONE + LAST), RequestStatus.BAD_PAYLOAD, "invalid JSON"),
        ((event(b"[1]"), DONE + LAST), RequestStatus.BAD_PAYLOAD, "not an object"),
        ((event({"choices": [7]}), DONE + LAST), RequestStatus.BAD_PAYLOAD, "unexpected form"),
        ((event({"choices": 7}), DONE + LAST), RequestStatus.BAD_PAYLOAD, "unexpected form"),
        (
            (event(chunk([1, 2, 3]) | {"usage": {"completion_tokens": "many"}}), DONE + LAST),
            RequestStatus.BAD_PAYLOAD,
            "unexpected form of a stream event (invalid literal",
        ),
        (
            (event({"error": {"message": "EngineCore died"}}), DONE + LAST),
            RequestStatus.ENGINE_ERROR,
            "EngineCore died",
        ),
        ((event(chunk()), DONE + LAST), RequestStatus.NO_USAGE, "neither"),
        (
            (event(chunk([1, 2, 3], usage=2)), DONE + LAST),
            RequestStatus.BAD_PAYLOAD,
            "ids are 3 tokens, its usage says 2",
        ),
        (
            (GOOD, GOOD, DONE + LAST),
            RequestStatus.BAD_PAYLOAD,
            "ids are 6 tokens, its usage says 3",
        ),
        (
            (event(b'{"choices":[{"index":0,"token_ids":"abc"}]}'), DONE + LAST),
            RequestStatus.BAD_PAYLOAD,
            "token_ids is not a list",
        ),
        (
            (event(chunk([1, 2], finish_reason="length")), DONE + LAST),
            RequestStatus.SHORT,
            "2 of 3",
        ),
        (
            (
                event(chunk([1, 2, 3]) | {"usage": {"prompt_tokens": 8, "completion_tokens": 3}}),
                DONE + LAST,
            ),
            RequestStatus.WRONG_PROMPT,
            "read 8 prompt tokens, 9 were sent",
        ),
    ],
)
def test_broken_streams_are_named(reads, status, detail):
    sample = decode(*reads)
    assert sample.status is status
    assert detail in sample.detail


@pytest.mark.parametrize(
    ("head", "reads", "status", "detail"),
    [
        (
            b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\n",
            (b"slow",),
            RequestStatus.HTTP_STATUS,
            "429 slow",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n",
            (b"<p/>",),
            RequestStatus.BAD_PAYLOAD,
            "text/html",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n",
            (b"<p/>",),
            RequestStatus.BAD_PAYLOAD,
            "content type missing",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n",
            (b'{"error":"no memory"}',),
            RequestStatus.BAD_PAYLOAD,
            'application/json where text/event-stream was expected: {"error":"no memory',
        ),
        (
            HEAD.replace(b"Transfer-Encoding", b"Content-Encoding: gzip\r\nTransfer-Encoding"),
            (b"3\r\n\x1f\x8b\x08\r\n" + LAST,),
            RequestStatus.BAD_PAYLOAD,
            "encoded as gzip",
        ),
        (b"SSH-2.0-OpenSSH\r\n", (), RequestStatus.BAD_PAYLOAD, "not an HTTP response"),
        (b"", (), RequestStatus.CUT, "closed without a response"),
    ],
)
def test_answers_that_are_no_stream_are_named(head, reads, status, detail):
    sample = decode(*reads, head=head)
    assert sample.status is status
    assert detail in sample.detail


def test_a_failure_of_the_connection_outranks_what_was_read():
    sample = decode(GOOD, failure=(RequestStatus.STALLED, "no byte for 1 s"))
    assert (sample.status, sample.output_token_count) == (RequestStatus.STALLED, 3)


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(noise):
    decode(noise)
    decode(event(noise), DONE + LAST)
    decode(head=noise)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    (
                        "choices",
                        "usage",
                        "error",
                        "token_ids",
                        "index",
                        "completion_tokens",
                        "delta",
                    )
                ),
                inner,
            )
        ),
    )
)
def test_no_json_makes_it_raise(payload):
    decode(event(payload), DONE + LAST)


def test_a_stream_without_usage_is_counted_by_its_ids():
    sample = decode(event(chunk([1, 2])), event(chunk([3])), DONE + LAST)
    assert (sample.status, sample.output_token_count, sample.prompt_token_count) == (
        RequestStatus.OK,
        3,
        9,
    )


def read_of(*reads: bytes) -> Exchange:
    exchange = Exchange(0, 1, 0)
    for position, data in enumerate(reads):
        exchange.feed(1 + position, data)
    return exchange


def test_replies_are_given_as_ids_of_the_first_sequence():
    reply = event(chunk([4, 5])) + event(chunk([9], index=1)) + event(chunk([6], usage=4))
    assert reply_token_ids(read_of(HEAD, reply)) == (4, 5, 6)
    assert reply_token_ids(read_of(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")) == ()


def test_replies_are_given_as_text_without_their_reasoning():
    deltas = ({"reasoning_content": "hm"}, {"content": "a b"}, {"content": "c"})
    reply = b"".join(event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas)
    assert reply_text(read_of(HEAD, reply + DONE + LAST)) == "a bc"


def test_a_usage_without_a_chunk_that_carries_a_token_is_not_ok():
    sample = decode(
        event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}), DONE + LAST
    )
    assert sample.status is RequestStatus.BAD_PAYLOAD
    assert "no chunk of the stream carried one" in sample.detail


def test_fewer_tokens_are_ok_where_the_output_is_only_limited():
    exchange = read_of(HEAD, event(chunk([7], usage=1)), DONE + LAST)
    exchange.sent_ns, exchange.end_ns = 2, 9
    for exact, status in ((True, RequestStatus.SHORT), (False, RequestStatus.OK)):
        sample = decode_exchange(
            exchange, Expected(None, 3, exact=exact), request_index=0, round_end_ns=9
        )
        assert sample.status is status


BODY = (
    b"".join(
        b"data: " + json.dumps(payload).encode() + b"\n\n"
        for payload in (chunk([7], usage=1), chunk([8, 9], usage=3))
    )
    + b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    "body",
    [
        BODY,
        BODY.replace(b"\n", b"\r\n"),
        BODY.replace(b"\n", b"\r"),
        b"\xef\xbb\xbf" + BODY,
        BODY.replace(b'{"choices"', b'{\ndata: "choices"'),
        b": a comment\n\n" + BODY,
        BODY.replace(b"data: ", b"data:"),
        b"id: 1\nretry: 5\n" + BODY,
        BODY.removesuffix(b"\n"),
    ],
    ids=["lf", "crlf", "cr", "bom", "data-lines", "comment", "no-space", "fields", "no-end"],
)
def test_every_legal_form_of_an_event_is_read(body, size):
    chunks = b"".join(
        b"%x\r\n%s\r\n" % (len(body[at : at + size]), body[at : at + size])
        for at in range(0, len(body), size)
    )
    sample = decode(chunks, LAST)
    assert (sample.status, sample.detail) == (RequestStatus.OK, "")
    assert [entry.token_count for entry in sample.chunks] == [1, 2]


def test_an_event_counts_with_its_empty_line():
    """A client cannot know that an event has no further data line before that."""
    head, tail = event(chunk([7, 8, 9], usage=3)), DONE + LAST
    data = head.split(b"\r\n", 1)[1][:-2]
    sample = decode(b"%x\r\n%s\r\n" % (len(data) - 1, data[:-1]), b"1\r\n\n\r\n", tail)
    assert seen(sample) == [(2, 3)]
