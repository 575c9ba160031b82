"""A spoiled round: every rule breaks on its reading, holds one step inside its limit,
and never turns into a pass or a regression.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from k3perf.baselines.propose import propose
from k3perf.baselines.target_policy import target_policy, with_noise_of
from k3perf.config.models import Tolerance
from k3perf.config.suite import load_suite
from k3perf.engine.jit_monitor import JitMonitor
from k3perf.errors import UnknownNameError
from k3perf.gate.compare import compare
from k3perf.metrics.validity import (
    ROUND_RULES,
    SESSION_RULES,
    Bound,
    ValidityRules,
    judge_round,
    judge_session,
)
from k3perf.records.baseline import Acceptance
from k3perf.records.measurement import CellMeasurement, MetricValue, RoundMetrics, SessionMetrics
from k3perf.records.outcome import Outcome
from k3perf.records.samples import (
    Arm,
    ChunkRecord,
    EngineIdentity,
    InvalidReason,
    RequestSample,
    RequestStatus,
    RoundKind,
    RoundRecord,
    SessionRecord,
    TelemetryReading,
)
from k3perf.run.compile_watch import Seen, compile_reading
from k3perf.telemetry.devices import DeviceSample
from k3perf.telemetry.window import DeviceOwnership, device_readings, lost_devices
from k3perf.units import GIB
from tests.faults.matrix import Fault, Kind, of

MS = 1_000_000


def request(
    index: int, status: RequestStatus = RequestStatus.OK, *, ttft_ms: int = 50
) -> RequestSample:
    first_ns = ttft_ms * MS
    chunks = (ChunkRecord(first_ns, 1), ChunkRecord(first_ns + 100 * MS, 9))
    return RequestSample(index, status, 0, 0, first_ns + 100 * MS, chunks, 8, 10, 10)


TTFT = {"vllm:time_to_first_token_seconds_sum": 0.2, "vllm:time_to_first_token_seconds_count": 4.0}
CLEAN = RoundRecord(
    round_index=0,
    kind=RoundKind.MEASURED,
    start_ns=0,
    end_ns=200 * MS,
    samples=tuple(request(index) for index in range(4)),
    client_lag_p99_ns=2 * MS,
    counters={"vllm:num_preemptions_total": 0.0, "vllm:generation_tokens_total": 40.0, **TTFT},
    telemetry=tuple(
        TelemetryReading(name, value, "test")
        for name, value in {
            "jit_compiles_count": 0,
            "engine_restarts_count": 0,
            "engine_deaths_count": 0,
            "server_counters_missing_count": 0,
            # the software power cap is how a loaded device runs
            "throttle_reasons_bits": 0x4,
            "sm_clock_min_mhz": 1900,
            "temperature_max_c": 60,
            "power_mean_w": 600,
            "ecc_errors_count": 0,
            "foreign_device_processes_count": 0,
            "steal_ratio": 0.0,
            "psi_cpu_some_ratio": 0.1,
            "psi_memory_some_ratio": 0.0,
            "foreign_cpu_ratio": 0.01,
            "swap_used_bytes": 0,
            "clock_jump_ms": 0.2,
        }.items()
    ),
)
RATE = "output_tokens_per_s"
RULES = ValidityRules.for_target({"sm_clock_min_mhz": 1500})


def reading(name: str, value: float | None) -> RoundRecord:
    kept = tuple(entry for entry in CLEAN.telemetry if entry.name != name)
    return replace(CLEAN, telemetry=(*kept, TelemetryReading(name, value, "test")))


def without(name: str) -> tuple[TelemetryReading, ...]:
    return tuple(entry for entry in CLEAN.telemetry if entry.name != name)


def of_watch(seen: Seen) -> RoundRecord:
    return replace(
        CLEAN,
        telemetry=(
            *without("jit_compiles_count"),
            compile_reading(seen, JitMonitor(offered=True, verbose=True)),
        ),
    )


def fallen_counter() -> TelemetryReading:
    samples = [
        DeviceSample(at_ns, 0, 1, {}, 1, 1, 1, 1, 1, 0, errors)
        for at_ns, errors in ((0, 3), (1, 0))
    ]
    return next(
        entry
        for entry in device_readings(0, samples, 0, 1, DeviceOwnership(frozenset()))
        if entry.name == "ecc_errors_count"
    )


def counter(name: str, value: float) -> RoundRecord:
    return replace(CLEAN, counters={**CLEAN.counters, name: value})


def one_request(status: RequestStatus) -> RoundRecord:
    return replace(CLEAN, samples=(*CLEAN.samples[:3], request(3, status)))


SPOILED = {
    "requests_fail": one_request(RequestStatus.RESET),
    "answers_short": one_request(RequestStatus.SHORT),
    "no_answer_at_all": replace(CLEAN, samples=()),
    "engine_dies_mid_round": reading("engine_deaths_count", 1),
    "engine_restarts": reading("engine_restarts_count", 1),
    "compile_in_window": reading("jit_compiles_count", 1),
    "compile_on_disk_alone": of_watch(
        Seen(files=("/x/deep_gemm/cache/k",), files_count=1, greetings_count=1)
    ),
    "compile_monitor_silent": of_watch(Seen(greetings_count=0)),
    "server_counts_nothing": reading("server_counters_missing_count", 2),
    "preempted": counter("vllm:num_preemptions_total", 1.0),
    "client_late": replace(
        CLEAN,
        client_lag_p99_ns=40 * MS,
        samples=tuple(request(index, ttft_ms=500) for index in range(4)),
        counters=CLEAN.counters | {"vllm:time_to_first_token_seconds_sum": 2.0},
    ),
    "client_late_for_short_ttft": replace(CLEAN, client_lag_p99_ns=15 * MS),
    "clocks_disagree": replace(
        CLEAN, samples=tuple(request(index, ttft_ms=100) for index in range(4))
    ),
    "strangers_traffic": counter("vllm:generation_tokens_total", 50.0),
    "throttled": reading("throttle_reasons_bits", 0x44),
    "clock_low": reading("sm_clock_min_mhz", 1200),
    "too_hot": reading("temperature_max_c", 95),
    "ecc_error_in_round": reading("ecc_errors_count", 1),
    "driver_loaded_again": replace(
        CLEAN, telemetry=(*without("ecc_errors_count"), fallen_counter())
    ),
    "nvml_lost": reading("throttle_reasons_bits", None),
    "process_joins_device": reading("foreign_device_processes_count", 1),
    "cpu_stolen": reading("steal_ratio", 0.1),
    "cpu_used_by_others": reading("foreign_cpu_ratio", 0.25),
    "memory_short": reading("psi_memory_some_ratio", 0.1),
    "swapped": reading("swap_used_bytes", 1 << 20),
    "clock_jumps": reading("clock_jump_ms", 2000.0),
}
ROWS = [fault for fault in of(Kind.ROUND) if fault.name != "spread_too_wide"]


def test_a_clean_round_is_valid() -> None:
    assert judge_round(CLEAN, RULES) == ()


@pytest.mark.parametrize("fault", ROWS, ids=lambda fault: fault.name)
def test_a_spoiled_round_breaks_its_rule_and_no_other(fault: Fault) -> None:
    (reason,) = judge_round(SPOILED[fault.name], RULES)
    assert reason.rule == fault.shows
    assert reason.text
    rule = next(rule for rule in RULES.rounds if rule.name == reason.rule)
    assert reason.limit == rule.limit
    if fault.name not in (
        "nvml_lost",
        "compile_monitor_silent",
        "driver_loaded_again",
    ):  # unknown is the reason there
        assert reason.reading is not None
        assert (
            (reason.reading > rule.limit)
            if rule.bound is Bound.AT_MOST
            else (reason.reading < rule.limit)
        )


def test_every_rule_that_is_on_has_a_row() -> None:
    rows = {fault.shows for fault in of(Kind.ROUND)}
    on = {rule.name for rule in RULES.rounds if rule.limit is not None} | {
        "spread_over_noise_ratio"
    }
    assert rows == on


@pytest.mark.parametrize(
    "name", ["steal_ratio", "foreign_cpu_ratio", "clock_jump_ms", "swap_used_bytes"]
)
def test_a_host_reading_that_this_kernel_does_not_offer_is_no_reason(name: str) -> None:
    assert judge_round(reading(name, None), RULES) == ()


@pytest.mark.parametrize(
    "rule",
    [rule for rule in RULES.rounds if rule.requires and rule.limit is not None],
    ids=lambda rule: rule.name,
)
def test_a_required_reading_that_got_lost_is_a_reason(rule: object) -> None:
    name = {
        "engine_died": "engine_deaths_count",
        "engine_restarted": "engine_restarts_count",
        "compile_in_window": "jit_compiles_count",
    }
    name |= {
        "harmful_throttle_bits": "throttle_reasons_bits",
        "server_counters": "server_counters_missing_count",
    }
    lost = name.get(rule.name, rule.name)  # type: ignore[attr-defined]
    (reason,) = judge_round(reading(lost, None), RULES)
    assert reason.rule == rule.name  # type: ignore[attr-defined]
    assert reason.reading is None
    assert "could not be read" in reason.text


def test_hardware_without_a_reading_is_not_judged_by_it() -> None:
    assert (
        judge_round(replace(CLEAN, telemetry=(), counters={}, client_lag_p99_ns=None), RULES) == ()
    )


@pytest.mark.parametrize(
    ("bits", "valid"),
    [
        (0x1, True),
        (0x2, True),
        (0x4, True),
        (0x8, False),
        (0x20, False),
        (0x40, False),
        (0x80, False),
    ],
)
def test_throttle_bits(bits: int, valid: bool) -> None:
    assert (judge_round(reading("throttle_reasons_bits", bits), RULES) == ()) is valid


def test_the_worst_of_several_devices_counts() -> None:
    two = replace(
        CLEAN, telemetry=(*CLEAN.telemetry, TelemetryReading("sm_clock_min_mhz", 1000, "nvml 1"))
    )
    assert [reason.rule for reason in judge_round(two, RULES)] == ["sm_clock_min_mhz"]


def test_the_throttle_bits_of_several_devices_are_joined() -> None:
    other = (
        TelemetryReading("throttle_reasons_bits", 0x100, "nvml 1"),
        TelemetryReading("throttle_reasons_bits", 0x40, "nvml 2"),
    )
    assert [
        reason.rule
        for reason in judge_round(replace(CLEAN, telemetry=(*CLEAN.telemetry, *other)), RULES)
    ] == ["harmful_throttle_bits"]


# two looks at a device that answers and has nothing to say
NO_SAMPLE = tuple(
    DeviceSample(at_ns, 0, 1, {}, None, None, None, None, None, None, None) for at_ns in (0, 1)
)


def test_a_device_without_a_reading_is_told_from_one_that_got_lost() -> None:
    kept = tuple(entry for entry in CLEAN.telemetry if entry.name != "ecc_errors_count")
    without = device_readings(0, NO_SAMPLE, 0, 1, DeviceOwnership(frozenset()))
    ecc = next(entry for entry in without if entry.name == "ecc_errors_count")
    assert ecc.value is None
    assert judge_round(replace(CLEAN, telemetry=(*kept, ecc)), RULES) == ()
    lost = next(
        entry for entry in lost_devices(0, "GPU is lost") if entry.name == "ecc_errors_count"
    )
    assert [
        reason.rule for reason in judge_round(replace(CLEAN, telemetry=(*kept, lost)), RULES)
    ] == ["ecc_errors_count"]


def test_a_process_that_joins_the_device_is_named() -> None:
    """By pid, command and bytes, in the reason that the report shows."""
    sample = DeviceSample(0, 0, 1, {7: GIB, 41: 3 * GIB}, None, None, None, None, None, None, None)
    ownership = DeviceOwnership(
        frozenset({7}), exists=lambda pid: True, command=lambda pid: f"train-{pid}.py"
    )
    seen = device_readings(0, (sample, replace(sample, at_ns=1)), 0, 1, ownership)
    joined = next(entry for entry in seen if entry.name == "foreign_device_processes_count")
    kept = tuple(entry for entry in CLEAN.telemetry if entry.name != joined.name)
    (reason,) = judge_round(replace(CLEAN, telemetry=(*kept, joined)), RULES)
    assert reason.rule == "foreign_device_processes_count"
    assert "pid 41 (train-41.py) holds 3.0 GiB" in reason.text
    assert "pid 7" not in reason.text


def test_a_compile_in_the_window_names_the_kernel() -> None:
    kept = tuple(entry for entry in CLEAN.telemetry if entry.name != "jit_compiles_count")
    compiled = TelemetryReading(
        "jit_compiles_count", 1.0, "engine log: Triton JIT compile during inference: kernel_x"
    )
    (reason,) = judge_round(replace(CLEAN, telemetry=(*kept, compiled)), RULES)
    assert "kernel_x" in reason.text


def test_failed_requests_say_how_they_failed() -> None:
    first = replace(
        request(2, RequestStatus.WRONG_PROMPT),
        detail="the server read 7 prompt tokens, 8 were sent",
    )
    bad = replace(CLEAN, samples=(*CLEAN.samples[:2], first, request(3, RequestStatus.RESET)))
    (reason,) = judge_round(bad, RULES)
    assert (
        "1 wrong_prompt, 1 reset; first: the server read 7 prompt tokens, 8 were sent"
        in reason.text
    )


def test_the_device_that_broke_the_rule_is_named() -> None:
    two = (
        TelemetryReading("temperature_max_c", 95, "NVML device 1"),
        TelemetryReading("temperature_max_c", 60, "NVML device 0"),
    )
    kept = tuple(entry for entry in CLEAN.telemetry if entry.name != "temperature_max_c")
    (reason,) = judge_round(replace(CLEAN, telemetry=(*kept, *two)), RULES)
    assert reason.text.endswith("(NVML device 1)")


def test_small_ttft_differences_are_scheduling_not_disagreement() -> None:
    assert (
        judge_round(
            replace(CLEAN, samples=tuple(request(index, ttft_ms=58) for index in range(4))), RULES
        )
        == ()
    )


def test_limits_are_set_per_target_and_unknown_rules_are_refused() -> None:
    lenient = ValidityRules.for_target({"preemptions": 100, "steal_ratio": 0.5})
    assert judge_round(counter("vllm:num_preemptions_total", 50.0), lenient) == ()
    assert judge_round(SPOILED["cpu_stolen"], lenient) == ()
    with pytest.raises(UnknownNameError, match="preemption_count"):
        ValidityRules.for_target({"preemption_count": 1})
    names = [rule.name for rule in ROUND_RULES]
    assert len(set(names)) == len(names)


def session(*rounds: RoundRecord) -> SessionRecord:
    identity = EngineIdentity("0", "3", "2", "cpu-2", (), None, "h")
    return SessionRecord(
        "s",
        "t",
        "c",
        "w",
        "d",
        Arm.CANDIDATE,
        "2026-01-01T00:00:00+00:00",
        identity,
        {},
        (),
        (),
        rounds,
    )


def rated(name: str, level: float, spread_ratio: float) -> SessionMetrics:
    """Twelve rounds of a throughput that steps evenly through ``spread_ratio`` to
    either side of ``level``.
    """
    steps = [level * (1 + spread_ratio * (index % 6 - 2.5) / 2.5) for index in range(12)]
    rounds = tuple(
        RoundMetrics(index, None, {RATE: MetricValue(step, 8)}) for index, step in enumerate(steps)
    )
    return SessionMetrics(name, Arm.CANDIDATE, None, rounds, {}, {})


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [({}, Outcome.INVALID), ({"spread_over_noise_ratio": 1000}, Outcome.PASS)],
)
def test_spread_far_above_the_recorded_noise(limits: dict[str, float], outcome: Outcome) -> None:
    """Rounds vary a hundred times as much as the baseline's: no pass and no regression,
    however the level is; the limit is the target's.
    """
    recorded = [rated(f"b{index}", 1000.0 + index % 3, 0.001) for index in range(6)]
    declared = load_suite(Path(__file__).resolve().parents[2] / "perf_tests")
    target = declared.target("cpu-hybrid").model_copy(update={"validity": limits})
    policy = replace(
        target_policy(declared, target, gated_metric_count=1),
        tolerances={RATE: Tolerance(loss_ratio=0.05)},
    )
    cell = CellMeasurement(
        "cpu-hybrid", "default", "chat", "baseline", "cpu-2", "plan", tuple(recorded)
    )
    accepted = Acceptance(
        accepted_by="t",
        reason="numbers of a test",
        accepted_at_utc="2026-01-01T00:00:00Z",
        commit="c",
        run_ids=("r",),
    )
    baseline = propose([cell], policy=policy, versions={}, previous=None, acceptance=accepted)
    verdict = compare(
        baseline,
        replace(cell, sessions=(rated("wide", 1000.0, 0.1),)),
        with_noise_of(policy, [baseline]),
    )
    assert verdict.outcome is outcome
    if outcome is Outcome.INVALID:
        assert (
            "spread 100.1 times as much as recorded, at most 3 (spread_over_noise_ratio)"
            in verdict.metrics[0].reason
        )


def test_a_session_without_a_valid_round_says_which_rules_broke() -> None:
    bad = replace(CLEAN, invalid_reasons=(InvalidReason("steal_ratio", "x"),))
    warm_up = replace(CLEAN, kind=RoundKind.WARM_UP)
    (reason,) = judge_session(session(warm_up, bad), RULES)
    assert reason.rule == "valid_rounds_count"
    assert "broken: steal_ratio" in reason.text
    assert judge_session(session(bad, CLEAN), RULES) == ()
    assert set(SESSION_RULES) == {"valid_rounds_count", "spread_over_noise_ratio"}
