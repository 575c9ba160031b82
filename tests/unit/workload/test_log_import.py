"""Users' logs become traces; what cannot be used is counted by reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3perf.workload.log_import import import_log
from k3perf.workload.log_values import OUTSIDE_YEARS, Moment, moment
from k3perf.workload.trace import read_trace, trace_text

NOW = 1700000000


@pytest.fixture
def imported(tmp_path):
    """A log's lines, imported from a file."""

    def of(lines):
        path = Path(tmp_path) / "log.jsonl"
        path.write_text("\n".join(lines))
        return import_log(path)

    return of


@pytest.mark.parametrize(
    "record",
    [
        {"created": 1700000001, "usage": {"prompt_tokens": 600, "completion_tokens": 7}},
        {"timestamp": "2023-11-14T22:13:21Z", "prompt_tokens": 600, "completion_tokens": 7},
        {"timestamp": "2023-11-14T22:13:21", "usage": {"input_tokens": 600, "output_tokens": 7}},
        {
            "timestamp_ms": 1700000001000,
            "response": {"usage": {"prompt_tokens": 600, "completion_tokens": 7}},
        },
        {
            "response": {
                "body": {
                    "created": 1700000001,
                    "usage": {"prompt_tokens": 600, "completion_tokens": 7},
                }
            }
        },
    ],
)
def test_the_usual_forms_are_understood(record, imported):
    first = {"created": 1700000000, "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    trace = imported([json.dumps(record), json.dumps(first)])
    assert trace.source.left_out == {}
    assert [
        (row.timestamp_ms, row.input_length, row.output_length, len(row.hash_ids))
        for row in trace.rows()
    ] == [
        (0, 5, 3, 1),
        (1000, 600, 7, 2),
    ]


def test_what_is_left_out_is_counted_by_reason(imported):
    lines = [
        "no json",
        "[]",
        "",
        json.dumps({"created": NOW, "usage": None}),
        json.dumps({"created": NOW}),
        json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": 3}}),
        json.dumps({"created": "yesterday", "usage": {"prompt_tokens": 5, "completion_tokens": 3}}),
        json.dumps({"created": NOW, "usage": {"prompt_tokens": 5, "completion_tokens": 0}}),
        json.dumps({"created": NOW, "usage": {"prompt_tokens": 5, "completion_tokens": 3}}),
    ]
    trace = imported(lines)
    assert len(list(trace.rows())) == trace.source.request_count == 1
    assert trace.source.left_out == {
        "not JSON": 1,
        "not an object": 1,
        "no token counts": 2,
        "no time": 1,
        "time that is neither a number nor a date": 1,
        "no tokens in prompt or reply": 1,
    }


@pytest.mark.parametrize(
    ("date", "understood"),
    [
        ("2286-11-20T17:46:39Z", True),
        ("2286-11-20T17:46:40Z", False),
        ("9999-12-31T00:00:00", False),
        ("1969-12-31T23:59:59Z", False),
    ],
)
def test_dates_have_the_bounds_of_numbers(date, understood):
    found = moment(date)
    assert isinstance(found, Moment) if understood else found == OUTSIDE_YEARS


def test_an_imported_log_is_a_valid_trace_without_sharing(tmp_path, imported):
    record = json.dumps({"created": NOW, "usage": {"prompt_tokens": 1025, "completion_tokens": 3}})
    path = tmp_path / "trace.jsonl"
    path.write_text(trace_text(imported([record, record]).rows()))
    rows = read_trace(path).rows
    assert len({block for row in rows for block in row.hash_ids}) == 6
