"""Errors inside a stream, in every form: status engine_error and the message word for
word.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from k3perf.load.stream_error import error_in
from k3perf.records.samples import RequestStatus
from tests.unit.load.test_decode import DONE, LAST, chunk, decode, event

CORPUS = Path(__file__).parents[1] / "engine" / "corpus" / "stream_and_start_lines.yaml"
ENTRIES = yaml.safe_load(CORPUS.read_text())["stream_errors"]
LONG = "CUDA error: an illegal memory access was encountered; " * 20

# data of the event, and the parts that must be kept
FORMS = [
    (b'{"error":{"message":"EngineCore encountered an issue.","code":500}}', "EngineCore encountered an issue."),
    (b'{"error":"The engine is out of memory","error_type":"generation"}', "The engine is out of memory"),
    (b'{"errors":[{"message":"first"},{"message":"second"}]}', "first; second"),
    (b'{"detail":[{"loc":["body","max_tokens"],"msg":"field required","type":"missing"}]}', "field required"),
    (b'{"detail":{"reason":"worker 3 is gone"}}', "worker 3 is gone"),
    (b'{"object":"error","message":"no such model","type":"NotFoundError","param":null,"code":404}', "no such model"),
    (b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "Overloaded"),
    (b'{"message":"upstream connect error","code":503}', "upstream connect error"),
    (b'{"error_code":50302,"error_msg":"server busy"}', "server busy"),
    (b'{"status":"error","msg":"queue full"}', "queue full"),
    (b'{"error":{"message":"say \\"no\\" \\u00fcberall\\nline two"}}', 'say "no" überall\nline two'),
    (b'{"choices":[{"index":0,"text":"","finish_reason":"error","token_ids":[]}]}', 'finish_reason "error"'),
    (b'{"choices":[{"index":0,"text":"x","finish_reason":"abort","token_ids":[9]}],"usage":{"completion_tokens":2}}', 'finish_reason "abort"'),
    (('{"error":{"message":"' + LONG + '"}}').encode(), LONG.strip()),
]  # fmt: skip


def answer_then(data: list[bytes], *, after_tokens: int):
    tokens = [event(chunk([token], usage=token + 1)) for token in range(after_tokens)]
    return decode(*tokens, *data, DONE + LAST)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_the_corpus(entry):
    data = [event(text.removeprefix("data: ").encode()) for text in entry["events"]]
    sample = answer_then(data, after_tokens=entry["after_tokens"])
    assert sample.status is RequestStatus.ENGINE_ERROR
    wanted = "boom" if entry["id"] == "detail" else "EngineCore encountered an issue."
    assert wanted in sample.detail
    assert sample.output_token_count == entry["after_tokens"]


@pytest.mark.parametrize(("data", "message"), FORMS)
@pytest.mark.parametrize("after_tokens", [0, 2])
def test_every_form_keeps_its_message(data, message, after_tokens):
    sample = answer_then([event(data)], after_tokens=after_tokens)
    assert sample.status is RequestStatus.ENGINE_ERROR
    assert message in sample.detail


@pytest.mark.parametrize(
    "data", [b"Internal Server Error", b'{"message":"gone"}', b'"gone"', b"[]", b'{"odd": 1}']
)
def test_an_event_of_the_type_error_is_one_whatever_its_data(data):
    whole = b"event: error\ndata: " + data + b"\n\n"
    sample = answer_then([b"%x\r\n%s\r\n" % (len(whole), whole)], after_tokens=1)
    assert sample.status is RequestStatus.ENGINE_ERROR
    assert sample.detail.startswith("error in the stream: ")


def test_the_type_of_an_event_ends_with_it():
    named = b'event: message\ndata: {"choices":[]}\n\n'
    usual = event(chunk([1, 2, 3], usage=3))
    assert (
        decode(b"%x\r\n%s\r\n" % (len(named), named), usual, DONE + LAST).status is RequestStatus.OK
    )


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}], "error": None},
        {
            "choices": [],
            "usage": {"completion_tokens": 3},
            "detail": None,
            "message": "not an error",
        },
        {
            "choices": [{"index": 0, "finish_reason": "length"}],
            "type": "text_completion",
            "status": "ok",
        },
        {"object": "text_completion", "choices": [{"text": "error: none"}]},
        {"id": "ping"},
    ],
)
def test_a_part_of_an_answer_is_not_an_error(answer):
    assert error_in(answer) is None
