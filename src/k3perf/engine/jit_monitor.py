"""vLLM's JIT monitor: whether a release can make it verbose, and what is known of it in
a running engine.

The monitor reports kernels that are compiled while requests are served. Unless it is
verbose, it reports each kernel once in a process, whatever shapes are compiled after
that. The CPU worker never starts it, nor does an engine without warm-up.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from k3perf.engine.installed_vllm import run_python

ARGUMENT: Final = "jit_monitor_verbose"
_DEADLINE_S: Final = 30
# the source is read, since importing vLLM takes seconds
_ASK: Final = f"""
import importlib.util, pathlib
spec = importlib.util.find_spec("vllm")
print({ARGUMENT!r} in (pathlib.Path(spec.origin).parent / "config" / "observability.py").read_text())
"""


@cache
def can_be_verbose(python: Path) -> bool:
    """Whether the vLLM of this Python has ``jit_monitor_verbose``; False too where it
    cannot be asked. Takes about a tenth of a second.
    """
    try:
        done = run_python(python, _ASK, timeout_s=_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == "True"


@dataclass(frozen=True, slots=True)
class JitMonitor:
    """What an engine's resolved configuration says of its monitor. ``offered``: its
    workers are meant to start one.
    """

    offered: bool
    verbose: bool


def monitor_of(vllm_config: Mapping[str, Any]) -> JitMonitor:
    """From the ``vllm_config`` of the server's own information."""

    def value(section: str, key: str) -> Any:
        part = vllm_config.get(section)
        return part.get(key) if isinstance(part, Mapping) else None

    device = str(value("device_config", "device") or value("device_config", "device_type") or "")
    warm_up = value("kernel_config", "enable_jit_warmup")
    eager = value("model_config", "enforce_eager")
    without = device.startswith("cpu") or warm_up is False or (warm_up is None and eager is True)
    return JitMonitor(not without, value("observability_config", ARGUMENT) is True)
