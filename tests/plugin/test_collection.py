"""What a user sees when pytest collects the suite: stable ids, targets by hardware, one
message for bad input. No engine starts.
"""

import itertools
import os
import subprocess
import sys
from functools import partial

import pytest
from tests.fork_of_vllm import Fork
from tests.plugin.sites import IMPORTED, WITHOUT
from tests.processes import PATIENCE_S, kept_bytecode

from k3perf.errors import ExitStatus
from k3perf.store.baselines import read_target_baselines


@pytest.fixture
def call_pytest(repository, forks):
    """`pytest ...` in this repository, without vLLM in this environment."""

    def run(*arguments, **environment):
        return forks.run(
            "pytest",
            [*arguments, *WITHOUT, *IMPORTED],
            cwd=repository,
            environment={**os.environ, **kept_bytecode(), **environment},
        )

    return run


@pytest.fixture
def collect(call_pytest):
    """`pytest perf_tests --collect-only` with more words."""
    return partial(call_pytest, "perf_tests", "--collect-only", "-q")


def test_ids_are_stable_and_k_selects(repository):
    command = [sys.executable, "-m", "pytest", "perf_tests", "--collect-only", "-q", *WITHOUT]
    run = subprocess.run(
        [*command, "--k3-target", "cpu-hybrid", "-k", "fp8_kv"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **kept_bytecode()},
        check=False,
    )
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    lines = [line for line in run.stdout.splitlines() if "::" in line]
    assert "perf_tests/test_throughput.py::test_throughput[cpu-hybrid-fp8_kv-chat]" in lines
    assert all("fp8_kv" in line for line in lines)


def test_m_selects_a_family(collect):
    run = collect("--k3-target", "cpu-hybrid", "-m", "latency")
    lines = [line for line in run.stdout.splitlines() if "::" in line]
    assert lines
    assert all("test_latency[" in line for line in lines)


def test_tests_of_one_engine_stand_together(collect):
    run = collect("--k3-target", "cpu-hybrid", "--k3-target", "cpu-gqa", "-k", "chat")
    engines = [
        line.split("[")[1].rsplit("-chat", 1)[0]
        for line in run.stdout.splitlines()
        if "-chat]" in line
    ]
    changes = sum(1 for before, after in itertools.pairwise(engines) if before != after)
    assert changes == len(set(engines)) - 1


def test_every_target_can_be_listed_without_its_hardware(collect):
    run = collect("--k3-target", "h200-k2", "-k", "fp8_kv")
    assert "test_throughput[h200-k2-fp8_kv-serve_1k]" in run.stdout


def test_left_out_cells_are_explained_with_v(collect):
    run = collect("--k3-target", "h200-k3", "-vv")
    assert "not collected: h200-k3-fp8_kv" in run.stdout
    assert "h200-k3-fp8_kv-" not in run.stdout.replace("not collected: h200-k3-fp8_kv", "")


def test_absent_hardware_asked_for_is_a_usage_error(call_pytest):
    run = call_pytest("perf_tests", "-q", "--k3-target", "mi355x-k3")
    assert run.returncode == ExitStatus.USAGE
    assert "mi355x-k3" in run.stderr
    assert "Traceback" not in run.stderr + run.stdout


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        (("--k3-target", "nobody"), "unknown target 'nobody'"),
        (("--k3-suite", "nowhere"), "directory not found"),
        (("--k3-cells", "nowhere.json"), "nowhere.json: file not found"),
    ],
)
def test_bad_options_are_usage_errors(collect, arguments, needle):
    run = collect(*arguments)
    assert run.returncode == ExitStatus.USAGE
    assert needle in run.stderr
    assert "Traceback" not in run.stderr + run.stdout


def test_broken_suite_is_one_message(collect, suite_copy):
    (suite_copy / "configs" / "fp8_kv.yaml").write_text("name: fp8_kv\nextend: default\n")
    run = collect("--k3-suite", str(suite_copy))
    assert run.returncode == ExitStatus.USAGE
    assert "fp8_kv.yaml" in run.stderr
    assert "'extend'" in run.stderr
    assert "Traceback" not in run.stderr + run.stdout


def test_a_tolerance_of_no_metric_is_found_when_collecting(collect, suite_copy):
    tolerances = suite_copy / "tolerances.yaml"
    tolerances.write_text(
        tolerances.read_text().replace(
            "defaults:\n", "defaults:\n  tpot_meen_ms: {loss_ratio: 0.05}\n"
        )
    )
    run = collect("--k3-suite", str(suite_copy))
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    told = (
        "tolerances.yaml at 'defaults.tpot_meen_ms': no metric has this name (value: {'loss_ratio':"
        " 0.05}). Use a name of docs/metrics.md"
    )
    assert f"{told}, such as tpot_mean_ms." in run.stderr
    assert "Traceback" not in run.stderr + run.stdout


