"""What scripts/environment.sh does to an environment that is active and out of date; nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the real script, locks of its own and an environment that was filled from other ones."""
    for name in ("scripts", "requirements"):
        (tmp_path / name).mkdir()
    shutil.copy(REPOSITORY / "scripts" / "environment.sh", tmp_path / "scripts")
    (tmp_path / "requirements" / "harness.txt").write_text("# another lock\n")
    (tmp_path / "pyproject.toml").write_text("")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / ".venv")], check=True, timeout=PATIENCE_S)
    (tmp_path / ".venv" / ".k3perf-lock").write_text("an older lock\n")
    (tmp_path / ".venv" / "old").touch()
    return tmp_path


def bash(tree: Path, text: str) -> subprocess.CompletedProcess[str]:
    """``text`` with the script sourced, as seen by somebody who activated the tree's environment. Its ``install_harness`` installs nothing."""
    active = {
        **os.environ,
        "PATH": f"{tree / '.venv' / 'bin'}:/usr/bin:/bin",
        "VIRTUAL_ENV": str(tree / ".venv"),
        "K3PERF_PYTHON": "",
    }
    script = f"set -euo pipefail\n. {tree / 'scripts' / 'environment.sh'}\ninstall_harness() {{ :; }}\n{text}"
    return subprocess.run(["bash", "-c", script], env=active, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.mark.parametrize("given", ["", "K3PERF_PYTHON=python3"])
def test_an_active_environment_whose_lock_changed_is_made_anew(tree: Path, given: str) -> None:
    done = bash(tree, f"{given}\nrequire_venv() {{ :; }}\nharness_environment\n. {tree}/scripts/environment.sh\nharness_environment")
    assert done.returncode == 0, done.stderr
    assert not (tree / ".venv" / "old").exists()
    assert done.stderr.count("setting up") == 1  # then it is in order
    works = subprocess.run([tree / ".venv" / "bin" / "python", "-c", "print(1)"], capture_output=True, text=True, check=False)
    assert works.stdout == "1\n"


def test_the_python_found_is_none_of_the_active_environment(tree: Path) -> None:
    found = Path(bash(tree, "find_python").stdout.strip())
    assert found.is_file()
    assert tree not in found.parents
