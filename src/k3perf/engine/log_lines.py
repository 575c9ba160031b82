"""What vLLM's log lines mean: the start stage they open, a compile, or only that a
process waits. Pure text in, names out.

The patterns are in ``log_patterns.yaml``. Before the engine is ready the lines of a
compile are an ordinary start: the caller says which window it asks about.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from k3perf.engine import log_patterns

STAGES: Final = ("import", "load", "profile", "compile", "capture", "ready")

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GREETING: Final = re.compile(r"Kernel JIT monitor activated")
_CACHE_USED: Final = re.compile(r"Directly load the compiled graph|Directly load AOT compilation")
_CACHE_MISSED: Final = re.compile(r"Compiling a graph for|saved AOT compiled function")
_INFORMATIVE: Final = re.compile(
    r"(?<![A-Z])(?:INFO|DEBUG)(?![A-Z])"
)  # a colour's last letter may stand before it
_ADDRESS_IN_USE: Final = re.compile(r"address already in use|Errno 98", re.IGNORECASE)


def stage_opened_by(line: str) -> str | None:
    """The start stage that this line opens, or None."""
    if not log_patterns.matches("stages", line):
        return None
    found = log_patterns.first("stages", line)
    return None if found is None else str(found[0].given["stage"])


def compile_event(line: str) -> str | None:
    """The name that all lines of the same compile share, or an empty string for a line
    that is one compile by itself. None for a line that shows no compile.
    """
    text = _COLOUR.sub("", line)
    if not log_patterns.matches("compiles", text):
        return None
    found = log_patterns.first("compiles", text)
    return None if found is None else found[1].groupdict().get("name") or ""


def is_monitor_greeting(line: str) -> bool:
    """A worker says that its JIT monitor watches from now on."""
    return _GREETING.search(line) is not None


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
