"""requirements/harness.txt holds hashes, and nothing that they do not name is installed.
Installs come from a folder of made wheels; nothing is downloaded.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from k3perf.cli.bundle_command import _requirement_lines

REPOSITORY = Path(__file__).parents[2]
LOCK = REPOSITORY / "requirements" / "harness.txt"
PINNED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
COMPILED = ("numpy", "orjson", "pydantic-core", "PyYAML", "ruff", "yarl")


def entries() -> dict[str, list[str]]:
    """Hashes of each requirement, by its name in lower case with dashes."""
    text = LOCK.read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            pin, *hashes = line.split()
            assert PINNED.fullmatch(pin), pin
            assert all(map(HASH.fullmatch, hashes)), line
            found[pin.partition("==")[0].lower().replace("_", "-")] = hashes
    return found


def test_every_package_has_hashes_and_compiled_ones_have_one_a_platform() -> None:
    found = entries()
    assert len(found) > 50
    assert not [name for name, hashes in found.items() if not hashes]
    for name in COMPILED:
        assert len(set(found[name.lower()])) > 5, name


def test_every_install_of_the_lock_requires_the_hashes() -> None:
    count = 0
    for folder in ("scripts", "docker", ".github"):
        for path in (REPOSITORY / folder).rglob("*"):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            text = path.read_text(encoding="utf-8").replace("\\\n", " ")
            for line in text.splitlines():
                if re.search(r"pip (install|download)\b.*harness\.txt|pip\[@\]\}\" install", line):
                    count += 1
                    assert "--require-hashes" in line, f"{path}: {line}"
    assert count, "the lock is installed nowhere; mend the pattern"


def test_a_bundle_reads_the_locks_pins_without_their_hashes() -> None:
    lines = _requirement_lines(LOCK)
    assert len(lines) == len(entries())
    assert all(map(PINNED.fullmatch, lines))


def wheel(folder: Path, text: str) -> Path:
    """A package of one module."""
    made = folder / "lockedthing-1.0-py3-none-any.whl"
    files = {
        "lockedthing.py": text,
        "lockedthing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: lockedthing\nVersion: 1.0\n",
        "lockedthing-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=")
        record += f"{name},sha256={digest.decode()},{len(content)}\n"
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(
            "lockedthing-1.0.dist-info/RECORD", record + "lockedthing-1.0.dist-info/RECORD,,\n"
        )
    return made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose harness is installed by the real script, with pip's settings
    naming a folder of wheels alone.
    """
    tree = tmp_path_factory.mktemp("tree")
    (tree / "scripts").mkdir()
    (tree / "requirements").mkdir()
    (tree / "wheels").mkdir()
    shutil.copy(REPOSITORY / "scripts" / "environment.sh", tree / "scripts")
    (tree / "src" / "k3perf").mkdir(parents=True)
    shutil.copy(REPOSITORY / "src" / "k3perf" / "system_packages.txt", tree / "src" / "k3perf")
    subprocess.run([sys.executable, "-m", "venv", str(tree / ".venv")], check=True, timeout=120)
    return tree


def install(root: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The script's own function. Its second step, the project, fails in this tree."""
    script = f'. "{root}/scripts/environment.sh"; install_harness'
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(root / "wheels"),
        **more,
    }
    return subprocess.run(
        ["bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def installed(root: Path) -> bool:
    return bool(list((root / ".venv" / "lib").glob("python*/site-packages/lockedthing.py")))


def test_a_file_that_the_lock_does_not_name_is_not_installed(root: Path) -> None:
    digest = hashlib.sha256(wheel(root / "wheels", "GOOD = 1\n").read_bytes()).hexdigest()
    lock = root / "requirements" / "harness.txt"
    lock.write_text("lockedthing==1.0\n")
    assert "required in --require-hashes mode" in install(root).stderr
    other = "0" * 64  # of another platform's file
    hashes = f"--hash=sha256:{other} \\\n    --hash=sha256:{digest}"
    lock.write_text(f"lockedthing==1.0 \\\n    {hashes}\n")
    good = (root / "wheels" / "lockedthing-1.0-py3-none-any.whl").read_bytes()
    wheel(root / "wheels", "EVIL = 1\n")
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in install(root).stderr
    assert not installed(root)
    (root / "wheels" / "lockedthing-1.0-py3-none-any.whl").write_bytes(good)
    done = install(root)
    assert installed(root), done.stderr


def test_an_image_brings_the_files_of_its_lock_and_another_lock_takes_its_own(root: Path) -> None:
    shutil.rmtree(
        next((root / ".venv" / "lib").glob("python*/site-packages/lockedthing-1.0.dist-info")),
        ignore_errors=True,
    )
    for path in (root / ".venv" / "lib").glob("python*/site-packages/lockedthing.py"):
        path.unlink()
    baked = root / "baked"
    baked.mkdir()
    digest = hashlib.sha256(wheel(baked, "GOOD = 2\n").read_bytes()).hexdigest()
    lock = root / "requirements" / "harness.txt"
    empty = {"PIP_FIND_LINKS": str(root), "K3PERF_HARNESS_WHEELS": str(baked)}
    lock.write_text(f"lockedthing==1.0 --hash=sha256:{'0' * 64}\n")
    told = install(root, **empty)
    assert "built from another harness.txt" in told.stderr
    assert not installed(root)
    lock.write_text(f"lockedthing==1.0 --hash=sha256:{digest}\n")
    done = install(root, **empty)
    assert installed(root), done.stderr
    assert "another harness.txt" not in done.stderr
