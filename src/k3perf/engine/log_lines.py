"""What vLLM's log lines mean: the start stage they open, or only that a process waits.
Pure text in, names out.

The patterns hold for vLLM 0.27 to 0.32, CPU and GPU workers. Heartbeats, and what makes
a line a cause, are in ``log_patterns.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from k3perf.engine import log_patterns
from k3perf.engine.cause_choice import find_root_cause

STAGES: Final = ("import", "load", "profile", "compile", "capture", "ready")

# A line opens its stage; stages only go forward. The last ones of the log need none:
# `ready` ends with a healthy answer.
_STAGE_OPENED_BY: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    (
        "ready",
        re.compile(
            r"init engine \(profile, create kv cache, warmup model\) took|Starting vLLM server"
            r" on|Application startup complete"
        ),
    ),
    (
        "capture",
        re.compile(
            r"Capturing CUDA graphs|Graph capturing finished|CPU KV cache size|GPU KV cache size"
        ),
    ),
    (
        "compile",
        re.compile(
            r"Starting torch\.compile|Warming up model for the compilation|Dynamo bytecode"
            r" transform|Compiling a graph for"
        ),
    ),
    (
        "profile",
        re.compile(
            r"Model loading took|Loading weights took|Profiling CUDA graph memory|Memory profiling"
            r" takes|for KV cache on node"
        ),
    ),
    (
        "load",
        re.compile(r"Starting to load model|Loading safetensors|Initializing a V1 LLM engine"),
    ),
)

_CACHE_USED: Final = re.compile(r"Directly load the compiled graph|Directly load AOT compilation")
_CACHE_MISSED: Final = re.compile(r"Compiling a graph for|saved AOT compiled function")
_INFORMATIVE: Final = re.compile(
    r"(?<![A-Z])(?:INFO|DEBUG)(?![A-Z])"
)  # a colour's last letter may stand before it
_ADDRESS_IN_USE: Final = re.compile(r"address already in use|Errno 98", re.IGNORECASE)


def stage_opened_by(line: str) -> str | None:
    """The start stage that this line opens, or None."""
    return next((stage for stage, pattern in _STAGE_OPENED_BY if pattern.search(line)), None)


def is_heartbeat(line: str) -> bool:
    """A process that only waits says so, or answers a poll: no progress."""
    return log_patterns.matches("heartbeats", line)


def is_informative(line: str) -> bool:
    """A line of a level at which vLLM names its stages, or one that opens a stage."""
    return _INFORMATIVE.search(line) is not None or stage_opened_by(line) is not None


def shows_port_clash(line: str) -> bool:
    """The server could not bind its port."""
    return _ADDRESS_IN_USE.search(line) is not None


def compile_cache_warm(lines: Sequence[str]) -> bool | None:
    """True: compiled graphs came from the cache. False: they were compiled. None: this
    engine compiles nothing.
    """
    if any(_CACHE_MISSED.search(line) for line in lines):
        return False
    return True if any(_CACHE_USED.search(line) for line in lines) else None


def root_cause(lines: Sequence[str]) -> str:
    """Why the engine died, in the words of the process that failed first: at most 600
    characters, empty where no line says it.
    """
    found = find_root_cause(lines)
    return found.text if found is not None else ""
