"""What went wrong elsewhere, and the tests that hold this suite to do better: one row a
public report, none without a test.

``where`` names the reports. A test that is renamed or removed takes its row along: then
this fails, and the row gets another one.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Case:
    """``tests`` are ``path below tests/::function``."""

    where: str
    symptom: str
    tests: tuple[str, ...]


CASES = (
    Case(
        "vllm 57362, 49055",
        "the previous engine's memory is freed late, the next one runs out",
        (
            "faults/test_machine_faults.py::test_memory_is_waited_for_and_then_the_holders_are_named",
            "faults/test_stop_faults.py::test_device_memory_that_comes_back_late_is_waited_for",
            "faults/test_stop_faults.py::test_device_memory_that_does_not_come_back_is_told",
        ),
    ),
    Case(
        "sglang 31509, vllm-omni 4165",
        "out of memory with another process on the device",
        (
            "faults/test_machine_faults.py::test_an_unfit_device",
            "faults/test_machine_faults.py::test_too_little_device_memory_names_the_holders",
            "faults/test_round_faults.py::test_a_process_that_joins_the_device_is_named",
        ),
    ),
    Case(
        "vllm 55510, 34816",
        "a killed API server leaves EngineCore and workers",
        (
            "faults/test_service_faults.py::test_a_process_is_killed",
            "faults/test_stop_faults.py::test_the_end_leaves_nothing",
            "faults/test_harness_faults.py::test_a_killed_harness_takes_its_engine_along",
        ),
    ),
    Case(
        "vllm 44751, 32116",
        "a start times out, or Ctrl-C in warm-up, and engines stay",
        (
            "faults/test_start_faults.py::test_a_failing_start_names_its_cause_and_leaves_nothing",
            "faults/test_harness_faults.py::test_an_interrupt_ends_everything",
            "faults/test_suite_faults.py::test_an_interrupted_run",
        ),
    ),
    Case(
        "vllm 39015, 31230",
        "a port is chosen, released and taken by another",
        (
            "faults/test_start_faults.py::test_a_stolen_port_is_left_to_the_thief",
            "faults/test_start_faults.py::test_ports_that_are_always_stolen_end_the_start",
        ),
    ),
    Case(
        "InferenceX, ascend 7098",
        "loading takes longer than a fixed ready time-out",
        ("faults/test_start_faults.py::test_progress_resets_the_deadline",),
    ),
    Case(
        "vllm 43009, 39790",
        "a kernel is compiled inside the window",
        (
            "faults/test_service_faults.py::test_a_compile_in_service_is_seen_in_its_window_alone",
            "faults/test_round_faults.py::test_a_compile_in_the_window_names_the_kernel",
        ),
    ),
    Case(
        "flashinfer 2899, mudler 2005",
        "clocks fall under power or heat",
        (
            "faults/test_round_faults.py::test_throttle_bits",
            "faults/test_round_faults.py::test_a_spoiled_round_breaks_its_rule_and_no_other",
            "faults/test_round_faults.py::test_the_device_that_broke_the_rule_is_named",
        ),
    ),
    Case(
        "TensorRT-LLM 8391",
        "one baseline for two kinds of device",
        (
            "unit/gate/test_known_mistakes.py::test_numbers_of_other_hardware_are_no_baseline",
            "faults/test_machine_faults.py::test_an_unfit_device",
            "faults/test_machine_faults.py::test_a_device_under_another_power_limit_is_another_class",
        ),
    ),
    Case(
        "aibrix 1573, inference-perf 559, vllm 3768",
        "TTFT counts only `content`, or an empty first chunk",
        (
            "unit/load/test_decode.py::test_any_channel_is_the_first_token",
            "unit/load/test_decode.py::test_empty_and_role_chunks_carry_no_token",
            "fidelity/test_client_against_mock.py::test_empty_first_chunks_do_not_shorten_the_ttft",
        ),
    ),
    Case(
        "vllm 46652",
        "ITL is wrong when a chunk has several tokens",
        (
            "unit/metrics/test_compute.py::test_a_chunks_tokens_share_its_gap_equally",
            "fidelity/test_client_against_mock.py::test_multi_token_chunks_keep_the_time_per_token",
        ),
    ),
    Case(
        "arXiv 2605.24217, InferenceX",
        "the client is the bottleneck",
        (
            "fidelity/test_client_against_mock.py::test_a_blocked_client_reports_its_own_lag",
            "unit/metrics/test_validity.py::test_the_servers_counters_and_the_clients_lag",
        ),
    ),
    Case(
        "perf-eval 53, vllm 12315",
        "tokeniser round trips change the prompt",
        (
            "unit/load/test_decode.py::test_broken_streams_are_named",
            "unit/workload/test_plan.py::test_whatever_decides_the_work_is_in_the_digest",
            "unit/gate/test_known_mistakes.py::test_changed_work_is_not_compared_with_the_old",
        ),
    ),
    Case(
        "vllm-omni 6743",
        "free-running outputs: the metric follows length",
        (
            "unit/load/test_decode.py::test_broken_streams_are_named",
            "unit/metrics/test_validity.py::test_requests_must_be_there_and_end_as_asked",
        ),
    ),
    Case(
        "ROCm vllm 1010",
        "an improvement breaks a two-sided check",
        ("unit/gate/test_compare.py::test_absolute_values_are_judged_against_the_committed_ones",),
    ),
    Case(
        "TensorRT-LLM 14382",
        "waived for good",
        ("unit/gate/test_compare.py::test_a_waiver_has_owner_build_and_end",),
    ),
    Case(
        "TensorRT-LLM docs",
        "main is already red and blocks everyone",
        (
            "plugin/test_whole_runs.py::test_ab_against_a_git_ref",
            "plugin/test_whole_runs.py::test_ab_against_another_engine_environment",
        ),
    ),
    Case(
        "typo 83",
        "a frozen baseline rots, a rolling one follows the slide",
        (
            "unit/gate/test_known_mistakes.py::test_a_baseline_does_not_follow_a_slow_slide_down",
            "unit/gate/test_propose.py::test_the_anchor_stays_on_a_loss_and_is_lifted_by_a_gain",
        ),
    ),
    Case(
        "pytest-benchmark",
        "a renamed, far slower test passes",
        (
            "unit/gate/test_known_mistakes.py::test_a_missing_or_renamed_baseline_is_no_pass",
            "plugin/test_whole_runs.py::test_missing_baseline_names_the_command",
            "unit/ci/test_merging.py::test_a_lost_shard_makes_its_cells_invalid_never_absent",
        ),
    ),
    Case(
        "vllm-omni 6032",
        "a baseline is taken from broken runs",
        ("unit/gate/test_known_mistakes.py::test_broken_sessions_never_enter_a_baseline",),
    ),
    Case(
        "Mina 19424",
        "a comparator that never tested its thresholds",
        (
            "calibration/test_error_rates.py::test_the_promises_in_short",
            "calibration/test_recorded_noise.py::test_recorded_sessions_are_judged_as_promised_in_short",
        ),
    ),
    Case(
        "fast_mail_parser 128",
        "0.3 % inside a job, 26 % between jobs",
        ("unit/gate/test_known_mistakes.py::test_a_bad_machine_is_not_a_bad_build",),
    ),
    Case(
        "vllm 15-minute crashes (InferenceX)",
        "the engine dies late in a run",
        (
            "plugin/test_whole_runs.py::test_engine_that_dies_is_invalid_with_its_cause_once",
            "plugin/test_whole_runs.py::test_an_engine_that_died_once_is_told_with_the_verdict",
            "faults/test_suite_faults.py::test_one_config_crashes_and_the_others_go_on",
        ),
    ),
    Case(
        "tt-xla 4902",
        "forty failures for one cause",
        ("unit/report/test_table.py::test_one_cause_of_many_cells_is_told_once_at_the_end",),
    ),
)


@cache
def functions(path: str) -> frozenset[str]:
    """Test functions of a module."""
    found = set()
    for node in ast.walk(ast.parse((TESTS / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.add(node.name)
    return frozenset(found)


def test_no_report_has_two_rows() -> None:
    assert len({case.where for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.where)
def test_a_case_has_tests_that_exist(case: Case) -> None:
    assert case.tests
    for name in case.tests:
        path, _, function = name.partition("::")
        assert function in functions(path), (
            f"{name}: there is no such test; {case.symptom} has to be held by another"
        )
