"""Samples to metrics, compared with numbers calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3perf.config.workload_spec import ServiceLevel
from k3perf.metrics.compute import round_metrics, session_metrics
from k3perf.records.metric_definitions import METRIC_TABLE, Family, Scope
from k3perf.records.samples import (
    Arm,
    ChunkRecord,
    EngineIdentity,
    InvalidReason,
    RankMemory,
    RequestSample,
    RequestStatus,
    RoundKind,
    RoundRecord,
    SessionRecord,
    StageTiming,
    TelemetryReading,
)

MS = 1_000_000


def sample(
    index=0,
    *,
    sent_ms=0,
    chunks=((20, 1), (30, 1), (40, 1)),
    status=RequestStatus.OK,
    prompt=10,
    sequences=1,
):
    tokens = sum(count for _, count in chunks)
    return RequestSample(
        request_index=index,
        status=status,
        scheduled_ns=sent_ms * MS,
        sent_ns=sent_ms * MS,
        end_ns=100 * MS,
        chunks=tuple(ChunkRecord(at_ms * MS, count) for at_ms, count in chunks),
        prompt_token_count=prompt,
        requested_output_token_count=tokens,
        output_token_count=tokens,
        sequence_count=sequences,
    )


def record(*samples, **fields):
    return RoundRecord(0, RoundKind.MEASURED, 0, 200 * MS, samples, **fields)


def values(*samples, service_level=None, **fields):
    return round_metrics(record(*samples, **fields), service_level=service_level).values


def test_one_request_by_hand():
    found = values(sample())
    assert found["ttft_mean_ms"].value == 20
    assert found["tpot_mean_ms"].value == 10
    assert found["itl_mean_ms"].value == 10
    assert found["e2e_mean_ms"].value == 40
    assert found["output_tokens_per_s"].value == pytest.approx(3 / 0.04)
    assert found["total_tokens_per_s"].value == pytest.approx(13 / 0.04)
    assert found["requests_per_s"].value == pytest.approx(1 / 0.04)
    assert (found["ttft_p99_ms"].n, found["itl_p99_ms"].n) == (1, 2)


def test_rates_count_from_the_first_send_to_the_last_token():
    found = values(sample(sent_ms=5), sample(1, sent_ms=10, chunks=((50, 1), (105, 1))))
    assert found["output_tokens_per_s"].value == pytest.approx(5 / 0.1)


def test_percentiles_interpolate_and_carry_their_n():
    found = values(*(sample(index, chunks=((10 * (index + 1), 1),)) for index in range(5)))
    assert found["ttft_p50_ms"].value == pytest.approx(30)
    assert found["ttft_p90_ms"].value == pytest.approx(46)
    assert found["ttft_p99_ms"].value == pytest.approx(49.6)
    assert found["ttft_p90_ms"].n == 5


def test_a_chunks_tokens_share_its_gap_equally():
    found = values(sample(chunks=((20, 1), (50, 3), (60, 1))))
    assert found["itl_mean_ms"].value == pytest.approx(10)
    assert found["itl_mean_ms"].n == 4
    assert found["tpot_mean_ms"].value == pytest.approx(40 / 4)


def test_failed_requests_are_excluded_by_status_and_never_dropped():
    found = values(
        sample(),
        sample(1, status=RequestStatus.RESET),
        sample(2, status=RequestStatus.SHORT, chunks=((500, 1),)),
    )
    assert found["ttft_mean_ms"].value == 20
    assert (found["ttft_mean_ms"].n, found["ttft_mean_ms"].excluded) == (
        1,
        {"reset": 1, "short": 1},
    )
    assert found["requests_per_s"].value == pytest.approx(1 / 0.5)
    assert found["requests_per_s"].excluded == {"reset": 1, "short": 1}
    assert found["output_tokens_per_s"].value == pytest.approx(7 / 0.5)


def test_a_single_token_has_no_time_per_token():
    found = values(sample(chunks=((20, 1),)))
    assert (found["tpot_mean_ms"].value, found["tpot_mean_ms"].excluded) == (
        None,
        {"single_token": 1},
    )
    assert found["itl_p50_ms"].value is None
    assert found["e2e_mean_ms"].value == 20


def test_parallel_sequences_have_the_time_per_token_of_one():
    found = values(sample(chunks=((20, 2), (30, 2), (40, 2)), sequences=2))
    assert found["tpot_mean_ms"].value == pytest.approx(10)
    assert found["itl_mean_ms"].excluded == {"parallel_sequences": 1}


def test_nothing_measured_is_none_and_not_zero():
    never_sent = replace(sample(status=RequestStatus.REFUSED, chunks=()), sent_ns=None)
    for found in (values(), values(never_sent)):
        assert all(entry.value is None for entry in found.values())
    assert values(never_sent)["ttft_mean_ms"].excluded == {"refused": 1}
    assert values(sample(chunks=()))["ttft_mean_ms"].excluded == {"no_token_seen": 1}


def test_goodput_needs_both_bounds():
    level = ServiceLevel(ttft_ms=25, tpot_ms=15)
    good, late = sample(), sample(1, chunks=((26, 1), (30, 1)))
    slow, failed = sample(2, chunks=((20, 1), (40, 1))), sample(3, status=RequestStatus.CUT)
    found = values(good, late, slow, failed, service_level=level)["goodput_requests_per_s"]
    assert found.value == pytest.approx(1 / 0.04)
    assert values(good)["goodput_requests_per_s"].value is None
    exactly = ServiceLevel(ttft_ms=20, tpot_ms=10)
    assert values(good, service_level=exactly)["goodput_requests_per_s"].value == pytest.approx(
        1 / 0.04
    )


def test_the_prefix_hit_ratio_is_the_servers():
    hits, queries = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
    assert values(sample(), counters={hits: 30.0, queries: 40.0})["prefix_hit_ratio"].value == 0.75
    assert values(sample(), counters={hits: 0.0, queries: 40.0})["prefix_hit_ratio"].value == 0
    assert values(sample(), counters={hits: 0.0, queries: 0.0})["prefix_hit_ratio"].excluded == {
        "nothing_asked": 1
    }
    assert values(sample())["prefix_hit_ratio"].excluded == {"no_counter": 1}


def test_energy_is_summed_over_devices_and_unknown_with_one_of_them():
    def reading(value):
        return TelemetryReading("energy_j", value, "NVML")

    assert (
        values(sample(), telemetry=(reading(6.0), reading(3.0)))["energy_per_output_token_j"].value
        == 3
    )
    assert values(sample(), telemetry=(reading(6.0), reading(None)))[
        "energy_per_output_token_j"
    ].excluded == {"unreadable": 1}
    assert values(sample())["energy_per_output_token_j"].value is None


def session(**fields):
    identity = EngineIdentity("0.32.0", "3.12", "2.13", "cpu", (), None, "here")
    defaults = {
        "session_id": "s",
        "target": "t",
        "config": "c",
        "workload": "w",
        "plan_digest": "d",
        "arm": Arm.CANDIDATE,
        "started_at_utc": "2026-11-29T00:00:00Z",
        "identity": identity,
        "resolved_config": {"block_size": 16},
        "stages": (StageTiming("import", 2.0), StageTiming("load", 3.5)),
        "memory": (
            RankMemory(0, weights_bytes=100, kv_cache_bytes=800),
            RankMemory(1, weights_bytes=120, kv_cache_bytes=640),
        ),
        "rounds": (),
        "kv_capacity_tokens": 200,
        "kv_max_concurrency_ratio": 4.5,
        "compile_cache_warm": True,
    }
    return SessionRecord(**(defaults | fields))


def test_a_session_has_its_host_and_day():
    assert session_metrics(session()).batch == ("here", "2026-11-29")
    assert session_metrics(session(started_at_utc="")).batch is None


def test_session_values_are_those_of_the_worst_rank():
    found = session_metrics(session()).values
    assert found["weights_bytes"].value == 120
    assert found["kv_bytes_per_token"].value == 4
    assert found["kv_bytes_per_token"].n == found["kv_cache_bytes"].n
    assert found["kv_capacity_tokens"].value == 200
    assert found["max_concurrency_ratio"].value == 4.5


def test_a_rank_that_cannot_tell_leaves_the_worst_unknown():
    blind = session(memory=(RankMemory(0, weights_bytes=100), RankMemory(1)))
    found = session_metrics(blind).values
    assert (found["weights_bytes"].value, found["weights_bytes"].excluded) == (
        None,
        {"rank_without_it": 1},
    )
    assert found["kv_bytes_per_token"].value is None
    assert session_metrics(session(memory=())).values["weights_bytes"].excluded == {
        "no_rank_seen": 1
    }


START_UPS = ("startup_cold_s", "startup_warm_s", "startup_uncompiled_s")


@pytest.mark.parametrize(
    ("warm", "times_s"),
    [(False, (5.5, None, None)), (True, (None, 5.5, None)), (None, (None, None, 5.5))],
)
def test_start_up_goes_under_the_cache_state_it_had(warm, times_s):
    found = session_metrics(session(compile_cache_warm=warm)).values
    assert tuple(found[name].value for name in START_UPS) == times_s
    assert [found[name].excluded for name in START_UPS if found[name].value is None] == [
        {"other_cache_state": 1}
    ] * 2


@pytest.mark.parametrize("warm", [True, False, None])
def test_a_process_that_had_imported_ahead_has_no_start_up_time(warm):
    found = session_metrics(session(compile_cache_warm=warm, imported_ahead=True)).values
    for name in START_UPS:
        assert (found[name].value, found[name].excluded) == (None, {"imported_ahead": 1})


def test_a_round_keeps_its_duration_and_what_was_read_meanwhile():
    clock = TelemetryReading("sm_clock_min_mhz", 1590.0, "NVML device 0")
    measured = replace(record(sample()), start_ns=100, end_ns=2_000_000_100, telemetry=(clock,))
    found = session_metrics(session(rounds=(measured,), started_at_utc="2026-11-30T03:49:29Z"))
    assert (found.started_at_utc, found.rounds[0].duration_s) == ("2026-11-30T03:49:29Z", 2.0)
    assert [one.name for one in found.rounds[0].readings] == [
        "sm_clock_min_mhz",
        "output_tokens_mean",
        "request_mean_ms",
    ]
    counted = replace(measured, counters={"process_cpu_seconds_total": 0.66})
    assert round_metrics(counted).readings[:2] == (
        clock,
        TelemetryReading("server_cpu_s", 0.66, "process_cpu_seconds_total"),
    )


def test_peak_resident_memory_is_the_sessions_and_unknown_when_it_was_not_seen():
    assert (
        session_metrics(session(engine_peak_resident_bytes=700))
        .values["engine_peak_rss_bytes"]
        .value
        == 700
    )
    blind = session_metrics(session()).values["engine_peak_rss_bytes"]
    assert (blind.value, blind.excluded) == (None, {"not_offered": 1})


def test_only_measured_rounds_are_kept_in_order_with_their_reasons():
    reason = InvalidReason("clock", "slow")
    rounds = (
        replace(
            record(sample()), round_index=2, start_ns=300, pair_index=1, invalid_reasons=(reason,)
        ),
        replace(record(sample()), round_index=1, start_ns=200),
        replace(record(sample()), round_index=0, start_ns=100, kind=RoundKind.WARM_UP),
    )
    found = session_metrics(session(rounds=rounds, pair_id="p"))
    assert [entry.round_index for entry in found.rounds] == [1, 2]
    assert found.rounds[1].invalid_reasons == (reason,)
    assert found.rounds[1].values["ttft_mean_ms"].value == 20
    assert (found.rounds[1].pair_index, found.pair_id, found.resolved_config) == (
        1,
        "p",
        {"block_size": 16},
    )


def test_decode_throughput_counts_while_every_request_decodes():
    """From the last first token (30 ms) to the first last token (50 ms): tokens at 40 and
    50 of one, at 40, 45 and 50 (of two) of the other.
    """
    early = sample(0, chunks=((20, 1), (30, 1), (40, 1), (50, 1)))
    late = sample(1, chunks=((30, 1), (40, 1), (45, 1), (50, 2), (60, 1)))
    found = values(early, late)["decode_tokens_per_s"]
    assert found.value == pytest.approx(6 / 0.020)
    assert found.n == 6
    assert values(early, sample(1, sent_ms=60, chunks=((70, 1), (80, 1))))[
        "decode_tokens_per_s"
    ].excluded == {"never_all_at_once": 2}
    broken = sample(1, status=RequestStatus.HTTP_STATUS, chunks=())
    assert values(early, broken)["decode_tokens_per_s"].value is None


def test_decode_throughput_does_not_see_a_slower_prefill():
    def at(first_ms):
        return sample(chunks=tuple((first_ms + 10 * step, 1) for step in range(8)))

    quick, slow = values(at(20)), values(at(500))
    assert quick["decode_tokens_per_s"].value == slow["decode_tokens_per_s"].value
    assert quick["output_tokens_per_s"].value > 2 * slow["output_tokens_per_s"].value


def test_the_servers_own_times_are_sum_over_count():
    name = "vllm:inter_token_latency_seconds"
    counted = {f"{name}_sum": 0.5, f"{name}_count": 40.0}
    found = values(sample(), counters=counted)
    assert found["server_itl_mean_ms"].value == 12.5
    assert found["server_itl_mean_ms"].n == 40
    assert found["server_prefill_mean_ms"].excluded == {"no_counter": 1}
    nothing = values(sample(), counters={f"{name}_sum": 0.0, f"{name}_count": 0.0})
    assert nothing["server_itl_mean_ms"].value is None


def test_every_declared_metric_is_computed_and_no_other():
    computed = session_metrics(session(rounds=(record(sample()),)))
    assert set(computed.values) == {
        metric.name
        for metric in METRIC_TABLE
        # the quality of answers only where a target declares it
        if metric.scope is Scope.SESSION and metric.family is not Family.QUALITY
    }
    assert set(computed.rounds[0].values) == {
        metric.name for metric in METRIC_TABLE if metric.scope is Scope.ROUND
    }