def test_other_pytest_calls_are_left_alone(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*k3perf: targets*")


ON_REQUEST = {"poisson", "bursty", "burst", "prefix", "conversation", "trace"}


def collected_workloads(run):
    return {line.rsplit("-", 1)[1].rstrip("]") for line in run.stdout.splitlines() if "::" in line}


def test_workloads_on_request_are_not_measured_by_default(collect):
    assert collected_workloads(collect("--k3-target", "cpu-gqa")) == {"chat"}


@pytest.mark.parametrize(
    ("expression", "workloads"),
    [
        ("poisson", {"poisson"}),
        ("burst", {"burst"}),  # and not bursty, which pytest's own rule would take too
        ("default-conversation or default-trace", {"conversation", "trace"}),
        ("prefix and default", {"prefix"}),
        ("prefix_caching_off", {"chat"}),
    ],
)
def test_k_names_a_workload_on_request(collect, expression, workloads):
    run = collect("--k3-target", "cpu-gqa", "-k", expression, "--k3-candidates")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    found = collected_workloads(run)
    assert found & ON_REQUEST == workloads & ON_REQUEST
    assert workloads <= found


def test_a_test_id_names_a_workload_on_request(call_pytest):
    test = "perf_tests/test_latency.py::test_latency[cpu-gqa-default-burst]"
    run = call_pytest(test, "--collect-only", "-q", "--k3-target", "cpu-gqa", "--k3-candidates")
    assert collected_workloads(run) == {"burst"}, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("module", "workload"), [("test_trace.py", "trace"), ("test_prefix_cache.py", "prefix")]
)
def test_a_module_of_its_own_kind_takes_its_workloads_on_request(call_pytest, module, workload):
    words = ("--collect-only", "-q", "--k3-target", "cpu-gqa", "--k3-candidates")
    run = call_pytest(f"perf_tests/{module}", *words)
    assert collected_workloads(run) == {workload}, run.stdout + run.stderr
    assert "cpu-gqa-default-" in run.stdout


def test_a_cells_file_names_workloads_on_request(collect, tmp_path):
    (tmp_path / "cells.json").write_text('["cpu-gqa-default-poisson"]')
    run = collect("--k3-target", "cpu-gqa", "--k3-cells", str(tmp_path / "cells.json"))
    assert collected_workloads(run) == {"poisson"}, run.stdout + run.stderr


HERE = (
    "cpu-hybrid",
    "cpu-gqa",
    "h200-k3",
    "h200-k2",
    "h200-k3-mxfp4",
    "h200-k3-tp2",
    "h200-k3-ep2",
)
"""Targets whose hardware has run the suite."""


@pytest.mark.parametrize("target", HERE)
def test_a_run_of_a_whole_target_takes_cells_with_a_baseline_alone(collect, repository, target):
    run = collect("--k3-target", target)
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    lines = [line for line in run.stdout.splitlines() if "::" in line]
    recorded = {
        f"{target}-{baseline.config}-{part.workload}"
        for baseline in read_target_baselines(repository / "baselines", target)
        for part in baseline.workloads
    }
    found = {line.rpartition("[")[2].rstrip("]") for line in lines}
    assert found
    assert found <= recorded


def test_the_header_counts_candidates_and_v_lists_them(call_pytest):
    words = ("perf_tests", "--collect-only", "--k3-target", "h200-k2")
    run = call_pytest(*words)
    assert "k3perf: 5 candidate cells have no baseline and are not collected (-v" in run.stdout
    assert "candidate: " not in run.stdout
    run = call_pytest(*words, "-v")
    assert "candidate: h200-k2-seqs_up-serve_1k: not recorded yet" in run.stdout


@pytest.mark.parametrize("expression", ["seqs_up", "block_size_32 or cuda_graphs_off"])
def test_an_expression_that_hits_candidates_alone_says_so(call_pytest, expression):
    words = ("perf_tests", "-q", "--collect-only", "--k3-target", "h200-k2", "-k", expression)
    run = call_pytest(*words)
    assert run.returncode == ExitStatus.NO_BASELINE, run.stdout + run.stderr
    said = run.stdout + run.stderr
    assert f"-k {expression!r} selects only candidates, which have no baseline:" in said
    assert (
        f"Record them: pytest perf_tests -k {expression!r} --k3-target h200-k2 --k3-record" in said
    )
    assert "Traceback" not in said
    found = call_pytest(*words, "--k3-candidates")
    assert found.returncode == ExitStatus.OK, found.stdout + found.stderr
    assert "test_memory[h200-k2-" in found.stdout


def test_an_expression_that_hits_an_approved_cell_too_measures_that(collect):
    run = collect("--k3-target", "h200-k2", "-k", "fp8_kv or seqs_up")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    assert "[h200-k2-fp8_kv-serve_1k]" in run.stdout
    assert "seqs_up" not in run.stdout


