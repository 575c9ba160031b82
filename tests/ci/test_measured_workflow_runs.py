"""A pull request's whole way with real engines: perf-pr and perf-report run by act, the
CPU target measured by scripts/perf as on a runner.

    K3PERF_ENGINE_PYTHON=... pytest -m "engine and slow" tests/ci/test_measured_workflow_runs.py

What is replaced: GitHub's own actions and the gh tool (tests/ci/workplace.py), and the
installing of packages: the harness's environment is the one that runs these tests. The
injected slow-down is real: the pull request's commit gives the suite's runs an option
that makes every step of the candidate's engine longer. Timings are judged as ratios to
the reference measured beside; the one absolute reading that other machines of the class
need not share, resident memory, is not gated in the base commit.

Needs two processors with nothing else to do. A machine that is not quiet makes cells
INVALID, which is neither green nor a finding: skipped with the readings.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from k3perf.config.suite import load_suite
from k3perf.telemetry.hardware import detect_hardware

from .workplace import REPOSITORY, Run, Workplace, git

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(3_600)]

# on one CPU target only; another config depends on it, so the budget has something to
# leave out
CONFIG = "seqs_up"
PLANNED = {"cpu-hybrid-default-chat", f"cpu-hybrid-{CONFIG}-chat"}
SLOWER_STEP_PERCENT = 40
SETTINGS = {"K3PERF_HARDWARE_CLASSES": "cpu-avx512", "K3PERF_BUDGET_MINUTES": "1"}
BUSY_RULES = {
    "client_lag_p99_ms",
    "client_lag_share_ratio",
    "clock_jump_ms",
    "foreign_cpu_ratio",
    "steal_ratio",
    "swap_used_bytes",
    "ttft_disagreement_ratio",
}


class MeasuringWorkplace(Workplace):
    """The repository as it is, with an environment that its scripts find in order."""

    def fill(self) -> None:
        """Scripts, locks and baselines of this tree; resident memory, an absolute
        reading, is not gated.
        """
        for folder in ("scripts", "requirements", "baselines"):
            shutil.copytree(REPOSITORY / folder, self.tree / folder)
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(REPOSITORY / name, self.tree / name)
        tolerances = self.tree / "perf_tests" / "tolerances.yaml"
        text, count = re.subn(r"(engine_peak_rss_bytes: ).*", r"\1null", tolerances.read_text())
        assert count, "resident memory is gated no more; leave this out"
        tolerances.write_text(text)
        self.program(
            self.root / "venv" / "bin" / "python",
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n',
        )
        self.settle()

    def settle(self) -> None:
        """Make scripts/environment.sh find the environment filled from the tree's
        locks, so that nothing is installed.
        """
        locks = (self.tree / "requirements" / "harness.txt").read_bytes() + (
            self.tree / "pyproject.toml"
        ).read_bytes()
        (self.root / "venv" / ".k3perf-lock").write_text(hashlib.sha256(locks).hexdigest() + "\n")

    def slow_down(self) -> str:
        """Let the pull request's commit make every step of the candidate's engine
        longer.
        """
        project = self.tree / "pyproject.toml"
        text, count = re.subn(
            r'^(addopts = ".*)"$',
            rf'\1 --k3-inject slow_step_percent={SLOWER_STEP_PERCENT}"',
            project.read_text(),
            flags=re.MULTILINE,
        )
        assert count == 1
        project.write_text(text)
        self.settle()
        head = self.commit("slower")
        git(self.tree, "push", "--quiet", "--force", "origin", "topic")
        return head

    def report(self, head: str) -> Run:
        """The report runs the default branch's code, with the environment of its locks."""
        git(self.tree, "checkout", "--quiet", "main")
        self.settle()
        return super().report(head)

    def measure(self, head: str) -> Run:
        """The pull request's workflow; skips the test when all that came of it is that
        the machine was busy.
        """
        run = self.act(
            "pull_request", "perf-pr.yml", self.pull_request(head), timeout_s=3_000, **SETTINGS
        )
        assert (self.store / "k3perf-report" / "verdict.json").is_file(), run.text[-6000:]
        reasons = [reason for cell in self.verdict["cells"] for reason in cell["invalid_reasons"]]
        broken = {
            rule
            for reason in reasons
            for found in re.findall(r"broken: ([a-z0-9_, ]+)", reason["text"])
            for rule in found.split(", ")
        }
        if (
            broken
            and broken <= BUSY_RULES
            and {reason["rule"] for reason in reasons} == {"valid_rounds_count"}
        ):
            pytest.skip(
                "the machine is not quiet: " + "; ".join(str(reason["text"]) for reason in reasons)
            )
        return run


