"""``k3perf upgrade`` with two stand-in engines: tables, verdict, and what accepting
writes.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from tests.engine_answers import ANSWERS
from tests.plugin.sites import AT_ONCE, IMPORTED, STAND_IN, WITHOUT, Site

from k3perf.errors import ExitStatus
from k3perf.records.baseline import Baseline, MetricBaseline
from k3perf.store.baselines import read_baseline

PYTEST = ("--", "-k", "fp8_kv", "--k3-plain", *WITHOUT, *AT_ONCE, *IMPORTED)
NEW = {"cache_config": {"block_size": 17, "brand_new_key": 1}}


def engine(site: Site, name: str, **behaviour: object) -> Path:
    """A virtual environment as far as k3perf asks: its Python, with a behaviour."""
    told = site.root / f"{name}.json"
    told.write_text(json.dumps(behaviour))
    python = site.root / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    words = shlex.join([sys.executable, str(STAND_IN)])
    python.write_text(f'#!/bin/sh\nexport K3PERF_STAND_IN={told}\n{ANSWERS}exec {words} "$@"\n')
    python.chmod(0o755)
    return site.root / name


def upgrade(site: Site, results: str = "up"):
    words = ("--engine", "next", "--engine-python", "now/bin/python", "--results", results)
    return site.k3perf("upgrade", *words, *PYTEST)


@pytest.fixture
def compared(site: Site) -> Site:
    engine(site, "now")
    engine(site, "next", **NEW)
    return site


def test_three_tables_and_one_command_that_accepts(compared: Site) -> None:
    site = compared
    run = upgrade(site)
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    tables = run.stdout[run.stdout.index("1. Resolved configuration") :]
    assert "cache_config.block_size (--block-size): " in tables
    assert "new: 1" in tables
    assert "cache_config.brand_new_key: 1  [tiny/fp8_kv]" in tables
    assert "weights_bytes" in tables.partition("2. Memory")[2].partition("3. Perf")[0]
    assert "output_tokens_per_s" in tables.partition("3. Performance")[2]
    (ungated,) = [line for line in tables.splitlines() if "ttft_mean_ms" in line]
    assert ungated.endswith("not gated, too few rounds for a verdict")
    assert "verdict: PASS" in tables
    before = read_baseline(site.root / "baselines", "tiny", "fp8_kv")
    accepted = site.k3perf("upgrade", "--accept", "up", "--reason", "measured side by side")
    assert accepted.returncode == ExitStatus.OK, accepted.stdout + accepted.stderr
    assert "not measured, so still approved for the old engine: tiny/default" in accepted.stdout
    after = read_baseline(site.root / "baselines", "tiny", "fp8_kv")
    assert before is not None
    assert after is not None
    assert after.resolved_config["cache_config.brand_new_key"] == 1
    assert timings(after)
    assert after.acceptance.reason == "measured side by side"
    assert timings(after) == timings(before), "timings keep their approved numbers"
    again = site.pytest("-k", "fp8_kv", "--k3-engine-python", "next/bin/python")
    assert again.returncode == ExitStatus.OK, again.stdout + again.stderr


def timings(baseline: Baseline) -> list[MetricBaseline]:
    return [one for part in baseline.workloads for one in part.metrics if one.basis == "ratio"]


def test_an_engine_that_needs_more_memory_is_accepted_with_its_loss_alone(site: Site) -> None:
    engine(site, "now")
    engine(site, "next", weights_bytes=2_000_000_000)
    run = upgrade(site)
    assert run.returncode == ExitStatus.REGRESSED, run.stdout + run.stderr
    before = (site.root / "baselines/tiny/fp8_kv.json").read_bytes()
    refused = site.k3perf("upgrade", "--accept", "up", "--reason", "measured side by side")
    assert refused.returncode == ExitStatus.USAGE
    assert "Add --with-losses" in refused.stderr
    assert (site.root / "baselines/tiny/fp8_kv.json").read_bytes() == before
    accepted = site.k3perf(
        "upgrade", "--accept", "up", "--with-losses", "--reason", "the new kernels need it"
    )
    assert accepted.returncode == ExitStatus.OK, accepted.stdout + accepted.stderr
    baseline = read_baseline(site.root / "baselines", "tiny", "fp8_kv")
    assert baseline is not None
    (weights,) = [entry for entry in baseline.exact if entry.metric == "weights_bytes"]
    assert {session.value for session in weights.sessions} == {2_000_000_000}
    assert weights.anchor_value < 2_000_000_000


def test_the_present_engine_and_an_old_run_are_refused(compared: Site) -> None:
    same = compared.k3perf("upgrade", "--engine", "now", "--engine-python", "now/bin/python")
    assert same.returncode == ExitStatus.USAGE
    assert "is the current engine" in same.stderr
    (compared.root / "up").mkdir()
    (compared.root / "up" / "results.jsonl").write_text("")
    held = upgrade(compared)
    assert held.returncode == ExitStatus.USAGE
    assert "already holds a run" in held.stderr