def test_a_recording_collects_candidates(collect):
    run = collect("--k3-target", "h200-k2", "-k", "seqs_up", "--k3-record")
    assert "[h200-k2-seqs_up-serve_1k]" in run.stdout


def test_a_lost_baseline_is_not_a_candidate(collect, tmp_path):
    """Nothing lists the cell, so it stays in the run, which ends NO_BASELINE."""
    run = collect("--k3-target", "h200-k2", "--k3-baselines", str(tmp_path))
    assert "[h200-k2-default-serve_1k]" in run.stdout


def test_a_listed_cell_with_a_baseline_is_approved(collect, suite_copy, repository):
    path = suite_copy / "targets" / "h200-k2.yaml"
    path.write_text(path.read_text().replace("configs: [seqs_up,", "configs: [fp8_kv, seqs_up,"))
    words = ("--k3-target", "h200-k2", "-k", "fp8_kv", "--k3-suite", str(suite_copy))
    run = collect(*words, "--k3-baselines", str(repository / "baselines"))
    assert "[h200-k2-fp8_kv-serve_1k]" in run.stdout, run.stdout + run.stderr
    run = collect(*words, "--k3-baselines", str(suite_copy))
    assert run.returncode == ExitStatus.NO_BASELINE, run.stdout + run.stderr


CPU = ("--k3-target", "cpu-hybrid")


def test_inject_runs_the_suite_in_the_repository(repository):
    """As the README has it: this repository makes warnings errors, and pytest warns of
    plugins that were imported before it.
    """
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "k3perf.cli.main",
            "inject",
            "--slow-step-percent",
            "15",
            "--",
            "-k",
            "fp8_kv",
            "--collect-only",
            "-q",
            *CPU,
        ],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **kept_bytecode()},
        check=False,
    )
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    assert "test_throughput[cpu-hybrid-fp8_kv-chat]" in run.stdout


def test_a_forks_own_argument_is_known_where_its_python_is_named(collect, suite_copy, tmp_path):
    fork = Fork(tmp_path / "fork", "0.34.0+fork")
    path = suite_copy / "targets" / "cpu-gqa.yaml"
    path.write_text(
        path.read_text().replace("engine_arguments:", "engine_arguments:\n  fork_speed: 3", 1)
    )
    words = ("--k3-suite", str(suite_copy), "--k3-target", "cpu-gqa")
    environment = {"K3PERF_CACHE": str(tmp_path / "cache")}
    known = collect(*words, "--k3-engine-python", str(fork.python), **environment)
    assert known.returncode == ExitStatus.OK, known.stdout + known.stderr
    unknown = collect(*words, "--k3-engine-python", str(tmp_path / "nowhere"), **environment)
    assert unknown.returncode == ExitStatus.USAGE, unknown.stdout + unknown.stderr
    told = unknown.stdout + unknown.stderr
    assert f"{path} at 'engine_arguments.fork_speed': unknown vLLM argument (value: 3)" in told
    assert "Checked against the table that k3perf ships" in told
    assert "Traceback" not in told


@pytest.fixture
def run_capped(call_pytest, monkeypatch):
    """`pytest perf_tests` under caps of the instruction sets; they are those of an x86
    processor, so a test needs none.
    """
    for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
        monkeypatch.delenv(name, raising=False)
    return partial(call_pytest, "perf_tests")


def test_a_capped_machine_chooses_the_target_that_runs_under_the_cap(run_capped):
    run = run_capped(
        "--collect-only",
        "-k",
        "fp8_kv",
        ONEDNN_MAX_CPU_ISA="AVX2",
        ATEN_CPU_CAPABILITY="avx2",
    )
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    assert "k3perf: targets cpu-gqa (suite perf_tests/)" in run.stdout
    assert "k3perf: cpu-gqa instead of cpu-hybrid: " in run.stdout
    assert "avx512_bf16" in run.stdout
    assert "test_throughput[cpu-gqa-fp8_kv-chat]" in run.stdout


def test_a_machine_without_a_target_is_a_usage_error_that_names_the_instructions(run_capped):
    run = run_capped("-k", "fp8_kv", ONEDNN_MAX_CPU_ISA="SSE41")
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert "no target can be measured here by default:" in run.stderr
    assert "cpu-gqa: " in run.stderr
    assert "avx2" in run.stderr
    assert "Traceback" not in run.stdout + run.stderr


def test_a_capped_target_that_was_asked_for_names_the_cap(run_capped):
    run = run_capped("--k3-target", "cpu-gqa", ATEN_CPU_CAPABILITY="default")
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert "--k3-target cpu-gqa: " in run.stderr
    assert "avx2" in run.stderr


def test_an_expression_that_means_nothing_keeps_pytests_own_status(run_capped):
    run = run_capped("--k3-target", "cpu-gqa", "-k", "nonsense")
    assert run.returncode == ExitStatus.NO_TESTS, run.stdout + run.stderr
