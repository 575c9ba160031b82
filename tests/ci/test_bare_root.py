"""Both README commands on a bare Debian: minbase and python3 by debootstrap, as root
and as a user without sudo, in a path with spaces.

    scripts/test -m "slow and not engine" tests/ci/test_bare_root.py                              # the harness's own tests
    scripts/test -m "slow and engine" tests/ci/test_bare_root.py                                  # scripts/perf; needs a quiet machine
    scripts/test -m slow "tests/ci/test_bare_root.py::test_scripts_perf[bookworm-user]"           # one of them

K3PERF_BARE_ROOTS names a folder where the roots are kept and used again; there
`seen.json` gets times and sizes. Without it the roots are removed. Needs root,
debootstrap and a Debian mirror (K3PERF_DEBIAN_MIRROR, else debootstrap's own): 6 GB of
disk for each root. Debian 12 has Python 3.11.2, the oldest that Debian ships and these
tests run on; Debian 13 has 3.13.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .bare_root import REPOSITORY, BareRoot, Ran, processes_in

MISSING = [tool for tool in ("debootstrap", "unshare") if shutil.which(tool) is None] + (
    [] if os.getuid() == 0 else ["root"]
)
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
USERS = ("root", "user")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(5_400),
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"a bare root needs {' and '.join(MISSING)}; apt-get install debootstrap, as root",
    ),
    pytest.mark.parametrize(
        ("suite", "user"), [(suite, user) for suite in PYTHONS for user in USERS]
    ),
]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    given = os.environ.get("K3PERF_BARE_ROOTS")
    if given:
        Path(given).mkdir(parents=True, exist_ok=True)
        yield Path(given).absolute()
        return
    folder = tmp_path_factory.mktemp("roots")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def bare(roots: Path, suite: str, user: str) -> Iterator[BareRoot]:
    """The root; after the test nothing runs in it and nothing is mounted in it."""
    root = BareRoot(roots, suite, user)
    yield root
    assert not processes_in(root.path)
    assert str(root.path) not in Path("/proc/mounts").read_text()


def with_prerequisites(bare: BareRoot, *command: str) -> Ran:
    """Run it. A user who is not root is shown the command for root first; it is given
    to root as it was printed.
    """
    before = {path.name for path in bare.tree.glob(".venv*")}
    ran = bare.run(*command)
    shown = re.search(
        r"Only root can install them: (apt-get update && apt-get install .*)", ran.text
    )
    if bare.user == "root" or shown is None:
        return ran
    assert ran.status == 10, ran.text
    assert "nothing was downloaded" in ran.text
    assert {path.name for path in bare.tree.glob(".venv*")} == before
    as_root = bare.run("bash", "-c", shown[1], user="root", DEBIAN_FRONTEND="noninteractive")
    assert as_root.status == 0, as_root.text[-3000:]
    return bare.run(*command)


def note(bare: BareRoot, roots: Path, command: str, ran: Ran) -> None:
    """Time and disk go to seen.json, and to the screen with -rP."""
    path = roots / "seen.json"
    seen = json.loads(path.read_text()) if path.is_file() else {}
    environments = (".venv", ".venv-engine")
    sizes = {name: bare.used_bytes(name) for name in environments if (bare.tree / name).is_dir()}
    seen[f"{bare.path.name} {command}"] = {
        "wall_s": round(ran.wall_s),
        "root_bytes": bare.used_bytes(),
        **sizes,
    }
    path.write_text(json.dumps(seen, indent=1) + "\n")
    sys.stdout.write(f"{bare.path.name} {command}: {seen[f'{bare.path.name} {command}']}\n")


def test_scripts_test(bare: BareRoot, roots: Path, suite: str) -> None:
    ran = with_prerequisites(bare, "scripts/test", "-q", "-rs")
    assert ran.status == 0, ran.text[-8000:]
    assert re.search(r"\d{3,} passed", ran.text), ran.text[-2000:]
    assert "debconf" not in ran.text
    note(bare, roots, "scripts/test", ran)
    version = bare.run(".venv/bin/python", "--version")
    assert version.text.startswith(f"Python {PYTHONS[suite]}.")


def no_engine_wheel(python: str) -> str:
    """The first pin of the engine that pip would find no wheel for; empty where pip
    finds torch's, or is not what installs it.
    """
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    if not re.search(r"\.(find-links|extra-index-url|no-index)=", listed.stdout):
        return ""  # uv finds torch's CPU builds of every Python
    (pin,) = re.findall(
        r"^torch==.*$", (REPOSITORY / "requirements" / "engine-cpu.txt").read_text(), re.MULTILINE
    )
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--target",
        "/nowhere",
    ]
    done = subprocess.run(
        [*command, "--python-version", python, pin],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return "" if done.returncode == 0 else pin


@pytest.mark.engine
def test_scripts_perf(bare: BareRoot, roots: Path, suite: str) -> None:
    absent = no_engine_wheel(PYTHONS[suite])
    if absent:
        pytest.skip(
            f"no wheel of {absent} for Python {PYTHONS[suite]} where pip looks on this machine"
        )
    first = with_prerequisites(bare, "scripts/perf")
    assert first.status == 0, first.text[-8000:]
    assert "debconf" not in first.text
    note(bare, roots, "scripts/perf, set-up included", first)
    again = bare.run("scripts/perf")
    assert again.status == 0, again.text[-8000:]
    assert "setting up" not in again.text
    note(bare, roots, "scripts/perf again", again)
    doctor = bare.run("scripts/k3perf", "doctor")
    assert "FAIL" not in doctor.text, doctor.text


def test_help_installs_nothing(bare: BareRoot) -> None:
    before = {
        path.name for path in bare.tree.glob(".venv*")
    }  # a root that is used again may have them
    ran = bare.run("scripts/perf", "--help")
    assert ran.status == 0, ran.text
    assert "--k3-engine-python" in ran.text
    assert {path.name for path in bare.tree.glob(".venv*")} == before
