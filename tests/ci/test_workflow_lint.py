"""Workflows, images and scripts pass their linters, and the rules of this project that
no linter knows.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
BIN = Path(sysconfig.get_path("scripts"))
PINNED = re.compile(r"uses: (?P<action>[\w./-]+)@(?P<commit>[0-9a-f]{40}) # v\d+\.\d+\.\d+$")


def lint(*command: str) -> None:
    tool = BIN / command[0]
    assert tool.exists(), f"{command[0]} is missing; pip install -e '.[dev]' brings it"
    done = subprocess.run(
        [str(tool), *command[1:]],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def names(pattern: str) -> list[str]:
    found = sorted(
        str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob(pattern) if path.is_file()
    )
    assert found, f"{pattern} matches nothing"
    return found


def load(path: Path) -> dict[Any, Any]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found = load(path)["jobs"]
    assert isinstance(found, dict)
    return found


def test_actionlint_with_shellcheck() -> None:
    lint(
        "actionlint", "-shellcheck", str(BIN / "shellcheck"), *names(".github/workflows/*.yml")
    )  # named: a tarball has no .git to find them by


def test_zizmor() -> None:
    lint("zizmor", "--offline", "--no-progress", "--quiet", ".github")


def test_hadolint() -> None:
    lint("hadolint", *names("docker/Dockerfile*"))


def test_shellcheck() -> None:
    lint("shellcheck", *names(".github/scripts/*"), *names("docker/runner/*.sh"))
    scripts = [
        name
        for name in names("scripts/*")
        if "bash" in (REPOSITORY / name).read_text().partition("\n")[0]
    ]
    assert "scripts/environment.sh" in scripts
    lint("shellcheck", "--external-sources", "--source-path=SCRIPTDIR", *scripts, ".ci/run")


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("vendor.github-workflows", ".github/workflows/*.yml"),
        ("vendor.dependabot", ".github/dependabot.yml"),
        ("vendor.compose-spec", "docker/compose.yaml"),
    ],
)
def test_schemas(schema: str, pattern: str) -> None:
    lint("check-jsonschema", "--builtin-schema", schema, *names(pattern))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_permissions_timeouts_and_concurrency(path: Path) -> None:
    document = load(path)
    assert document["permissions"] == {}
    assert document["defaults"]["run"]["shell"] == "bash", "GitHub's default shell has no pipefail"
    assert "concurrency" in document or "workflow_call" in document[True], (
        "YAML reads the key 'on' as true"
    )
    for name, job in jobs(path).items():
        assert "permissions" in job, f"{path.name} {name}: say what it may do"
        assert "uses" in job or "timeout-minutes" in job, f"{path.name} {name}: has no timeout"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_run_scripts_are_short_and_take_values_from_the_environment(path: Path) -> None:
    for name, job in jobs(path).items():
        for step in job.get("steps", []):
            script = step.get("run", "")
            assert len(script.strip().splitlines()) <= 10, (
                f"{path.name} {name}: move it into a command"
            )
            assert "${{" not in script, (
                f"{path.name} {name}: an expression inside a script is an injection"
            )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_their_version(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if "uses: " in line and "uses: ./" not in line:
            assert PINNED.search(line), f"{path.name}: {line.strip()}"


def test_one_commit_for_each_action_and_each_is_in_the_table_of_the_docs() -> None:
    pins = {
        match["action"]: match["commit"]
        for path in WORKFLOWS
        for match in map(PINNED.search, path.read_text().splitlines())
        if match
    }
    seen = {
        (match["action"], match["commit"])
        for path in WORKFLOWS
        for match in map(PINNED.search, path.read_text().splitlines())
        if match
    }
    assert len(seen) == len(pins)
    table = (REPOSITORY / "docs" / "ci.md").read_text(encoding="utf-8")
    for action, commit in pins.items():
        assert f"| `{action}` |" in table, action
        assert commit in table, action


def test_only_the_report_and_the_nightly_jobs_may_write() -> None:
    allowed = {
        ("perf-report.yml", "report"),
        ("nightly.yml", "main"),
        ("nightly.yml", "refresh"),
        ("nightly.yml", "page"),
        ("release.yml", "publish"),  # only its identity, which the package index trusts
    }
    writers = {
        (path.name, name)
        for path in WORKFLOWS
        for name, job in jobs(path).items()
        if "write" in str(job.get("permissions", ""))
    }
    assert writers <= allowed


def test_a_token_is_seen_by_the_steps_that_need_it_alone() -> None:
    for path in WORKFLOWS:
        for name, job in jobs(path).items():
            assert "GH_TOKEN" not in job.get("env", {}), f"{path.name} {name}"
            if "write" in str(job.get("permissions", "")):
                users = [step for step in job["steps"] if "GH_TOKEN" in step.get("env", {})]
                # an identity for a publication is no token that a step could read
                identity = set(job["permissions"]) == {"id-token"}
                assert name == "page" or identity or users, f"{path.name} {name}"


def test_what_plans_and_judges_is_the_bases_checkout() -> None:
    """Only the suite that is read (`head/`) and what is measured is the pull request's."""
    for name, job in jobs(REPOSITORY / ".github" / "workflows" / "perf-pr.yml").items():
        for step in job.get("steps", []):
            if str(step.get("uses", "")).startswith("actions/checkout@"):
                told = step["with"]
                own = told.get("path") == "head"
                assert own or str(told["ref"]).endswith("outputs.code }}"), f"{name}: {told}"