@pytest.fixture
def workplace(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, engine_python: Path
) -> MeasuringWorkplace:
    lack = detect_hardware().lacks(
        load_suite(REPOSITORY / "perf_tests").target("cpu-hybrid").hardware
    )
    if lack:
        pytest.skip(f"cpu-hybrid cannot be measured here: {lack}")
    # what compiles once serves both tests
    cache = tmp_path_factory.getbasetemp() / "cache"
    return MeasuringWorkplace(
        tmp_path,
        K3PERF_ENGINE_PYTHON=str(engine_python),
        K3PERF_CACHE=str(cache),
        PYTEST_ADDOPTS="",
    )


def cell_of(verdict: dict[str, Any], config: str) -> dict[str, Any]:
    (cell,) = [cell for cell in verdict["cells"] if cell["config"] == config]
    return dict(cell)


def metrics_of(cell: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {metric["metric"]: metric for metric in cell["metrics"]}


def engines_of(workplace: Workplace) -> list[str]:
    commands = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    return [command for command in commands if "vllm" in command and str(workplace.root) in command]


def test_a_clean_pull_request_is_measured_and_green(workplace: MeasuringWorkplace) -> None:
    run = workplace.measure(workplace.change(config=CONFIG))
    assert run.status == 0, run.text[-6000:]
    verdict = workplace.verdict
    assert {
        f"{cell['target']}-{cell['config']}-{cell['workload']}" for cell in verdict["cells"]
    } == PLANNED
    assert verdict["outcome"] in {"PASS", "IMPROVED", "INCONCLUSIVE"}
    for cell in verdict["cells"]:
        metrics = metrics_of(cell)
        assert metrics["tpot_mean_ms"]["round_count"] >= 4, "measured, not made up"
        assert {
            metrics[name]["outcome"]
            for name in ("weights_bytes", "kv_cache_bytes", "kv_capacity_tokens")
        } == {"PASS"}
    plan = json.loads((workplace.store / "plan" / "plan.json").read_text())
    assert verdict["gated_metric_count"] == plan["gated_metric_count"]
    assert [entry["cell"] for entry in plan["left_out"]] == ["cpu-hybrid-throughput_combo-chat"], (
        "the budget is one minute"
    )
    assert engines_of(workplace) == []


def test_a_real_slow_down_is_red_and_its_comment_says_by_how_much(
    workplace: MeasuringWorkplace,
) -> None:
    workplace.change(config=CONFIG)
    head = workplace.slow_down()
    run = workplace.measure(head)
    assert run.status != 0
    verdict = workplace.verdict
    assert verdict["outcome"] == "REGRESSED", json.dumps(verdict)[:4000]
    worse = metrics_of(cell_of(verdict, CONFIG))
    assert {worse["tpot_mean_ms"]["outcome"], worse["output_tokens_per_s"]["outcome"]} == {
        "REGRESSED"
    }
    loss_ratio = worse["tpot_mean_ms"]["loss_ratio"]
    assert worse["tpot_mean_ms"]["tolerance_ratio"] < loss_ratio < 2 * SLOWER_STEP_PERCENT / 100
    assert {worse[name]["outcome"] for name in ("weights_bytes", "kv_cache_bytes")} == {"PASS"}, (
        "a slow step takes no memory"
    )

    report = workplace.report(head)
    assert report.status == 0, report.text[-6000:]
    assert workplace.comment.startswith("<!-- k3perf-report -->\n## k3perf: REGRESSED")
    (row,) = [
        line
        for line in workplace.comment.splitlines()
        if f"`{CONFIG}`" in line and "`tpot_mean_ms`" in line
    ]
    assert f"| {loss_ratio * 100:+.1f} % |" in row
    assert "on purpose" in workplace.comment, "an injected fault is told"
    check_run = workplace.check_run
    assert (check_run["head_sha"], check_run["conclusion"]) == (head, "failure")
    told = {entry["path"]: entry for entry in check_run["output"]["annotations"]}
    assert told[f"perf_tests/configs/{CONFIG}.yaml"]["annotation_level"] == "failure"
    assert (
        f"tpot_mean_ms {loss_ratio * 100:+.1f} %"
        in told[f"perf_tests/configs/{CONFIG}.yaml"]["message"]
    )
    assert engines_of(workplace) == []
