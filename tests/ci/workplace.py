"""Runs the workflows' jobs on this machine by act, offline, with this host as every
runner.

GitHub's own actions are stubs that copy files, ``gh`` is a stub that records its calls.
GitHub's own scheduling, permissions and runner groups are not shown here. What stands
for the measurement is the caller's choice: ``Workplace`` puts a stand-in in the place
of scripts/perf and of the setting-up of the environment.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from .test_workflow_lint import PINNED, WORKFLOWS

REPOSITORY = Path(__file__).resolve().parents[2]
GIT = shutil.which("git") or "git"
ACT = Path(sysconfig.get_path("scripts")) / "act"

ACTIONS = {
    "actions/checkout": (
        'git clone --quiet "$STUB_ORIGIN" "${FILES:-.}" && cd "${FILES:-.}" && git checkout --quiet'
        ' "${REF:-main}" && git remote set-url origin "$STUB_ORIGIN" && ln -s "$STUB_VENV" .venv &&'
        ' printf ".venv\\nhead\\n" >>.git/info/exclude'
    ),
    "actions/setup-python": "true",
    "actions/upload-artifact": (
        'mkdir -p "$STUB_STORE/$NAME" && cp -rL "$FILES" "$STUB_STORE/$NAME/"; if [ -d "$FILES" ];'
        ' then mv "$STUB_STORE/$NAME/$(basename "$FILES")"/* "$STUB_STORE/$NAME/"; fi'
    ),
    "actions/download-artifact": (
        'mkdir -p "$FILES" && if [ -n "$NAME" ]; then cp -r "$STUB_STORE/$NAME/." "$FILES/"; '
        'else cp -r "$STUB_STORE/." "$FILES/"; fi'
    ),
    "actions/upload-pages-artifact": "true",
    "actions/deploy-pages": "true",
}
ENVIRONMENT_SH = 'k3perf_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)\nset_up() { :; }\n'
GH = """#!/bin/sh
printf '%s\\n' "$*" >>"$STUB_CALLS"
case "$*" in
    *"/pulls -f state=open"*) echo 7 ;;
    "issue list"*) cat "$STUB_CALLS.issues" 2>/dev/null || true ;;
    *"/jobs?filter=latest"*) cat "$STUB_CALLS.verdicts" 2>/dev/null || echo 1 ;;
    *"/events --jq"*) cat "$STUB_CALLS.events" 2>/dev/null ;;
    *"--body-file"*) while [ $# -gt 1 ]; do [ "$1" = --body-file ] && cp "$2" "$STUB_CALLS.$(basename "$2")"; shift; done ;;
    *"body=@comment.md"*) cp comment.md "$STUB_CALLS.comment.md" ;;
    *"--input check-run.json"*) cp check-run.json "$STUB_CALLS.check-run.json" ;;