def test_every_file_has_an_owner_but_the_stated_exceptions() -> None:
    lines = (REPOSITORY / ".github" / "CODEOWNERS").read_text(encoding="utf-8").splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]
    assert rules[0][0] == "*"
    assert len(rules[0]) > 1
    free = [rule[0] for rule in rules[1:] if len(rule) == 1]
    assert free == [
        "/docs/", "/perf_tests/configs/*.yaml", "/changelog.d/", "/README.md", "/CHANGELOG.md",
    ]  # fmt: skip


def test_measuring_jobs_see_no_secret() -> None:
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        assert "secrets: inherit" not in text
        assert "secrets." not in text, f"{path.name}: the default token is enough"


def test_both_images_use_the_same_runner_and_the_vllm_version_stands_in_one_place() -> None:
    gpu, cpu = (
        (REPOSITORY / "docker" / name).read_text(encoding="utf-8")
        for name in ("Dockerfile", "Dockerfile.cpu")
    )
    pins = re.findall(r"^ARG RUNNER_(?:VERSION|SHA256|URL)=.*$", gpu, re.MULTILINE)
    assert len(pins) == 3
    assert pins == re.findall(r"^ARG RUNNER_(?:VERSION|SHA256|URL)=.*$", cpu, re.MULTILINE)
    image = re.search(r"vllm/vllm-openai:(\S+)", gpu)
    assert image is not None
    for path in [*WORKFLOWS, *(REPOSITORY / "docker").rglob("*")]:
        if path.is_file() and path.name != "Dockerfile" and "__pycache__" not in path.parts:
            assert image[1] not in path.read_text(encoding="utf-8"), path


def test_owned_paths_exist() -> None:
    for line in (REPOSITORY / ".github" / "CODEOWNERS").read_text(encoding="utf-8").splitlines():
        if line.startswith("/"):
            pattern = line.split()[0].strip("/")
            assert list(REPOSITORY.glob(pattern)), pattern


def test_workflows_use_only_options_that_the_plugin_has() -> None:
    from k3perf.pytest_plugin.options import FLAGS, REPEATED, VALUES

    places = [
        *WORKFLOWS,
        *(REPOSITORY / ".github" / "scripts").iterdir(),
        REPOSITORY / "src" / "k3perf" / "cli" / "plan_command.py",
        REPOSITORY / "src" / "k3perf" / "ci" / "plan_output.py",
    ]
    used = {
        option
        for path in places
        for option in re.findall(r"--k3-[a-z-]+[a-z]", path.read_text(encoding="utf-8"))
    }
    assert {
        "--k3-cells",
        "--k3-results",
        "--k3-target",
        "--k3-gated-metric-count",
        "--k3-record",
        "--k3-judge-from",
    } <= used
    assert used <= {*FLAGS, *VALUES, *REPEATED}
