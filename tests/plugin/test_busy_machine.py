"""Whole runs where no round becomes valid: families that need no quiet machine are
judged, and a recording ends early and says why.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.plugin.sites import TARGET, Site

from k3perf.errors import ExitStatus

NEVER_VALID = {
    **TARGET["validity"],
    "clock_jump_ms": 1e-9,
}  # two clocks never agree to a picosecond


def limit(site: Site, validity: dict[str, float]) -> None:
    (site.root / "perf_tests" / "targets" / "tiny.yaml").write_text(
        yaml.safe_dump({**TARGET, "validity": validity})
    )


def failed_tests(run: subprocess.CompletedProcess[str]) -> set[str]:
    return {
        line.split("::")[1].split("[")[0]
        for line in run.stdout.splitlines()
        if line.startswith("FAILED")
    }


def measured_rounds(results: Path) -> int:
    lines = [json.loads(line) for line in (results / "results.jsonl").read_text().splitlines()]
    return sum(
        line["kind"] == "round" and line["content"]["round"]["kind"] == "measured" for line in lines
    )


def test_noise_fails_throughput_and_latency_alone(site: Site) -> None:
    limit(site, NEVER_VALID)
    run = site.pytest("-k", "fp8_kv", "--k3-results", "out")
    assert run.returncode == ExitStatus.INVALID, run.stdout + run.stderr
    assert failed_tests(run) == {"test_throughput", "test_latency"}
    assert (
        "2 failed, 2 passed, 1 skipped" in run.stdout
    )  # memory and configuration; start-up has no tolerance
    assert "the clock jumped" in run.stdout
    verdict = json.loads((site.root / "out" / "verdict.json").read_text())
    assert verdict["outcome"] == "INVALID"


def test_a_loss_of_memory_is_proven_all_the_same(site: Site) -> None:
    limit(site, NEVER_VALID)
    run = site.pytest("-k", "fp8_kv", "--k3-inject", "hold_weights_bytes=1")
    assert run.returncode == ExitStatus.REGRESSED, run.stdout + run.stderr
    assert failed_tests(run) == {"test_throughput", "test_latency", "test_memory"}


def test_a_changed_configuration_is_seen_all_the_same(site: Site) -> None:
    limit(site, NEVER_VALID)
    site.behave(cache_config={"enable_prefix_caching": False})
    run = site.pytest("-k", "fp8_kv")
    assert run.returncode == ExitStatus.CONFIG_DRIFT, run.stdout + run.stderr
    assert "test_config_lock" in failed_tests(run)
    assert "test_memory" not in failed_tests(run)


def test_a_recording_in_which_nothing_can_become_valid_stops_early(site: Site) -> None:
    limit(site, NEVER_VALID)
    # two configs of three sessions each
    run = site.pytest("--k3-record", "--k3-results", "rec")
    assert run.returncode == ExitStatus.INVALID, run.stdout + run.stderr
    assert measured_rounds(site.root / "rec") == 6
    assert (
        "stopped after 6 rounds that all broke clock_jump_ms; no round can become valid"
        in run.stdout
    )
    assert "the clock jumped" in run.stdout
    assert site.engines_left() == []


@pytest.fixture
def load() -> Iterator[None]:
    """A process that keeps one CPU busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield
        process.kill()


@pytest.mark.usefixtures("load")
def test_a_recording_waits_for_a_quiet_machine_within_its_limit(site: Site) -> None:
    limit(site, {**TARGET["validity"], "foreign_cpu_ratio": 0.001})
    begin_s = time.monotonic()
    run = site.pytest("--k3-record", "--k3-quiet-wait", "3", "--k3-results", "rec", "-s")
    assert run.returncode == ExitStatus.INVALID, run.stdout + run.stderr
    assert time.monotonic() - begin_s < 60
    assert "waiting for a quiet machine, " in run.stdout
    assert "at most 0.001 allowed [foreign_cpu_ratio]" in run.stdout
    assert (
        "the machine did not become quiet within 3 s (--k3-quiet-wait): other processes used the"
        " CPUs" in run.stdout
    )
    assert not (site.root / "rec" / "engines").exists()  # nothing was started


@pytest.mark.parametrize("text", ["-1", "soon", "inf", "nan"])
def test_a_wait_that_is_no_time_is_a_usage_error(site: Site, text: str) -> None:
    run = site.pytest("--k3-record", f"--k3-quiet-wait={text}")
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert f"--k3-quiet-wait '{text}': give seconds, 0 or more" in run.stdout + run.stderr
