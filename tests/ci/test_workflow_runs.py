"""The workflows' jobs run on this machine by act, offline, with this host as every runner.

What is replaced: GitHub's own actions (by stubs that copy files), the gh tool (by a stub that records its calls), the measurement itself (a
stand-in for scripts/perf that writes the result files a run would write) and the setting-up of the environment. Everything between (plan,
matrix, conditions, merge, retry, verdict, report, history, refresh) is what production runs. GitHub's own scheduling, permissions and
runner groups are not shown here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from .test_workflow_lint import PINNED, WORKFLOWS

REPOSITORY = Path(__file__).resolve().parents[2]
ACT = Path(sysconfig.get_path("scripts")) / "act"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ACTIONS = {
    "actions/checkout": 'git clone --quiet "$STUB_ORIGIN" . && git checkout --quiet "${REF:-main}" && git remote set-url origin "$STUB_ORIGIN" && '
    'ln -s "$STUB_VENV" .venv && printf ".venv\\n" >>.git/info/exclude',
    "actions/setup-python": "true",
    "actions/upload-artifact": 'mkdir -p "$STUB_STORE/$NAME" && cp -rL "$FILES" "$STUB_STORE/$NAME/"; '
    'if [ -d "$FILES" ]; then mv "$STUB_STORE/$NAME/$(basename "$FILES")"/* "$STUB_STORE/$NAME/"; fi',
    "actions/download-artifact": 'mkdir -p "$FILES" && if [ -n "$NAME" ]; then cp -r "$STUB_STORE/$NAME/." "$FILES/"; '
    'else cp -r "$STUB_STORE/." "$FILES/"; fi',
    "actions/upload-pages-artifact": "true",
    "actions/deploy-pages": "true",
}
ENVIRONMENT_SH = 'k3perf_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)\nharness_environment() { :; }\nengine_environment() { :; }\n'
GH = """#!/bin/sh
printf '%s\\n' "$*" >>"$STUB_CALLS"
case "$*" in
    *"/pulls -f state=open"*) echo 7 ;;
    *"--body-file"*) while [ $# -gt 1 ]; do [ "$1" = --body-file ] && cp "$2" "$STUB_CALLS.$(basename "$2")"; shift; done ;;
    *"body=@comment.md"*) cp comment.md "$STUB_CALLS.comment.md" ;;
    *"--input check-run.json"*) cp check-run.json "$STUB_CALLS.check-run.json" ;;
esac
"""
# Stands for scripts/perf: the same options and files. The file "injected" in the commit says which configs are slower or spoiled.
PERF = """#!/usr/bin/env python3
import json, os, pathlib, sys
arguments = dict(zip(sys.argv[1::1], sys.argv[2::1]))
cells = json.loads(pathlib.Path(arguments["--k3-cells"]).read_text())
results = pathlib.Path(arguments["--k3-results"])
count = int(arguments["--k3-gated-metric-count"])
injected = dict(line.split() for line in pathlib.Path("injected").read_text().split("\\\\n") if line) if pathlib.Path("injected").exists() else {}
retry = json.loads((results / "runner.json").read_text())["shard"].endswith("-retry")
entries, measured = [], []
for cell in cells:
    target, config, workload = cell.rsplit("-", 2)
    fault = injected.get(config, "")
    slow = fault == "slow"
    reasons = [{"rule": "throttled", "text": "the clocks fell", "reading": 1.0, "limit": 2.0}] if fault == "spoiled" or (fault == "once" and not retry) else []
    metric = {"metric": "tpot_mean_ms", "unit": "ms", "outcome": "REGRESSED" if slow else "PASS", "baseline_value": 28.0,
              "now_value": 33.6 if slow else 28.0, "loss_ratio": 0.2 if slow else 0.0, "tolerance_ratio": 0.1, "alpha": 0.01 / count}
    entries.append({"target": target, "config": config, "workload": workload, "mode": "reference",
                    "metrics": [] if reasons else [metric], "invalid_reasons": reasons})
    value = {"value": 28.0, "n": 1}
    sessions = [{"session_id": f"{cell}-{index}", "arm": arm, "pair_id": f"{cell}-{index}",
                 "rounds": [{"round_index": number, "pair_index": number, "values": {name: {"value": (28.0 + index * 0.01 + number * 0.001) * (
                     1 if name == "tpot_mean_ms" else 10), "n": 1} for name in ("tpot_mean_ms", "ttft_mean_ms", "output_tokens_per_s")}}
                            for number in range(4)],
                 "values": {}, "resolved_config": {"a": 1}} for index in range(6) for arm in ("candidate", "reference")]
    measured.append({"schema_version": 1, "target": target, "config": config, "workload": workload, "mode": "reference",
                     "hardware_class": "cpu-avx512", "plan_digest": "sha256:" + "0" * 64, "sessions": sessions})
