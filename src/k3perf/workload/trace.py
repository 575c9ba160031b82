"""A trace in Mooncake's JSONL form to planned requests: window, time scale, length scale. The only reading of a file in this layer.

One JSON object a line: ``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens), ``hash_ids`` (one for each 512-token block of
the prompt, the last block may be partial; equal ids mean equal content up to that block's end). Format: kvcache-ai/Mooncake, FAST'25.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from k3perf.config.workload_spec import TraceReplay
from k3perf.errors import ConfigFileError
from k3perf.units import MS_PER_S, NS_PER_MS
from k3perf.workload.arrivals import RANDOM_STEP_NS
from k3perf.workload.content import Segment

TRACE_BLOCK_TOKENS: Final = 512
_NEXT_STEP: Final = (
    "Each line is {timestamp, input_length, output_length, hash_ids}; `k3perf load import-log` makes such a file from a log."
)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace, as written."""

    timestamp_ms: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TraceUse:
    """What of a trace a plan uses, for the record: file, its SHA-256, scaled block size, and the requests left out by reason."""

    file: str
    sha256: str
    block_tokens: int
    used_count: int
    outside_window_count: int
    too_long_count: int
    beyond_limit_count: int


@dataclass(frozen=True, slots=True)
class ScaledRequest:
    """One request after windowing and scaling."""

    segments: tuple[Segment, ...]
    output_token_count: int
    offset_ns: int


def read_trace(path: Path) -> tuple[tuple[TraceRow, ...], str]:
    """All rows in order of time, and the file's SHA-256. Raises ConfigFileError naming the line."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigFileError(path, "", None, f"the trace cannot be read ({error.strerror})", "Check the path of --k3-trace.") from None
    rows = tuple(_row(path, number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip())
    if not rows:
        raise ConfigFileError(path, "", None, "the trace holds no request", _NEXT_STEP)
    return tuple(sorted(rows, key=lambda row: row.timestamp_ms)), hashlib.sha256(content).hexdigest()


def _row(path: Path, number: int, line: bytes) -> TraceRow:
    where = f"line {number}"
    try:
        fields: Any = json.loads(line)
    except ValueError as error:
        raise ConfigFileError(path, where, None, f"not JSON ({error})", _NEXT_STEP) from None
    if not isinstance(fields, dict):
        raise ConfigFileError(path, where, fields, "not an object", _NEXT_STEP)
    timestamp = fields.get("timestamp")
    if not isinstance(timestamp, int | float) or isinstance(timestamp, bool) or not 0 <= timestamp < float("inf"):
        raise ConfigFileError(path, f"{where}: timestamp", timestamp, "not a number of milliseconds, 0 or more", _NEXT_STEP)
    for key in ("input_length", "output_length"):
        value = fields.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigFileError(path, f"{where}: {key}", value, "not a token count of 1 or more", _NEXT_STEP)
    ids = fields.get("hash_ids")
    expected = -(-fields["input_length"] // TRACE_BLOCK_TOKENS)
    if not isinstance(ids, list) or len(ids) != expected or not all(isinstance(entry, int) for entry in ids):
        shown = f"{len(ids)} entries" if isinstance(ids, list) else ids
        raise ConfigFileError(path, f"{where}: hash_ids", shown, f"not {expected} block ids, one for each 512 tokens", _NEXT_STEP)
    return TraceRow(timestamp, fields["input_length"], fields["output_length"], tuple(ids))


def scale_trace(
    arrival: TraceReplay, rows: Sequence[TraceRow], *, file: str, sha256: str, maximum_requests: int | None
) -> tuple[tuple[ScaledRequest, ...], TraceUse]:
    """Cut the window, scale times and lengths, drop what is too long, keep the first ``maximum_requests``; every loss is counted."""
    block_tokens = max(1, round(TRACE_BLOCK_TOKENS * arrival.length_scale))
    start_ms = arrival.window_start_s * MS_PER_S
    end_ms = start_ms + arrival.window_duration_s * MS_PER_S if arrival.window_duration_s is not None else float("inf")
    inside = [row for row in rows if start_ms <= row.timestamp_ms < end_ms]
    scaled = [_scale(row, arrival, block_tokens, start_ms) for row in inside]
    limit = arrival.longest_request_tokens
    fitting = [request for request in scaled if limit is None or _total_tokens(request) <= limit]
    used = tuple(fitting[:maximum_requests])
    use = TraceUse(
        file=file,
        sha256=sha256,
        block_tokens=block_tokens,
        used_count=len(used),
        outside_window_count=len(rows) - len(inside),
        too_long_count=len(scaled) - len(fitting),
        beyond_limit_count=len(fitting) - len(used),
    )
    return used, use


def _total_tokens(request: ScaledRequest) -> int:
    return sum(segment.token_count for segment in request.segments) + request.output_token_count


def _scale(row: TraceRow, arrival: TraceReplay, block_tokens: int, start_ms: float) -> ScaledRequest:
    """Whole blocks stay whole and the partial one stays partial, so that the same blocks are shared at every scale."""
    whole, rest = divmod(row.input_length, TRACE_BLOCK_TOKENS)
    segments = [Segment(f"block:{block_id}", block_tokens) for block_id in row.hash_ids[:whole]]
    if rest:
        rest_tokens = max(1, min(round(rest * arrival.length_scale), block_tokens - 1))
        segments.append(Segment(f"block:{row.hash_ids[whole]}", rest_tokens))
    offset_ns = (row.timestamp_ms - start_ms) * NS_PER_MS / arrival.time_scale
    return ScaledRequest(
        segments=tuple(segments),
        output_token_count=max(1, round(row.output_length * arrival.length_scale)),
        offset_ns=round(offset_ns / RANDOM_STEP_NS) * RANDOM_STEP_NS,
    )


def unbounded_hit_ratio(rows: Iterable[TraceRow]) -> float | None:
    """Prompt tokens in whole blocks seen before, over prompt tokens: the trace's own prefix hit rate with a cache that forgets nothing.

    As an engine does, a prompt's last token is always computed again. None without rows.
    """
    known: set[int] = set()
    hit_tokens = asked_tokens = 0
    for row in rows:
        whole = row.input_length // TRACE_BLOCK_TOKENS
        reusable = (row.input_length - 1) // TRACE_BLOCK_TOKENS
        hits = next((place for place, block_id in enumerate(row.hash_ids[:reusable]) if block_id not in known), reusable)
        hit_tokens += hits * TRACE_BLOCK_TOKENS
        asked_tokens += row.input_length
        known.update(row.hash_ids[:whole])
    return hit_tokens / asked_tokens if asked_tokens else None


def trace_text(rows: Iterable[TraceRow]) -> str:
    """Rows in the trace's form, one line each."""
    return "".join(
        json.dumps(
            {
                "timestamp": row.timestamp_ms,
                "input_length": row.input_length,
                "output_length": row.output_length,
                "hash_ids": list(row.hash_ids),
            }
        )
        + "\n"
        for row in rows
    )
