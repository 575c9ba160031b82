"""The release's own checks: what a tag must match, and the wheel in an empty
environment.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import k3perf

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What scripts/check-release reads, ready for a release."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPOSITORY / "scripts" / "check-release", tmp_path / "scripts")
    (tmp_path / "src" / "k3perf").mkdir(parents=True)
    shutil.copy(REPOSITORY / "src/k3perf/__init__.py", tmp_path / "src/k3perf")
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "README.md").write_text("")
    (tmp_path / "CHANGELOG.md").write_text(f"## {k3perf.__version__} (2026-12-01)\n")
    return tmp_path


def check(copy: Path, tag: str = f"v{k3perf.__version__}") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [copy / "scripts" / "check-release", tag], capture_output=True, text=True, check=False
    )


def test_a_release_that_is_ready(copy: Path) -> None:
    done = check(copy)
    assert done.returncode == 0, done.stderr


def test_another_tag_is_refused(copy: Path) -> None:
    done = check(copy, "v99.0.0")
    assert done.returncode == 4
    assert f"tag v{k3perf.__version__}" in done.stderr


def test_a_left_fragment_is_refused(copy: Path) -> None:
    (copy / "changelog.d" / "+x.added.md").write_text("New.")
    done = check(copy)
    assert done.returncode == 4
    assert "towncrier build" in done.stderr


def test_a_version_without_a_section_is_refused(copy: Path) -> None:
    (copy / "CHANGELOG.md").write_text("## 99.0.0 (2026-12-01)\n")
    assert check(copy).returncode == 4


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    done = subprocess.run(
        [REPOSITORY / "scripts" / "try-wheel", tmp_path / "dist"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "works in an empty environment" in done.stdout
