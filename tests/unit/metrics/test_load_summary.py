"""Values of a load level, from samples alone."""

from __future__ import annotations

import pytest

from k3perf.config.workload_spec import ServiceLevel
from k3perf.metrics.load_summary import (
    judge_objectives,
    level_values,
    parse_objective,
    turn_values,
)
from k3perf.records.samples import ChunkRecord, RequestSample, RequestStatus

MS = 1_000_000


def sample(index, *, ttft_ms=10, gap_ms=5, tokens=3, status=RequestStatus.OK, cached=None):
    first_ns = ttft_ms * MS
    chunks = tuple(ChunkRecord(first_ns + n * gap_ms * MS, 1) for n in range(tokens))
    return RequestSample(
        index, status, 0, 0, first_ns + tokens * gap_ms * MS, chunks, 10, tokens, tokens,
        cached_prompt_token_count=cached,
    )  # fmt: skip


def test_percentiles_interpolate_and_objectives_may_name_any():
    samples = tuple(sample(index, ttft_ms=10 + index) for index in range(101))
    values = level_values(samples, {}, objectives=[parse_objective("ttft_p99.9_ms<=1")])
    assert values["ttft_p50_ms"].value == pytest.approx(60)
    assert values["ttft_p95_ms"].value == pytest.approx(105)
    assert values["ttft_p99.9_ms"].value == pytest.approx(109.9)
    assert values["ttft_max_ms"].value == pytest.approx(110)
    assert (values["itl_mean_ms"].value, values["itl_mean_ms"].n) == (pytest.approx(5), 202)


def test_failures_are_shares_and_give_no_latency():
    samples = (sample(0), sample(1, status=RequestStatus.CUT, ttft_ms=900))
    values = level_values(samples, {})
    assert values["error_ratio"].value == 0.5
    assert values["error_ratio"].excluded == {"cut": 1}
    assert values["ttft_max_ms"].value == pytest.approx(10)


def test_goodput_counts_requests_within_both_bounds():
    samples = (sample(0), sample(1, ttft_ms=50), sample(2, gap_ms=9))
    values = level_values(samples, {}, service_level=ServiceLevel(ttft_ms=20, tpot_ms=6))
    assert values["goodput_ratio"].value == pytest.approx(1 / 3)
    assert level_values(samples, {})["goodput_ratio"].value is None


def test_speculation_is_reported_where_the_server_counts_it():
    counters = {
        "vllm:spec_decode_num_accepted_tokens_total": 60.0,
        "vllm:spec_decode_num_draft_tokens_total": 90.0,
        "vllm:spec_decode_num_drafts_total": 30.0,
    }
    values = level_values((sample(0),), counters)
    assert values["spec_acceptance_ratio"].value == pytest.approx(2 / 3)
    assert values["spec_accepted_length_tokens"].value == pytest.approx(3)
    assert level_values((sample(0),), {})["spec_acceptance_ratio"].value is None


def test_prefix_hits_come_from_replies_where_no_counter_is():
    assert level_values((sample(0, cached=5),), {})["prefix_hit_ratio"].value == 0.5
    assert level_values((sample(0),), {})["prefix_hit_ratio"].value is None


def test_turns_have_their_own_latencies_and_single_requests_have_none():
    samples = (sample(0), sample(1, ttft_ms=40), sample(2, ttft_ms=20))
    first, second = turn_values(samples, {0: 1, 1: 2, 2: 1})
    assert first.values["ttft_mean_ms"].value == pytest.approx(15)
    assert second.values["ttft_mean_ms"].value == pytest.approx(40)
    assert turn_values(samples, {0: 1, 1: 1, 2: 1}) == ()


def test_an_objective_without_a_value_is_not_met():
    objectives = [
        parse_objective("ttft_p50_ms<=10"),
        parse_objective("requests_per_s>=1e9"),
        parse_objective("spec_acceptance_ratio>=0"),
    ]
    verdicts = judge_objectives(objectives, level_values((sample(0),), {}, objectives=objectives))
    assert [verdict.met for verdict in verdicts] == [True, False, False]
    assert verdicts[2].value is None
