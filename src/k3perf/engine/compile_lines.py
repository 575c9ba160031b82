"""Which lines of an engine's log show a compile or an autotuning once it serves, and
the JIT monitor's greeting. Pure.

Before the engine is ready the same lines are an ordinary start: the caller says which
window it asks about.
"""

from __future__ import annotations

import re
from typing import Final

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GREETING: Final = re.compile(r"Kernel JIT monitor activated")

# With a name in a group, several lines of one name are one event: a bar that is drawn
# again, a beginning and its end.
_EVENTS: Final[tuple[re.Pattern[str], ...]] = (
    # vLLM's JIT monitor, whatever the compiler
    re.compile(r"during inference: .*This causes a latency spike"),
    # the compilers' own lines
    re.compile(r"Triton autotuning for function"),
    re.compile(r"TileLang (?:begins|completes) to compile kernel (?P<name>\S+)"),
    re.compile(r"\[Autotuner\]: Autotuning (?P<name>process)", re.IGNORECASE),
    re.compile(r"\[AutoTuner\]: (?P<name>Tuning [^:]+):", re.IGNORECASE),
    re.compile(r"Running NV(?:CC|RTC) command|Compiling JIT runtime"),
    re.compile(r"\[aiter\] (?:start|finish) build \[(?P<name>[^\]]+)\]"),
    re.compile(r"Building extension module (?P<name>\S+)"),
    re.compile(r"^\[\d+/\d+\] .*\b(?P<name>nvcc|hipcc|clang\+\+|g\+\+|c\+\+)\b"),
    # torch.compile, as vLLM and torch themselves report it
    re.compile(r"Compiling a graph for"),
    re.compile(r"(?P<name>Dynamo bytecode transform|Starting torch\.compile)"),
    re.compile(r"torch\._dynamo hit config\.(?:\w*recompile_limit|cache_size_limit)"),
    re.compile(r"\[__recompiles\].*Recompiling function"),
    re.compile(r"AUTOTUNE benchmarking takes"),
)


def plain(line: str) -> str:
    """The line without colour."""
    return _COLOUR.sub("", line)


def compile_event(line: str) -> str | None:
    """The name that all lines of the same compile share, or an empty string for a line
    that is one compile by itself. None for a line that shows no compile.
    """
    text = plain(line)
    match = next(
        (found for pattern in _EVENTS if (found := pattern.search(text)) is not None), None
    )
    return None if match is None else match.groupdict().get("name") or ""


def is_monitor_greeting(line: str) -> bool:
    """A worker says that its JIT monitor watches from now on."""
    return _GREETING.search(line) is not None
