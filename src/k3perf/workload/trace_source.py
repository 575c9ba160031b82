"""The origin of a trace: the form, the unit and the block size that were recognised in
a file.

An imported trace has it in ``TRACE.source.json``, and a replay reports it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TraceSource:
    """What was recognised in a file. ``times``: how its times were read. ``left_out``:
    unused records by reason. ``shares_prefixes``: whether it says which blocks are
    equal.
    """

    file: str
    sha256: str
    form: str
    container: str
    times: str
    block_tokens: int
    shares_prefixes: bool
    request_count: int
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """One line for a reader."""
        blocks = (
            f"blocks of {self.block_tokens} tokens"
            if self.shares_prefixes
            else "no block ids, so prompts share nothing"
        )
        return f"{self.file}: {self.form} ({self.container}); times in {self.times}; {blocks}"


def source_path(trace: Path) -> Path:
    """The path of a trace's source file."""
    return trace.with_name(trace.name + ".source.json")


def source_document(source: TraceSource, trace_sha256: str) -> str:
    """The text of that file. ``trace_sha256`` ties it to the trace."""
    return json.dumps({"trace_sha256": trace_sha256, **asdict(source)}, indent=1) + "\n"


def origin_text(trace: Path, trace_sha256: str) -> str:
    """The origin of an imported trace, or "" without a source file for this
    very trace.
    """
    try:
        document: Any = json.loads(source_path(trace).read_text(encoding="utf-8"))
        known = document.pop("trace_sha256") == trace_sha256
        return TraceSource(**document).text if known else ""
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return ""
