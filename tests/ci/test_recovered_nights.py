"""The nightly workflow's step "Judge": a recording that its runner cut short is recovered,
judged and kept. The step's own script runs, with the real k3perf.
"""

from __future__ import annotations

import json
import lzma
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli import workplace

REPOSITORY = Path(__file__).parents[2]
CUT = '{"record": "round", "round_ind'


@pytest.fixture
def night(tmp_path: Path) -> Path:
    """A checkout of a suite with the artefacts of one shard, without measurements.json
    and with the last record cut off.
    """
    workplace.build(tmp_path, REPOSITORY)
    shard = tmp_path / "artifacts" / "results-h200-0"
    shard.mkdir(parents=True)
    results = (tmp_path / "run" / "results.jsonl").read_text()
    (shard / "results.jsonl").write_text(results + CUT)
    (tmp_path / "artifacts" / "plan").mkdir()
    shutil.copy(tmp_path / "plan.json", tmp_path / "artifacts" / "plan" / "plan.json")
    program = tmp_path / "scripts" / "k3perf"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m k3perf.cli.main "$@"\n')
    program.chmod(0o755)
    return tmp_path


def step(root: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "GITHUB_OUTPUT": str(root / "output"),
        "GITHUB_STEP_SUMMARY": str(root / "summary.md"),
        "GITHUB_SHA": workplace.COMMIT,
    }
    return subprocess.run(
        ["bash", str(REPOSITORY / ".github" / "scripts" / "judge-main")],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def kept_sessions(root: Path) -> set[str]:
    """Sessions that the next step keeps of this night."""
    command = "night keep artifacts --plan artifacts/plan/plan.json --verdict verdict.json"
    done = subprocess.run(
        ["scripts/k3perf", *command.split(), "--nights", "history"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in (0, 10), done.stderr
    found = set()
    for path in (root / "history").rglob("*.xz"):
        for cell in json.loads(lzma.decompress(path.read_bytes()))["cells"]:
            found |= {one["session_id"] for part in cell["recorded"] for one in part["sessions"]}
    return found


def test_a_recording_that_was_cut_short_is_recovered_judged_and_kept(night: Path) -> None:
    done = step(night)
    assert done.returncode == 0, done.stderr
    made = json.loads((night / "artifacts" / "results-h200-0" / "measurements.json").read_text())
    whole = json.loads((night / "run" / "measurements.json").read_text())
    assert made["commit"] == workplace.COMMIT
    ids = [one["session_id"] for cell in made["cells"] for one in cell["sessions"]]
    assert ids == [one["session_id"] for cell in whole["cells"] for one in cell["sessions"]]
    assert len(ids) >= 3
    assert (night / "output").read_text().startswith("status=")
    assert "k3perf:" in (night / "summary.md").read_text()
    candidates = [one for cell in made["cells"] for one in cell["sessions"]]
    own = {one["session_id"] for one in candidates if one["arm"] == "candidate"}
    assert kept_sessions(night) == own


def test_a_shard_that_cannot_be_recovered_stops_no_other_and_a_whole_one_is_left_alone(
    night: Path,
) -> None:
    broken, whole = (night / "artifacts" / f"results-h200-{number}" for number in (1, 2))
    broken.mkdir()
    (broken / "results.jsonl").write_text("this is not a record\n")
    shutil.copytree(night / "run", whole)
    before = (whole / "measurements.json").read_bytes()
    done = step(night)
    assert done.returncode == 0, done.stderr
    assert "not recovered: artifacts/results-h200-1" in done.stdout
    assert not (broken / "measurements.json").exists()
    assert (night / "artifacts" / "results-h200-0" / "measurements.json").exists()
    assert (whole / "measurements.json").read_bytes() == before
