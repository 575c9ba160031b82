"""Traces: read strictly, cut, scaled, and replayed with their sharing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from k3perf.errors import ConfigFileError, UsageError
from k3perf.load.mock_server.prefix_cache import PrefixCache
from k3perf.workload.request_plan import expand
from k3perf.workload.trace import TraceRow, read_trace, trace_text, unbounded_hit_ratio
from k3perf.workload.trace_synthesis import synthesise_trace
from tests.unit.workload.specs import trace_spec

ROWS = (
    TraceRow(0, 1024, 10, (0, 1)),
    TraceRow(1500, 1300, 20, (0, 1, 2)),
    TraceRow(4000, 700, 40, (0, 3)),
)


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "trace.jsonl").write_text(trace_text(ROWS))
    return tmp_path


def expanded(directory: Path, **arrival):
    return expand(trace_spec(**arrival), vocabulary_size=4096, trace_directory=directory)


def test_rows_survive_writing_and_reading(directory):
    assert read_trace(directory / "trace.jsonl").rows == ROWS


def test_a_replay_has_the_traces_times_lengths_and_sharing(directory):
    plan = expanded(directory)
    assert [request.offset_ns for request in plan.requests] == [0, 1_500_000_000, 4_000_000_000]
    assert [request.prompt_token_count for request in plan.requests] == [1024, 1300, 700]
    assert [request.output_token_count for request in plan.requests] == [10, 20, 40]
    first, second, third = (request.prompt_token_ids for request in plan.requests)
    assert first == second[:1024]
    assert third[:512] == first[:512]
    assert third[512:] != first[512:700]


def test_scales_are_applied_and_recorded(directory):
    plan = expanded(directory, time_scale=2, length_scale=0.125)
    assert plan.trace is not None
    assert plan.trace.block_tokens == 64
    assert [request.offset_ns for request in plan.requests] == [0, 750_000_000, 2_000_000_000]
    assert [request.prompt_token_count for request in plan.requests] == [128, 162, 88]
    assert [request.output_token_count for request in plan.requests] == [1, 2, 5]
    assert plan.requests[0].prompt_token_ids == plan.requests[1].prompt_token_ids[:128]


def test_a_partial_block_stays_partial_at_every_scale(tmp_path):
    (tmp_path / "trace.jsonl").write_text(
        trace_text([TraceRow(0, 1023, 1, (0, 1)), TraceRow(0, 513, 1, (0, 2))])
    )
    plan = expanded(tmp_path, length_scale=0.03125)
    assert [[segment.token_count for segment in request.segments] for request in plan.requests] == [
        [16, 15],
        [16, 1],
    ]


def test_the_window_and_the_limits_count_what_they_leave_out(directory):
    plan = expanded(directory, window_start_s=1, window_duration_s=2)
    assert [request.prompt_token_count for request in plan.requests] == [1300]
    assert plan.requests[0].offset_ns == 500_000_000
    assert plan.trace is not None
    assert plan.trace.outside_window_count == 2
    short = expanded(directory, longest_request_tokens=1100, requests=1)
    assert short.trace is not None
    assert (short.trace.used_count, short.trace.too_long_count, short.trace.beyond_limit_count) == (
        1,
        1,
        1,
    )


def test_a_window_without_a_request_is_refused(directory):
    with pytest.raises(UsageError, match="3 requests are outside the window"):
        expanded(directory, window_start_s=100)


def test_the_concurrency_limit_becomes_the_plans(directory):
    assert expanded(directory, concurrency_limit=2).concurrency == 2
    assert expanded(directory).concurrency is None


def test_another_trace_can_take_the_declared_ones_place(directory, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(trace_text(ROWS[:1]))
    plan = expand(trace_spec(), vocabulary_size=4096, trace_directory=directory, trace_file=other)
    assert plan.trace is not None
    assert (len(plan.requests), plan.trace.file) == (1, "other.jsonl")
    assert plan.digest != expanded(directory).digest


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2.*not JSON"),
        ("[1]", "line 2.*not an object"),
        ({"timestamp": -1}, "line 2: timestamp.*-1"),
        ({"timestamp": True}, "line 2: timestamp"),
        ({"input_length": 0}, "line 2: input_length.*0"),
        ({"output_length": "x"}, "line 2: output_length.*'x'"),
        ({"output_length": True}, "line 2: output_length.*True"),
        ({"timestamp": float("inf")}, "line 2: timestamp.*not finite"),
        ({"timestamp": "2026-01-01"}, "line 2: timestamp.*mixed"),
        ({"hash_ids": [True, 2]}, "line 2: hash_ids.*not a list of block ids"),
        ({"block_tokens": 0}, "line 2: block_tokens"),
        ({"hash_ids": [1]}, "line 2: hash_ids.*not 2 block ids.*1 entries"),
        ({"hash_ids": "1,2"}, "line 2: hash_ids.*not a list of block ids"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    good = json.loads(trace_text(ROWS[:1]))
    text = line if isinstance(line, str) else json.dumps(good | line)
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(good) + "\n" + text + "\n")
    with pytest.raises(ConfigFileError, match=message):
        read_trace(path)


def test_a_missing_or_empty_trace_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"gone\.jsonl.*cannot be read"):
        read_trace(tmp_path / "gone.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="the file is empty"):
        read_trace(tmp_path / "empty.jsonl")


def test_the_unbounded_hit_ratio_counts_whole_blocks_and_never_the_last_token():
    assert unbounded_hit_ratio(ROWS) == pytest.approx((1024 + 512) / (1024 + 1300 + 700))
    assert unbounded_hit_ratio([ROWS[0], ROWS[0]]) == pytest.approx(512 / 2048)
    assert unbounded_hit_ratio([]) is None


def replayed_hit_ratio(plan, block_tokens):
    cache = PrefixCache(block_tokens)
    hits = sum(cache.look_up_and_add(request.prompt_token_ids) for request in plan.requests)
    return hits / sum(request.prompt_token_count for request in plan.requests)


def test_a_replay_shares_what_the_trace_shares(tmp_path):
    rows = synthesise_trace(requests=200, duration_s=60, seed=11)
    (tmp_path / "trace.jsonl").write_text(trace_text(rows))
    plan = expanded(tmp_path, length_scale=0.0625)
    assert replayed_hit_ratio(plan, 32) == pytest.approx(unbounded_hit_ratio(rows), abs=0.002)


def test_a_real_trace_replays_with_its_own_hit_ratio():
    name = os.environ.get("K3PERF_TEST_TRACE")
    if not name:
        pytest.skip("K3PERF_TEST_TRACE names no trace in Mooncake's form")
    rows = read_trace(Path(name)).rows
    plan = expand(trace_spec(name, requests=200, length_scale=0.0625), vocabulary_size=4096)
    assert replayed_hit_ratio(plan, 32) == pytest.approx(unbounded_hit_ratio(rows[:200]), abs=0.002)


def test_a_synthetic_trace_has_the_statistics_it_claims():
    rows = synthesise_trace(requests=3000, duration_s=882, seed=5)
    prompts, replies = (
        np.array([row.input_length for row in rows]),
        np.array([row.output_length for row in rows]),
    )
    assert np.median(prompts) == pytest.approx(6900, rel=0.12)
    assert np.percentile(prompts, 90) == pytest.approx(27_400, rel=0.2)
    assert np.median(replies) == pytest.approx(350, rel=0.1)
    assert unbounded_hit_ratio(rows) == pytest.approx(0.373, abs=0.05)
    assert all(row.timestamp_ms % 3000 == 0 for row in rows)
    assert synthesise_trace(requests=50, duration_s=10, seed=1) == synthesise_trace(
        requests=50, duration_s=10, seed=1
    )
    assert synthesise_trace(requests=50, duration_s=10, seed=1) != synthesise_trace(
        requests=50, duration_s=10, seed=2
    )
