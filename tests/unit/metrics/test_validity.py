"""Validity rules: one reading breaks each rule, its neighbour keeps it. An unreadable
reading is a reason, absent hardware is not.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3perf.errors import UnknownNameError
from k3perf.metrics.round_readings import (
    ENGINE_DEATHS_READING,
    ENGINE_RESTARTS_READING,
    JIT_COMPILES_READING,
    NOT_OFFERED,
    UNCOUNTED_READING,
)
from k3perf.metrics.validity import (
    ROUND_RULES,
    SESSION_RULES,
    ValidityRules,
    judge_round,
    judge_session,
)
from k3perf.records.samples import InvalidReason, RequestStatus, RoundKind, TelemetryReading
from tests.unit.metrics.test_compute import MS, record, sample, session

DEFAULT = ValidityRules()


def broken(*samples, rules=DEFAULT, **fields):
    return [
        reason.rule for reason in judge_round(record(*(samples or (sample(),)), **fields), rules)
    ]


def reading(name, value, source="nvml"):
    return TelemetryReading(name, value, source)


def test_a_good_round_breaks_nothing():
    counters = {
        "vllm:num_preemptions_total": 0.0,
        "vllm:time_to_first_token_seconds_sum": 0.02,
        "vllm:time_to_first_token_seconds_count": 1.0,
        "vllm:generation_tokens_total": 3.0,
    }
    assert broken(counters=counters, client_lag_p99_ns=MS) == []


def test_requests_must_be_there_and_end_as_asked():
    assert [reason.rule for reason in judge_round(record(), DEFAULT)] == ["no_requests"]
    assert broken(sample(status=RequestStatus.SHORT)) == ["wrong_length"]
    assert broken(sample(status=RequestStatus.LONG)) == ["wrong_length"]
    for status in set(RequestStatus) - {RequestStatus.OK, RequestStatus.SHORT, RequestStatus.LONG}:
        assert broken(sample(status=status)) == ["failed_requests"]


@pytest.mark.parametrize(
    ("name", "bad", "good", "rule"),
    [
        (ENGINE_DEATHS_READING, 1, 0, "engine_died"),
        (ENGINE_RESTARTS_READING, 1, 0, "engine_restarted"),
        (JIT_COMPILES_READING, 1, 0, "compile_in_window"),
        ("temperature_max_c", 87.5, 87, "temperature_max_c"),
        ("ecc_errors_count", 1, 0, "ecc_errors_count"),
        ("foreign_device_processes_count", 1, 0, "foreign_device_processes_count"),
        ("throttle_reasons_bits", 0x8, 0x1 | 0x2 | 0x4 | 0x10, "harmful_throttle_bits"),
        ("throttle_reasons_bits", 0x20 | 0x4, 0, "harmful_throttle_bits"),
        ("throttle_reasons_bits", 0x40, 0, "harmful_throttle_bits"),
        ("throttle_reasons_bits", 0x80, 0, "harmful_throttle_bits"),
    ],
)
def test_readings_that_must_be_seen(name, bad, good, rule):
    assert broken(telemetry=(reading(name, bad),)) == [rule]
    assert broken(telemetry=(reading(name, good),)) == []
    lost = judge_round(record(sample(), telemetry=(reading(name, None, "nvml: lost"),)), DEFAULT)
    assert [(reason.rule, reason.reading) for reason in lost] == [(rule, None)]
    assert "could not be read" in lost[0].text
    assert broken(telemetry=(reading(name, None, f"nvml: {NOT_OFFERED}"),)) == []


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("steal_ratio", 0.03, 0.02),
        ("foreign_cpu_ratio", 0.11, 0.1),
        ("swap_used_bytes", 1, 0),
        ("clock_jump_ms", 51, 50),
    ],
)
def test_readings_that_may_be_missing(name, bad, good):
    assert broken(telemetry=(reading(name, bad),)) == [name]
    assert broken(telemetry=(reading(name, good),)) == []
    assert broken(telemetry=(reading(name, None),)) == []


def test_of_several_devices_the_worst_counts():
    throttled = (reading("throttle_reasons_bits", 0x4), reading("throttle_reasons_bits", 0x8))
    assert broken(telemetry=throttled) == ["harmful_throttle_bits"]
    rules = ValidityRules.for_target({"sm_clock_min_mhz": 1500})
    assert broken(
        rules=rules,
        telemetry=(reading("sm_clock_min_mhz", 1900), reading("sm_clock_min_mhz", 1400)),
    ) == ["sm_clock_min_mhz"]
    assert (
        broken(
            rules=rules,
            telemetry=(reading("sm_clock_min_mhz", 1900), reading("sm_clock_min_mhz", 1500)),
        )
        == []
    )


def test_limits_are_off_until_a_target_sets_them_and_only_known_rules_can_be_set():
    hungry = (reading("power_mean_w", 900), reading("psi_cpu_some_ratio", 0.9))
    assert broken(telemetry=hungry) == []
    assert broken(
        rules=ValidityRules.for_target({"power_mean_w": 800, "psi_cpu_some_ratio": 0.5}),
        telemetry=hungry,
    ) == [
        "power_mean_w",
        "psi_cpu_some_ratio",
    ]
    assert ValidityRules.for_target({"valid_rounds_count": 4}).session_limits == {
        **SESSION_RULES,
        "valid_rounds_count": 4,
    }
    with pytest.raises(UnknownNameError, match="temprature"):
        ValidityRules.for_target({"temprature": 1})


def test_the_servers_counters_and_the_clients_lag():
    assert broken(counters={"vllm:num_preemptions_total": 1.0}) == ["preemptions"]
    assert broken(client_lag_p99_ns=21 * MS) == ["client_lag_p99_ms", "client_lag_share_ratio"]


def test_the_clients_lag_is_judged_by_the_ttft_that_it_lengthens():
    """10 ms of lag spoil a TTFT of 20 ms long before the absolute limit does."""
    ttft_ns = sample().first_token_ns - sample().sent_ns
    assert broken(client_lag_p99_ns=ttft_ns // 10) == []
    assert broken(client_lag_p99_ns=ttft_ns // 5) == ["client_lag_share_ratio"]
    assert broken(client_lag_p99_ns=MS - 1) == []


def test_the_servers_token_count():
    assert broken(counters={"vllm:generation_tokens_total": 4.0}) == ["token_disagreement_ratio"]


@pytest.mark.parametrize(
    ("server_s", "count", "expected"),
    [
        (0.1, 1, ["ttft_disagreement_ratio"]),
        (0.015, 1, []),
        (0.0, 1, []),
        (0.1, 0, []),
        (0.032, 1, ["ttft_disagreement_ratio"]),
    ],
)
def test_client_and_server_must_agree_on_the_first_token(server_s, count, expected):
    """The client saw 20 ms. A difference under 10 ms does not count, and a server that
    counted nothing cannot disagree.
    """
    counters = {
        "vllm:time_to_first_token_seconds_sum": server_s,
        "vllm:time_to_first_token_seconds_count": float(count),
    }
    assert broken(counters=counters) == expected
    assert broken(sample(chunks=()), counters=counters) == []


def test_the_reason_tells_reading_and_limit():
    reason = judge_round(record(sample(), telemetry=(reading("temperature_max_c", 91),)), DEFAULT)[
        0
    ]
    assert (reason.reading, reason.limit) == (91, 87.0)
    assert reason.text == "the device was too hot: 91 degrees C, at most 87 allowed (nvml)"
    assert len({rule.name for rule in ROUND_RULES}) == len(ROUND_RULES)


def measured(*last_ms, **fields):
    """Rounds of one request, with the last token at the given times."""
    return tuple(record(sample(chunks=((10, 1), (ms, 2))), **fields) for ms in last_ms)


SPOILED = (InvalidReason("preemptions", "requests were preempted: 3"),)


def test_counters_that_are_missing_tell_the_next_step_and_taking_it_ends_the_reason():
    missing = (reading(UNCOUNTED_READING, 1, "/metrics lacks vllm:num_preemptions_total"),)
    (reason,) = judge_round(record(sample(), telemetry=missing), DEFAULT)
    assert (
        reason.text
        == "the server lacks counters that the round is checked against: 1 of the needed counters, at"
        " most 0 allowed (/metrics lacks vllm:num_preemptions_total). This vLLM may name them"
        " differently (NEEDED_COUNTERS of k3perf). Set `validity: {server_counters: 1}` in the"
        " target to measure without them"
    )
    assert broken(rules=ValidityRules.for_target({"server_counters": 1}), telemetry=missing) == []


def test_a_session_needs_valid_measured_rounds():
    spoiled = replace(measured(40)[0], invalid_reasons=SPOILED)
    warm_up = replace(measured(40)[0], kind=RoundKind.WARM_UP)
    (reason,) = judge_session(session(rounds=(warm_up, spoiled)), DEFAULT)
    assert (reason.rule, reason.reading, reason.limit) == ("valid_rounds_count", 0.0, 1)
    assert "0 of 1 measured" in reason.text
    assert "broken: preemptions" in reason.text
    assert reason.text.endswith("; last: requests were preempted: 3"), (
        "the reading is reported, not only the rule"
    )
    (empty,) = judge_session(session(rounds=()), DEFAULT)
    assert "broken" not in empty.text
    assert judge_session(session(rounds=measured(40)), DEFAULT) == ()
