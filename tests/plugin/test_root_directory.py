"""The value of an option must not move pytest's root directory: the suite was not found
then, and nothing was collected.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.plugin.sites import WITHOUT, Site


@pytest.mark.parametrize("place", ["elsewhere", "in_another_repository"])
def test_an_engine_python_elsewhere_collects_the_suite(
    site: Site, place: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (site.root / "pytest.ini").unlink()
    folder = tmp_path_factory.mktemp(place)
    if place == "in_another_repository":
        (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text(site.python.read_text())
    python.chmod(0o755)
    assert "test_memory[tiny-fp8_kv-quick]" in collected(site, "--k3-engine-python", str(python))


def test_the_shipped_modules_need_no_copy(site: Site) -> None:
    for module in (site.root / "perf_tests").glob("test_*.py"):
        module.unlink()
    lines = collected(site, "-k", "fp8_kv").splitlines()
    assert "perf_tests/test_memory.py::test_memory[tiny-fp8_kv-quick]" in lines
    # a module of the same name takes the shipped one's place
    (site.root / "perf_tests" / "test_memory.py").write_text("def test_mine(cell, k3): ...\n")
    lines = collected(site, "-k", "fp8_kv").splitlines()
    assert "perf_tests/test_memory.py::test_mine[tiny-fp8_kv-quick]" in lines
    assert not any("::test_memory[" in line for line in lines)
    assert any("::test_latency[" in line for line in lines)


def collected(site: Site, *arguments: str) -> str:
    words = ["-m", "pytest", "perf_tests", *WITHOUT, "--collect-only", "-q", *arguments]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=site.root,
        env=site.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