esac
"""


def git(folder: Path, *arguments: str) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@t",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@t",
    }
    done = subprocess.run(
        [GIT, "-C", str(folder), *arguments],
        env={**os.environ, **identity},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Workplace:
    """A bare repository as origin, a work tree of it, stubs, and act."""

    def __init__(self, root: Path, **environment: str) -> None:
        """``environment``: further variables of every job."""
        self.root = root
        self.environment = {
            name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ
        } | environment
        self.origin = root / "origin.git"
        self.tree = root / "tree"
        self.store = root / "store"
        self.calls = root / "gh-calls"
        self._stubs()
        subprocess.run(
            [GIT, "init", "--quiet", "--bare", "--initial-branch=main", str(self.origin)],
            check=True,
            timeout=60,
        )
        subprocess.run(
            [GIT, "clone", "--quiet", str(self.origin), str(self.tree)],
            check=True,
            timeout=60,
            capture_output=True,
        )
        git(self.tree, "checkout", "--quiet", "-B", "main")
        for name in (".github", "perf_tests"):
            shutil.copytree(
                REPOSITORY / name,
                self.tree / name,
                ignore=shutil.ignore_patterns("__pycache__", "recordings", "traces"),
            )
        (self.tree / ".gitignore").write_text("/results/\n/.k3perf/\n")
        self.fill()
        self.base = self.commit("base")
        git(self.tree, "push", "--quiet", "origin", "main")

    def fill(self) -> None:
        """What measures: the stand-in, and an environment that is there already."""
        (self.tree / "scripts").mkdir()
        shutil.copy(REPOSITORY / "scripts" / "k3perf", self.tree / "scripts" / "k3perf")
        (self.tree / "scripts" / "environment.sh").write_text(ENVIRONMENT_SH)
        shutil.copy(
            REPOSITORY / "tests" / "ci" / "stand_in_perf.py", self.tree / "scripts" / "perf"
        )

    def _stubs(self) -> None:
        self.store.mkdir()
        (self.root / "home" / ".config" / "act").mkdir(parents=True)
        (self.root / "home" / ".config" / "act" / "actrc").write_text(
            "-P ubuntu-24.04=-self-hosted\n-P self-hosted=-self-hosted\n"
        )
        venv = self.root / "venv" / "bin"
        venv.mkdir(parents=True)
        self.program(
            venv / "k3perf",
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m k3perf.cli.main "$@"\n',
        )
        bin_folder = self.root / "bin"
        bin_folder.mkdir()
        self.program(bin_folder / "gh", GH)
        for action, script in ACTIONS.items():
            folder = self.root / "actions" / action
            folder.mkdir(parents=True)
            names = {"name": "NAME", "path": "FILES", "ref": "REF"}
            inputs = {name: {"default": ""} for name in names}
            step = {
                "shell": "bash",
                "run": script,
                "env": {variable: f"${{{{ inputs.{name} }}}}" for name, variable in names.items()},
            }
            document = {
                "name": action,
                "description": "stub",
                "inputs": inputs,
                "runs": {"using": "composite", "steps": [step]},
            }
            (folder / "action.yml").write_text(json.dumps(document))

    @staticmethod
    def program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def commit(self, message: str) -> str:
        git(self.tree, "add", "--all")
        git(self.tree, "commit", "--quiet", "--message", message)
        return git(self.tree, "rev-parse", "HEAD")

    def change(self, *faults: str, config: str = "block_size_32") -> str:
        """A pull request's commit: one config touched, and faults for the stand-in to
        show.
        """
        git(self.tree, "checkout", "--quiet", "-B", "topic", "main")
        path = self.tree / "perf_tests" / "configs" / f"{config}.yaml"
        path.write_text(path.read_text() + "# touched\n")
        if faults:
            (self.tree / "injected").write_text("\n".join(faults) + "\n")
        head = self.commit("change")
        git(self.tree, "push", "--quiet", "--force", "origin", "topic")
        return head

    def pull_request(
        self,
        head: str,
        *labels: str,
        origin: str = "team/suite",
        action: str = "opened",
        draft: bool = False,
    ) -> dict[str, Any]:
        request = {
            "draft": draft,
            "number": 7,
            "base": {"sha": self.base, "ref": "main"},
            "head": {"sha": head, "ref": "topic", "repo": {"full_name": origin}},
            "labels": [{"name": name} for name in labels],
        }
        event: dict[str, Any] = {
            "action": action,
            "number": 7,
            "pull_request": request,
            "repository": {"full_name": "team/suite"},
        }
        if action == "labeled":
            event["label"] = {"name": labels[-1]}
        return event

    def report(self, head: str) -> Run:
        """The workflow that follows a finished perf-pr run of the commit ``head``."""
        finished = {"id": 4711, "event": "pull_request", "head_sha": head, "head_branch": "topic"}
        event = {
            "workflow_run": {**finished, "head_repository": {"owner": {"login": "team"}}},
            "repository": {"full_name": "team/suite"},
        }
        return self.act("workflow_run", "perf-report.yml", event)

    @property
    def verdict(self) -> dict[str, Any]:
        """The joined verdict that the run uploaded for its report."""
        return dict(json.loads((self.store / "k3perf-report" / "verdict.json").read_text()))

    @property
    def comment(self) -> str:
        """The pull request's comment as it was posted."""
        return Path(f"{self.calls}.comment.md").read_text()

    @property
    def check_run(self) -> dict[str, Any]:
        """The check run as it was posted."""
        return dict(json.loads(Path(f"{self.calls}.check-run.json").read_text()))

    def act(
        self,
        event_name: str,
        workflow: str,
        event: dict[str, Any],
        *,
        job: str = "",
        timeout_s: float = 600,
        **variables: str,
    ) -> Run:
        """One workflow, or one job of it. ``variables`` are the repository's."""
        path = self.root / "event.json"
        path.write_text(json.dumps(event))
        pins = {
            match["action"]: match["commit"]
            for file in WORKFLOWS
            for match in map(PINNED.search, file.read_text().splitlines())
            if match
        }
        local = [
            f"--local-repository={action}@{commit}={self.root / 'actions' / action}"
            for action, commit in pins.items()
        ]
        environment = {
            **self.environment,
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
        command += ["-j", job] if job else []
        command += [
            part for name, value in environment.items() for part in ("--env", f"{name}={value}")
        ]
        command += [
            part for name, value in variables.items() for part in ("--var", f"{name}={value}")
        ]
        done = subprocess.run(
            command,
            cwd=self.tree,
            env={**os.environ, "HOME": str(self.root / "home"), "XDG_CONFIG_HOME": str(self.root / "home" / ".config"),
                 "XDG_CACHE_HOME": str(self.root / "home" / ".cache"), "PATH": environment["PATH"]},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )  # fmt: skip
        return Run(done.returncode, done.stdout + done.stderr)


def merge_group(base: str, head: str) -> dict[str, Any]:
    """The event of a group in the merge queue."""
    group = {"base_sha": base, "head_sha": head, "head_ref": "refs/heads/gh-readonly-queue/main"}
    return {
        "action": "checks_requested",
        "merge_group": group,
        "repository": {"full_name": "team/suite"},
    }


class Run:
    """What act said."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text

    def jobs(self) -> set[str]:
        """Names of the jobs that ran a step, reusable workflows' callers included."""
        return {
            match[1].strip()
            for match in re.finditer(
                r"^\[(?:perf-pr|perf-report|nightly|perf-full|measure|gate-suite)/([^\]]+)\] ",
                self.text,
                re.MULTILINE,
            )
        }
