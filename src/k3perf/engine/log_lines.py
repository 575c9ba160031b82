"""What vLLM's log lines mean: the start stage they open, and which of them is the root cause. Pure
text in, names out; the patterns hold for vLLM 0.27 to 0.32, CPU and GPU workers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

STAGES: Final = ("import", "load", "profile", "compile", "capture", "ready")

# A line opens its stage; stages only go forward. The last ones of the log need none: `ready` ends with a healthy answer.
_STAGE_OPENED_BY: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    (
        "ready",
        re.compile(r"init engine \(profile, create kv cache, warmup model\) took|Starting vLLM server on|Application startup complete"),
    ),
    ("capture", re.compile(r"Capturing CUDA graphs|Graph capturing finished|CPU KV cache size|GPU KV cache size")),
    (
        "compile",
        re.compile(r"Starting torch\.compile|Warming up model for the compilation|Dynamo bytecode transform|Compiling a graph for"),
    ),
    (
        "profile",
        re.compile(r"Model loading took|Loading weights took|Profiling CUDA graph memory|Memory profiling takes|for KV cache on node"),
    ),
    ("load", re.compile(r"Starting to load model|Loading safetensors|Initializing a V1 LLM engine")),
)

_CACHE_USED: Final = re.compile(r"Directly load the compiled graph|Directly load AOT compilation")
_CACHE_MISSED: Final = re.compile(r"Compiling a graph for|saved AOT compiled function")
_ADDRESS_IN_USE: Final = re.compile(r"address already in use|Errno 98", re.IGNORECASE)

# lines that a waiting process repeats: the log grows, nothing gets on
_HEARTBEAT: Final = re.compile(r"Waiting for \d+ (?:local|remote)|No available shared memory broadcast block|still waiting", re.IGNORECASE)

_PREFIX: Final = re.compile(r"^\((?P<process>[A-Za-z]+)[^)]*\)\s*")
_ERROR: Final = re.compile(
    r"\bERROR\b|^Traceback|^[\w.]*(?:Error|Exception|Interrupt)\b(?::|$)"
    r"|^Fatal Python error|Segmentation fault|^Killed$|^Aborted|out of memory|^\S+: error: "
)
_EXCEPTION: Final = re.compile(
    r"^(?:(?:ERROR|CRITICAL|INFO|WARNING)\s+\S+\s+\S+\s+\[[^]]+\]\s*)?(?P<text>[\w.]*(?:Error|Exception|Refused|Exit)\b.*)$"
)
_LEVEL: Final = re.compile(r"^(?:ERROR|CRITICAL)\s+\S+\s+\S+\s+\[[^]]+\]\s?(?P<text>.*)$")
_DEPTH: Final = (("worker", 3), ("ray", 3), ("enginecore", 2), ("apiserver", 1))
# what one process says about another's death: true, and never the cause
_SECOND_HAND: Final = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore encountered an issue|died unexpectedly|See stack trace|"
    r"See root cause above|WorkerProc initialization failed|cancelled|Failed core proc"
)


def stage_opened_by(line: str) -> str | None:
    """The start stage that this line opens, or None."""
    return next((stage for stage, pattern in _STAGE_OPENED_BY if pattern.search(line)), None)


def is_heartbeat(line: str) -> bool:
    """A waiting process says that it still waits: no progress."""
    return _HEARTBEAT.search(line) is not None


def shows_port_clash(line: str) -> bool:
    """The server could not bind its port."""
    return _ADDRESS_IN_USE.search(line) is not None


def compile_cache_warm(lines: Sequence[str]) -> bool | None:
    """True: compiled graphs came from the cache. False: they were compiled. None: this engine compiles nothing."""
    if any(_CACHE_MISSED.search(line) for line in lines):
        return False
    return True if any(_CACHE_USED.search(line) for line in lines) else None


def _depth(line: str) -> tuple[int, str]:
    """How deep in the tree the line's writer is (0 unknown), and the line without the process prefix."""
    match = _PREFIX.match(line)
    if match is None:
        return 0, line
    process = match["process"].lower()
    depth = next((value for name, value in _DEPTH if name in process), 0)
    return depth, line[match.end() :]


def _exception_text(lines: Sequence[tuple[int, str]], start: int) -> str:
    """The exception's own line of the traceback that begins at ``start``, or that line itself."""
    depth = lines[start][0]
    for line_depth, text in lines[start : start + 400]:
        match = _EXCEPTION.match(text)
        if line_depth == depth and match is not None:
            return match["text"].strip()
    first = lines[start][1]
    level = _LEVEL.match(first)
    return (level["text"] if level else first).strip()


def root_cause(lines: Sequence[str]) -> str:
    """The first error of the deepest process that wrote one (worker before EngineCore before API server); empty without an error.

    Deeper first, because every level repeats its child's death in words of its own, later and less exact.
    """
    split = [_depth(line) for line in lines]
    errors = [
        (depth, index)
        for index, (depth, text) in enumerate(split)
        if _ERROR.search(text) and not _SECOND_HAND.search(text) and text.strip()
    ]
    if not errors:
        second_hand = next((text.strip() for _, text in split if _SECOND_HAND.search(text)), "")
        return second_hand[:500]
    deepest = max(depth for depth, _ in errors)
    first = next(index for depth, index in errors if depth == deepest)
    return _exception_text(split, first)[:500]
