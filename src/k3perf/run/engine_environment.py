"""Which Python serves, and what its engines find on their path beside their own
environment.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from k3perf.errors import UsageError
from k3perf.store.atomic import replace_file

_NOTED: Final = ".k3perf/engine-python"

HOW_TO_NAME_ENGINE: Final = (
    "Name a Python that has vLLM with --k3-engine-python (of k3perf: --engine-python) or"
    " K3PERF_ENGINE_PYTHON. In a checkout of k3perf, scripts/perf sets one up."
)


def find_engine_python(given: str | None, root: Path) -> Path:
    """The engine environment's Python: ``given``, then K3PERF_ENGINE_PYTHON, then
    .venv-engine under ``root``, then what ``k3perf init`` noted, then that of the
    ``vllm`` command. Raises UsageError.
    """
    named = given or os.environ.get("K3PERF_ENGINE_PYTHON")
    own = root / ".venv-engine" / "bin" / "python"
    path = Path(named) if named else own if own.exists() else _other_python(root) or own
    problem = (
        "is a directory"
        if path.is_dir()
        else "does not exist"
        if not path.exists()
        else "is not executable"
    )
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UsageError(f"the engine Python {path} {problem}. {HOW_TO_NAME_ENGINE}")
    # not resolved: a virtual environment's Python is a link, and its place decides the
    # environment
    return path.absolute()


def note_engine_python(python: Path, root: Path) -> None:
    """Keep ``python`` as this machine's engine of the repository ``root``."""
    replace_file(root / _NOTED, f"{python}\n")


def _other_python(root: Path) -> Path | None:
    try:
        noted = (root / _NOTED).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        noted = ""
    if noted:
        return Path(noted)
    command = shutil.which("vllm")
    if command is None:
        return None
    beside = Path(command).resolve().parent / "python"
    return beside if beside.exists() else None


def cache_directory(state_directory: Path) -> Path:
    """Where servable model directories and compile caches are kept between runs:
    K3PERF_CACHE, else ``cache`` under ``state_directory``.

    An empty K3PERF_CACHE counts as none: as a path it would be the working directory.
    """
    return Path(os.environ.get("K3PERF_CACHE") or state_directory / "cache").absolute()


def engine_python_path(cache_directory: Path) -> str:
    """A PYTHONPATH for engines that holds the probe and nothing else of the harness's
    environment, before what is inherited.
    """
    spec = find_spec("k3perf_probe")
    if spec is None or spec.origin is None:
        raise UsageError(
            "k3perf_probe is not installed next to k3perf. Install the project again: pip install"
            " -e ."
        )
    place = cache_directory / "probe"
    shutil.copytree(
        Path(spec.origin).parent,
        place / "k3perf_probe",
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(place), *([inherited] if inherited else [])])