if not injected.get("runner") == "dies":
    head = {"schema_version": 1, "run_id": os.environ["GITHUB_RUN_ID"], "commit": os.environ.get("STUB_COMMIT", "c"), "created_at_utc": "2026-11-29T00:00:00Z"}
    (results / "verdict.json").write_text(json.dumps({**head, "vllm_version": "0.32.0", "false_alarm_budget": 0.01, "gated_metric_count": count, "cells": entries}))
    (results / "measurements.json").write_text(json.dumps({**head, "identity": {"vllm": "0.32.0"}, "cells": measured}))
sys.exit(1 if any(entry["metrics"] and entry["metrics"][0]["outcome"] == "REGRESSED" for entry in entries) else 0)
"""


def git(folder: Path, *arguments: str) -> str:
    identity = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env={**os.environ, **identity}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Workplace:
    """A bare repository as origin, a work tree of it, stubs, and act."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.origin = root / "origin.git"
        self.tree = root / "tree"
        self.store = root / "store"
        self.calls = root / "gh-calls"
        self._stubs()
        subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(self.origin)], check=True, timeout=60)
        subprocess.run(["git", "clone", "--quiet", str(self.origin), str(self.tree)], check=True, timeout=60, capture_output=True)
        git(self.tree, "checkout", "--quiet", "-B", "main")
        for name in (".github", "perf_tests"):
            shutil.copytree(REPOSITORY / name, self.tree / name, ignore=shutil.ignore_patterns("__pycache__", "traces"))
        (self.tree / "scripts").mkdir()
        shutil.copy(REPOSITORY / "scripts" / "k3perf", self.tree / "scripts" / "k3perf")
        (self.tree / "scripts" / "environment.sh").write_text(ENVIRONMENT_SH)
        self.program(self.tree / "scripts" / "perf", PERF)
        (self.tree / ".gitignore").write_text("/results/\n/.k3perf/\n")
        self.base = self.commit("base")
        git(self.tree, "push", "--quiet", "origin", "main")

    def _stubs(self) -> None:
        self.store.mkdir()
        (self.root / "home" / ".config" / "act").mkdir(parents=True)
        (self.root / "home" / ".config" / "act" / "actrc").write_text("-P ubuntu-24.04=-self-hosted\n-P self-hosted=-self-hosted\n")
        venv = self.root / "venv" / "bin"
        venv.mkdir(parents=True)
        self.program(venv / "k3perf", f'#!/bin/sh\nexec {sys.executable} -m k3perf.cli.main "$@"\n')
        bin_folder = self.root / "bin"
        bin_folder.mkdir()
        self.program(bin_folder / "gh", GH)
        for action, script in ACTIONS.items():
            folder = self.root / "actions" / action
            folder.mkdir(parents=True)
            names = {"name": "NAME", "path": "FILES", "ref": "REF"}
            inputs = {name: {"default": ""} for name in names}
            step = {"shell": "bash", "run": script, "env": {variable: f"${{{{ inputs.{name} }}}}" for name, variable in names.items()}}
            document = {"name": action, "description": "stub", "inputs": inputs, "runs": {"using": "composite", "steps": [step]}}
            (folder / "action.yml").write_text(json.dumps(document))

    @staticmethod
    def program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def commit(self, message: str) -> str:
        git(self.tree, "add", "--all")
        git(self.tree, "commit", "--quiet", "--message", message)
        return git(self.tree, "rev-parse", "HEAD")

    def change(self, *faults: str, config: str = "seqs_down") -> str:
        """A pull request's commit: one config changed, and faults for the stand-in to show."""
        git(self.tree, "checkout", "--quiet", "-B", "topic", "main")
        path = self.tree / "perf_tests" / "configs" / f"{config}.yaml"
        path.write_text(path.read_text() + "# touched\n")
        if faults:
            (self.tree / "injected").write_text("\n".join(faults) + "\n")
        head = self.commit("change")
        git(self.tree, "push", "--quiet", "--force", "origin", "topic")
        return head

    def pull_request(self, head: str, *labels: str, origin: str = "team/suite", action: str = "opened") -> dict[str, Any]:
        request = {
            "number": 7,
            "base": {"sha": self.base, "ref": "main"},
            "head": {"sha": head, "ref": "topic", "repo": {"full_name": origin}},
            "labels": [{"name": name} for name in labels],
        }
        event: dict[str, Any] = {"action": action, "number": 7, "pull_request": request, "repository": {"full_name": "team/suite"}}
        if action == "labeled":
            event["label"] = {"name": labels[-1]}
        return event

    def act(self, event_name: str, workflow: str, event: dict[str, Any], **variables: str) -> "Run":
        path = self.root / "event.json"
        path.write_text(json.dumps(event))
        pins = {
            match["action"]: match["commit"] for file in WORKFLOWS for match in map(PINNED.search, file.read_text().splitlines()) if match
        }
        local = [f"--local-repository={action}@{commit}={self.root / 'actions' / action}" for action, commit in pins.items()]
        environment = {
            "STUB_ORIGIN": str(self.origin),
            "STUB_VENV": str(self.root / "venv"),
            "STUB_STORE": str(self.store),
            "STUB_CALLS": str(self.calls),
            "STUB_COMMIT": git(self.tree, "rev-parse", "HEAD"),
            "GITHUB_REPOSITORY": "team/suite",
            "GITHUB_RUN_ID": "4711",
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
        }
        command = [
            str(ACT),
            event_name,
            "-W",
            f".github/workflows/{workflow}",
            "-e",
            str(path),
            "--no-skip-checkout",
            "--action-offline-mode",
            *local,
        ]
        command += [part for name, value in environment.items() for part in ("--env", f"{name}={value}")]
        command += [part for name, value in variables.items() for part in ("--var", f"{name}={value}")]
        done = subprocess.run(
            command,
            cwd=self.tree,
            env={**os.environ, "HOME": str(self.root / "home"), "XDG_CONFIG_HOME": str(self.root / "home" / ".config"),
                 "XDG_CACHE_HOME": str(self.root / "home" / ".cache"), "PATH": environment["PATH"]},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )  # fmt: skip
        return Run(done.returncode, done.stdout + done.stderr)


class Run:
    """What act said."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text

    def jobs(self) -> set[str]:
        """Names of the jobs that ran a step, reusable workflows' callers included."""
        return {
            match[1].strip()
            for match in re.finditer(r"^\[(?:perf-pr|perf-report|nightly|perf-full|measure)/([^\]]+)\] ", self.text, re.MULTILINE)
        }


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def shards(workplace: Workplace) -> list[str]:
    return sorted(path.name for path in workplace.store.iterdir() if path.name.startswith("results-"))


def test_a_clean_pull_request_is_green(workplace: Workplace) -> None:
    head = workplace.change()
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head))
    assert run.status == 0, run.text[-6000:]
    plan = json.loads((workplace.store / "plan" / "plan.json").read_text())
    assert {entry["config"] for entry in plan["cells"]} == {"default", "seqs_down"}
    assert shards(workplace) == ["results-cpu-avx512-0"]
    assert json.loads((workplace.store / "k3perf-report" / "verdict.json").read_text())["outcome"] == "PASS"
