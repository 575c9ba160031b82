"""The repository around the suite: what is checked out, and folders of other commits;
git is run here and nowhere else.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from k3perf.errors import UsageError
from k3perf.pytest_plugin.run_settings import commit_of
from k3perf.store.base_checkout import base_suite
from k3perf.store.repository import Repository


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    git(root, "init", "-q", "--initial-branch=main")
    (root / "part").mkdir()
    (root / "part" / "file").write_text("first\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def test_what_is_checked_out(work_tree: Path) -> None:
    head = git(work_tree, "rev-parse", "HEAD")
    # a tag must not stand in for the hash
    git(work_tree, "tag", "-a", "-m", "tag", "v1")
    assert Repository(work_tree).checked_out() == head
    (work_tree / "untracked").write_text("x")
    assert Repository(work_tree).checked_out() == head
    (work_tree / "part" / "file").write_text("changed\n")
    assert Repository(work_tree).checked_out() == f"{head}-dirty"


def test_a_reference_is_a_commit_or_a_usage_error(work_tree: Path) -> None:
    head = git(work_tree, "rev-parse", "HEAD")
    git(work_tree, "tag", "-a", "-m", "tag", "v1")
    assert {Repository(work_tree).commit(name) for name in ("main", "HEAD", "v1", head[:10])} == {
        head
    }
    for wrong in ("none", "--all", ""):
        with pytest.raises(UsageError):
            Repository(work_tree).commit(wrong)


def test_a_folder_as_it_was(work_tree: Path) -> None:
    first = git(work_tree, "rev-parse", "HEAD")
    (work_tree / "part" / "file").write_text("second\n")
    git(work_tree, "commit", "-qam", "second")
    with tarfile.open(fileobj=io.BytesIO(Repository(work_tree).archive(first, "part"))) as archive:
        member = archive.extractfile("part/file")
        assert member is not None
        assert member.read() == b"first\n"
    with pytest.raises(UsageError):
        Repository(work_tree).archive(first, "absent")


def test_the_commit_outside_a_repository_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("K3PERF_COMMIT", raising=False)
    assert commit_of(tmp_path) == "unknown"
    for empty in ("", " "):
        monkeypatch.setenv("K3PERF_COMMIT", empty)
        assert commit_of(tmp_path) == "unknown"
    monkeypatch.setenv("K3PERF_COMMIT", "abc")
    assert commit_of(tmp_path) == "abc"
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit_of(tmp_path) == "abc", "no git on this machine"


def test_the_base_suite_is_exported_once_and_whole(
    work_tree: Path, suite_copy: Path, tmp_path: Path
) -> None:
    suite_copy.rename(work_tree / "perf_tests")
    git(work_tree, "add", ".")
    git(work_tree, "commit", "-qm", "suite")
    # the work tree is not what is loaded
    (work_tree / "perf_tests" / "tolerances.yaml").unlink()
    suite = base_suite(work_tree, "HEAD", tmp_path / "cache")
    assert (
        suite.root
        == tmp_path / "cache" / "bases" / git(work_tree, "rev-parse", "HEAD") / "perf_tests"
    )
    assert [path.name for path in (tmp_path / "cache" / "bases").iterdir()] == [
        git(work_tree, "rev-parse", "HEAD")
    ]
    (suite.root / "mark").touch()
    base_suite(work_tree, "main", tmp_path / "cache")
    assert (suite.root / "mark").exists(), "exported again"
    with pytest.raises(UsageError, match=r"--k3-ab-base 'nothing' is neither"):
        base_suite(work_tree, "nothing", tmp_path / "cache")


def test_git_is_run_in_one_place(repository: Path) -> None:
    running = [
        path.name
        for path in (repository / "src").rglob("*.py")
        if '"git",' in path.read_text(encoding="utf-8")
    ]
    assert running == ["repository.py"]
