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
GIT = shutil.which("git") or "git"
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


def git(folder: Path, *arguments: str) -> str:
    identity = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}
    done = subprocess.run(
        [GIT, "-C", str(folder), *arguments], env={**os.environ, **identity}, capture_output=True, text=True, check=False, timeout=60
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
        subprocess.run([GIT, "init", "--quiet", "--bare", "--initial-branch=main", str(self.origin)], check=True, timeout=60)
        subprocess.run([GIT, "clone", "--quiet", str(self.origin), str(self.tree)], check=True, timeout=60, capture_output=True)
        git(self.tree, "checkout", "--quiet", "-B", "main")
        for name in (".github", "perf_tests"):
            shutil.copytree(REPOSITORY / name, self.tree / name, ignore=shutil.ignore_patterns("__pycache__", "traces"))
        (self.tree / "scripts").mkdir()
        shutil.copy(REPOSITORY / "scripts" / "k3perf", self.tree / "scripts" / "k3perf")
        (self.tree / "scripts" / "environment.sh").write_text(ENVIRONMENT_SH)
        shutil.copy(REPOSITORY / "tests" / "ci" / "stand_in_perf.py", self.tree / "scripts" / "perf")
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

    def act(self, event_name: str, workflow: str, event: dict[str, Any], **variables: str) -> Run:
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


def test_an_injected_slow_down_is_red_and_its_comment_says_so(workplace: Workplace) -> None:
    head = workplace.change("seqs_down slow")
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head))
    assert run.status != 0
    assert json.loads((workplace.store / "k3perf-report" / "verdict.json").read_text())["outcome"] == "REGRESSED"
    assert re.search(r"::error file=perf_tests/configs/seqs_down.yaml|k3perf: REGRESSED", run.text)
    finished = {
        "workflow_run": {
            "id": 4711, "event": "pull_request", "head_sha": head, "head_branch": "topic", "head_repository": {"owner": {"login": "team"}},
        },
        "repository": {"full_name": "team/suite"},
    }  # fmt: skip
    report = workplace.act("workflow_run", "perf-report.yml", finished)
    assert report.status == 0, report.text[-6000:]
    comment = Path(f"{workplace.calls}.comment.md").read_text()
    assert comment.startswith("<!-- k3perf-report -->\n## k3perf: REGRESSED")
    assert "`seqs_down`" in comment
    assert "+20.0 %" in comment
    check_run = json.loads(Path(f"{workplace.calls}.check-run.json").read_text())
    assert (check_run["head_sha"], check_run["conclusion"]) == (head, "failure")
    assert check_run["output"]["annotations"][0]["path"] == "perf_tests/configs/seqs_down.yaml"


def test_a_report_without_results_says_so(workplace: Workplace) -> None:
    finished = {
        "workflow_run": {
            "id": 1,
            "event": "pull_request",
            "head_sha": "0" * 40,
            "head_branch": "x",
            "head_repository": {"owner": {"login": "t"}},
        },
        "repository": {"full_name": "team/suite"},
    }
    report = workplace.act("workflow_run", "perf-report.yml", finished)
    assert report.status == 0, report.text[-6000:]
    assert "INVALID" in Path(f"{workplace.calls}.comment.md").read_text()


def gpu_change(workplace: Workplace, *faults: str) -> str:
    return workplace.change(*faults, config=GPU_CONFIG)


GPU_CONFIG = "seqs_down"
GPU = {"K3PERF_HARDWARE_CLASSES": "h200", "K3PERF_POOLS": "a,b", "K3PERF_BUDGET_MINUTES": "1"}


def test_a_forks_pull_request_without_the_label_does_not_reach_the_gpu(workplace: Workplace) -> None:
    head = gpu_change(workplace)
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head, origin="stranger/suite"), **GPU)
    assert run.status != 0, "unmeasured cells are not green"
    assert shards(workplace) == []
    assert "gpu-ok-" in run.text
    verdict = json.loads((workplace.store / "k3perf-report" / "verdict.json").read_text())
    assert verdict["outcome"] == "INVALID"
    assert verdict["cells"][0]["invalid_reasons"][0]["rule"] == "shard_lost"


