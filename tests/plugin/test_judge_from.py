"""A change cannot alter its own verdict: ``--k3-judge-from`` judges it by its base."""

import json
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from tests.plugin.sites import TARGET, TOLERANCES, Site
from tests.processes import PATIENCE_S

from k3perf.errors import ExitStatus
from k3perf.records.baseline import Baseline
from k3perf.store.baselines import write_baseline

# one byte more than the engine of the baseline: an exact loss, without noise
LOSS = ("-k", "fp8_kv and test_memory", "--k3-inject", "hold_weights_bytes=1")
METRIC = "weights_bytes"


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    command = [shutil.which("git") or "git", "-C", str(root), *identity, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.stdout.strip()


@pytest.fixture
def topic(site: Site) -> Site:
    """A branch that left ``main``, where both configs are approved."""
    git(site.root, "init", "--quiet", "--initial-branch=main")
    git(site.root, "add", "perf_tests", "baselines")
    git(site.root, "commit", "--quiet", "--message", "base")
    git(site.root, "checkout", "--quiet", "-b", "topic")
    return site


def declare(site: Site, path: str, data: object) -> None:
    (site.root / path).write_text(yaml.safe_dump(data))


def raise_the_tolerance(site: Site) -> None:
    gated = {**TOLERANCES["defaults"], METRIC: {"loss_absolute": 1_000_000}}
    declare(site, "perf_tests/tolerances.yaml", {**TOLERANCES, "defaults": gated})


def remove_the_metric(site: Site) -> None:
    gated = {name: held for name, held in TOLERANCES["defaults"].items() if name != METRIC}
    declare(site, "perf_tests/tolerances.yaml", {**TOLERANCES, "defaults": gated})


def waive(site: Site, until: str) -> None:
    names = {"target": "tiny", "config": "fp8_kv", "workload": "quick", "metric": METRIC}
    said = {"owner": "ann", "build": "0.32", "reason": "made for a test", "expires_on": until}
    declare(site, "baselines/waivers.yaml", [names | said])


def waive_for_a_month(site: Site) -> None:
    waive(site, str(datetime.now(UTC).date() + timedelta(days=30)))


def waive_for_ever(site: Site) -> None:
    waive(site, "9999-12-31")


def forge_the_baseline(site: Site) -> None:
    """One byte more in every session, and a digest that fits."""
    path = site.root / "baselines" / "tiny" / "fp8_kv.json"
    data = json.loads(path.read_text())
    for entry in data["exact"]:
        if entry["metric"] == METRIC:
            for session in entry["sessions"]:
                session["value"] += 1
    write_baseline(site.root / "baselines", Baseline.model_validate(data))


def remove_the_config(site: Site) -> None:
    (site.root / "perf_tests" / "configs" / "fp8_kv.yaml").unlink()
    declare(site, "perf_tests/targets/tiny.yaml", {**TARGET, "configs": ["default"]})


def refuse_the_config(site: Site) -> None:
    refusal = {"when": {"kv_cache_dtype": "fp8"}, "reason": "made for a test"}
    declare(site, "perf_tests/targets/tiny.yaml", {**TARGET, "refusals": [refusal]})


def delete_the_baseline(site: Site) -> None:
    (site.root / "baselines" / "tiny" / "fp8_kv.json").unlink()


@pytest.mark.parametrize(
    ("change", "by_itself"),
    [
        (raise_the_tolerance, ExitStatus.OK),
        (remove_the_metric, ExitStatus.OK),
        (waive_for_a_month, ExitStatus.OK),
        (waive_for_ever, ExitStatus.USAGE),
        (forge_the_baseline, ExitStatus.OK),
        (delete_the_baseline, ExitStatus.NO_BASELINE),
        (remove_the_config, ExitStatus.NO_TESTS),
        (refuse_the_config, ExitStatus.NO_TESTS),
    ],
)
def test_a_change_of_the_judge_does_not_change_the_verdict(
    topic: Site, change: Callable[[Site], None], by_itself: ExitStatus
) -> None:
    change(topic)
    git(topic.root, "add", "--all", "perf_tests", "baselines")
    git(topic.root, "commit", "--quiet", "--message", "change the judge")
    alone = topic.pytest(*LOSS)
    assert alone.returncode == by_itself, alone.stdout + alone.stderr
    judged = topic.pytest(*LOSS, "--k3-judge-from", "main")
    assert judged.returncode == ExitStatus.REGRESSED, judged.stdout + judged.stderr
    commit = git(topic.root, "rev-parse", "main")[:12]
    assert f"judged by tolerances, plans, baselines and waivers of main ({commit})" in judged.stdout


def test_a_new_config_is_judged_by_its_own_baseline_and_the_report_says_so(topic: Site) -> None:
    config = yaml.safe_load((topic.root / "perf_tests/configs/fp8_kv.yaml").read_text())
    declare(topic, "perf_tests/configs/other.yaml", {**config, "name": "other"})
    declare(
        topic, "perf_tests/targets/tiny.yaml", {**TARGET, "configs": [*TARGET["configs"], "other"]}
    )
    recorded = json.loads((topic.root / "baselines" / "tiny" / "fp8_kv.json").read_text())
    made = Baseline.model_validate({**recorded, "config": "other"})
    write_baseline(topic.root / "baselines", made)
    git(topic.root, "worktree", "add", "--quiet", "base", "main")
    run = topic.pytest("-k", "(fp8_kv or other) and test_memory", "--k3-judge-from", "base")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    assert run.stdout.count("the base has no baseline of this cell") == 1
    assert "waivers of base\n" in run.stdout


def test_a_base_that_is_none_is_refused(topic: Site) -> None:
    run = topic.pytest("--k3-judge-from", "nothing")
    assert run.returncode == ExitStatus.USAGE
    assert "--k3-judge-from 'nothing' is neither a directory with perf_tests nor" in run.stderr
    run = topic.pytest("--k3-judge-from", "")
    assert run.returncode == ExitStatus.USAGE
    assert "--k3-judge-from is empty" in run.stderr
    run = topic.pytest("--k3-record", "--k3-judge-from", "main")
    assert run.returncode == ExitStatus.USAGE
    assert "leave --k3-judge-from out" in run.stderr
