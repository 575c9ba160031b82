from __future__ import annotations

import pytest

from k3perf.telemetry.counters import CounterTextError, counter_difference, parse_counters

TEXT = """\
# HELP vllm:num_preemptions_total Cumulative number of preemptions.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="1",model_name="m"} 3.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.79e+09
vllm:prompt_tokens_by_source_total{engine="0",model_name="a,b\\"}c",source="local_compute"} 100.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_compute"} 11.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 40.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 5.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.25
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:nothing_yet{engine="0"} NaN
vllm:generation_tokens_total{engine="0"} +Inf
process_cpu_seconds_total 9.62
"""


def test_label_sets_are_summed_and_chosen_labels_kept() -> None:
    seen = parse_counters(TEXT)
    assert seen["vllm:num_preemptions_total"] == 5.0
    assert seen["vllm:prompt_tokens_by_source_total"] == 151.0
    assert seen["vllm:prompt_tokens_by_source_total{source=local_compute}"] == 111.0
    assert seen["vllm:prompt_tokens_by_source_total{source=local_cache_hit}"] == 40.0
    assert seen["vllm:time_to_first_token_seconds_sum"] == 1.25
    assert seen["process_cpu_seconds_total"] == 9.62


def test_buckets_creation_times_and_missing_numbers_are_left_out() -> None:
    names = set(parse_counters(TEXT))
    assert not [name for name in names if "_bucket" in name or "_created" in name]
    assert "vllm:generation_tokens_total" not in names
    assert "vllm:nothing_yet" not in names


@pytest.mark.parametrize("line", ["<html>not found</html>", 'vllm:x{a="b"} many', "vllm:x"])
def test_what_is_no_exposition_is_refused(line: str) -> None:
    with pytest.raises(CounterTextError, match=r"Prometheus|not a number"):
        parse_counters(line)


def test_differences_leave_gauges_out_and_count_new_names_from_zero() -> None:
    before = {"a_total": 5.0, "vllm:kv_cache_usage_perc": 0.9, "h_sum": 1.0}
    after = {"a_total": 8.0, "vllm:kv_cache_usage_perc": 0.1, "h_sum": 1.5, "b_total": 2.0}
    seen = counter_difference(before, after)
    assert seen.values == {"a_total": 3.0, "b_total": 2.0, "h_sum": 0.5}
    assert seen.reset == ()


def test_a_counter_that_fell_or_vanished_is_a_reset_and_no_difference() -> None:
    seen = counter_difference(
        {"a_total": 5.0, "b_total": 1.0, "c_total": 1.0}, {"a_total": 2.0, "c_total": 1.0}
    )
    assert seen.reset == ("a_total", "b_total")
    assert seen.values == {"c_total": 0.0}