def test_a_label_of_another_commit_is_no_permission(workplace: Workplace) -> None:
    head = gpu_change(workplace)
    event = workplace.pull_request(head, "gpu-ok-" + "b" * 40, origin="stranger/suite", action="labeled")
    assert workplace.act("pull_request", "perf-pr.yml", event, **GPU).status != 0
    assert shards(workplace) == []


def test_the_label_of_the_head_commit_lets_a_fork_reach_the_gpu(workplace: Workplace) -> None:
    head = gpu_change(workplace)
    event = workplace.pull_request(head, f"gpu-ok-{head}", origin="stranger/suite", action="labeled")
    run = workplace.act("pull_request", "perf-pr.yml", event, **GPU)
    assert run.status == 0, run.text[-6000:]
    assert shards(workplace) == ["results-h200-0"]


def test_an_unrelated_label_measures_nothing_and_claims_nothing(workplace: Workplace) -> None:
    head = workplace.change()
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head, "documentation", action="labeled"))
    assert run.status == 0, run.text[-6000:]
    assert "[perf-pr/unrelated label" in run.text
    assert "perf verdict" not in run.text
    assert list(workplace.store.iterdir()) == []


def test_an_invalid_cell_is_measured_once_more_on_another_pool(workplace: Workplace) -> None:
    head = gpu_change(workplace, f"{GPU_CONFIG} once")
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head), **GPU)
    assert run.status == 0, run.text[-6000:]
    assert shards(workplace) == ["results-h200-0", "results-h200-0-retry"]
    retried = json.loads((workplace.store / "results-h200-0-retry" / "cells.json").read_text())
    assert retried
    assert all(f"-{GPU_CONFIG}-" in cell for cell in retried)
    verdict = json.loads((workplace.store / "k3perf-report" / "verdict.json").read_text())
    assert any("another runner" in note for cell in verdict["cells"] for note in cell["notes"])


def test_a_cell_that_stays_invalid_is_red(workplace: Workplace) -> None:
    head = workplace.change("seqs_down spoiled")
    assert workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head)).status != 0
    assert shards(workplace) == ["results-cpu-avx512-0", "results-cpu-avx512-0-retry"]
    assert json.loads((workplace.store / "k3perf-report" / "verdict.json").read_text())["outcome"] == "INVALID"


def test_a_lost_runner_is_red(workplace: Workplace) -> None:
    head = workplace.change("runner dies")
    assert workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head)).status != 0
    verdict = json.loads((workplace.store / "k3perf-report" / "verdict.json").read_text())
    assert {reason["rule"] for cell in verdict["cells"] for reason in cell["invalid_reasons"]} == {"shard_lost"}


def test_a_suite_that_cannot_be_read_is_red(workplace: Workplace) -> None:
    workplace.change()
    (workplace.tree / "perf_tests" / "tolerances.yaml").write_text("schema_version: [\n")
    head = workplace.commit("broken")
    git(workplace.tree, "push", "--quiet", "--force", "origin", "topic")
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head))
    assert run.status != 0
    assert "tolerances.yaml" in run.text
    assert shards(workplace) == []


def test_a_documentation_change_measures_nothing_and_is_green(workplace: Workplace) -> None:
    git(workplace.tree, "checkout", "--quiet", "-B", "topic", "main")
    (workplace.tree / "README.md").write_text("words\n")
    head = workplace.commit("words")
    git(workplace.tree, "push", "--quiet", "origin", "topic")
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head))
    assert run.status == 0, run.text[-6000:]
    assert shards(workplace) == []


