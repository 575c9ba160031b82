"""An engine's Python in a path with spaces is started through a link, because vLLM puts
paths of its environment into LD_PRELOAD.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from k3perf.engine import spaceless
from k3perf.engine.spaceless import without_spaces
from k3perf.errors import PreflightError


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = tmp_path / "my k3 perf" / ".venv-engine"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(made)],
        check=True,
        timeout=60,
    )
    return made


def test_a_path_without_spaces_is_kept(tmp_path: Path) -> None:
    assert without_spaces(tmp_path / "bin" / "python") == tmp_path / "bin" / "python"


def test_the_python_of_the_link_is_the_environments_and_has_no_space_in_its_prefix(
    environment: Path,
) -> None:
    found = without_spaces(environment / "bin" / "python")
    assert without_spaces(environment / "bin" / "python") == found
    code = (
        "import sys, sysconfig; print(sys.prefix != sys.base_prefix, sysconfig.get_path('purelib'))"
    )
    said = subprocess.run(
        [found, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert said[0] == "True"
    assert len(said) == 2
    assert Path(said[1]).resolve().is_relative_to(environment)


def test_an_environment_made_again_is_found_through_the_same_link(environment: Path) -> None:
    first = without_spaces(environment / "bin" / "python")
    environment.rename(environment.with_name("gone"))
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").write_text("new")
    assert without_spaces(environment / "bin" / "python") == first
    assert first.read_text() == "new"


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_directory_that_others_can_write_is_refused(
    environment: Path, tmp_path: Path, mode: int
) -> None:
    directory = tmp_path / f"k3perf-engines-{os.getuid()}"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(PreflightError, match="only you can write"):
        without_spaces(environment / "bin" / "python")


def test_a_link_to_elsewhere_is_refused(environment: Path, tmp_path: Path) -> None:
    link = without_spaces(environment / "bin" / "python").parent.parent
    link.unlink()
    link.symlink_to(tmp_path)
    with pytest.raises(PreflightError, match="should be a link to"):
        without_spaces(environment / "bin" / "python")


def test_a_temporary_directory_with_spaces_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "with space"))
    assert spaceless._own_directory() == Path("/tmp") / f"k3perf-engines-{os.getuid()}"