def test_a_night_keeps_its_history_and_proposes_a_refresh(workplace: Workplace) -> None:
    event = {"repository": {"full_name": "team/suite"}}
    run = workplace.act("schedule", "nightly.yml", event)
    assert run.status == 0, run.text[-6000:]
    lines = git(workplace.origin, "show", "perf-history:history.jsonl").splitlines()
    assert {json.loads(line)["metric"] for line in lines} == {"tpot_mean_ms", "ttft_mean_ms", "output_tokens_per_s"}
    assert git(workplace.origin, "ls-tree", "--name-only", "perf-history") == "history.jsonl"
    changed = git(workplace.origin, "diff", "--name-only", "main", "baseline-refresh").splitlines()
    assert changed
    assert all(name.startswith("baselines/") for name in changed)
    baseline = json.loads(git(workplace.origin, "show", f"baseline-refresh:{changed[0]}"))
    assert baseline["acceptance"]["accepted_by"] == "nightly refresh"
    assert "pr create --head baseline-refresh" in workplace.calls.read_text()
    table = Path(f"{workplace.calls}.refresh.md").read_text()
    assert "tpot_mean_ms" in table
    assert "issue create" not in workplace.calls.read_text()
    again = workplace.act("schedule", "nightly.yml", event)
    assert again.status == 0, again.text[-6000:]
    assert git(workplace.origin, "show", "perf-history:history.jsonl").splitlines() == lines, "the same run is not added twice"


def test_whole_models_are_measured_by_hand_or_by_label_and_never_for_an_unlabelled_fork(workplace: Workplace) -> None:
    classes = {"K3PERF_HARDWARE_CLASSES": "h200-x16"}
    head = workplace.change()
    fork = workplace.pull_request(head, "perf-full", origin="stranger/suite", action="labeled")
    assert workplace.act("pull_request", "perf-full.yml", fork, **classes).status == 0
    assert list(workplace.store.iterdir()) == [], "nothing ran"
    ours = workplace.pull_request(head, "perf-full", action="labeled")
    run = workplace.act("pull_request", "perf-full.yml", ours, **classes)
    assert run.status == 0, run.text[-6000:]
    assert shards(workplace) == ["results-h200-x16-0"]
    plan = json.loads((workplace.store / "plan" / "plan.json").read_text())
    assert {entry["target"] for entry in plan["cells"]} == {"h200-k3-whole"}


def test_a_slide_in_the_history_opens_one_issue(workplace: Workplace) -> None:
    night = {
        "schema_version": 1, "commit": "c", "vllm_version": "0.32.0", "hardware_class": "cpu-avx512", "target": "cpu-hybrid", "config": "default",
        "workload": "chat", "plan_digest": "sha256:" + "0" * 64, "metric": "tpot_mean_ms", "session_count": 6,
    }  # fmt: skip
    nights = [
        {
            **night,
            "run_id": f"old-{index}",
            "created_at_utc": f"2026-10-{index + 1:02d}T00:00:00Z",
            "value": (20.0 if index < 20 else 28.0) + index * 0.01,
        }
        for index in range(28)
    ]
    git(workplace.tree, "checkout", "--quiet", "--orphan", "perf-history")
    git(workplace.tree, "rm", "-r", "--force", "--quiet", ".")
    (workplace.tree / "history.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in nights))
    git(workplace.tree, "add", "history.jsonl")
    git(workplace.tree, "commit", "--quiet", "--message", "nights")
    git(workplace.tree, "push", "--quiet", "origin", "perf-history")
    git(workplace.tree, "checkout", "--quiet", "--force", "main")
    run = workplace.act("schedule", "nightly.yml", {"repository": {"full_name": "team/suite"}})
    assert run.status == 0, run.text[-6000:]
    assert "issue create --title" in workplace.calls.read_text()
    text = Path(f"{workplace.calls}.slide.md").read_text()
    assert "`cpu-hybrid` `default` `chat`" in text
    assert "2026-10-21" in text
    assert len(git(workplace.origin, "show", "perf-history:history.jsonl").splitlines()) > len(nights)
