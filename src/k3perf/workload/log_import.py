"""A log of OpenAI-style requests with token counts to trace rows. Pure; what a line says and does not say is counted, never guessed.

A line may be a request's own record or a response: counts are looked for in ``usage`` (at the top, under ``response``, ``body`` or
``response.body``) or at the top itself, times in ``timestamp``, ``created`` or ``created_at`` (seconds since 1970 or ISO 8601),
``timestamp_ms``. A log says nothing about shared content, so every block gets an id of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

from k3perf.units import MS_PER_S
from k3perf.workload.trace import TRACE_BLOCK_TOKENS, TraceRow

_PLACES: Final = ((), ("response",), ("body",), ("response", "body"))


@dataclass(frozen=True, slots=True)
class ImportedLog:
    """The rows in order of time from the first, and how many lines were left out by reason."""

    rows: tuple[TraceRow, ...]
    left_out: dict[str, int]


def import_log(lines: Iterable[str]) -> ImportedLog:
    """Turn log lines into a trace."""
    left_out: Counter[str] = Counter()
    found: list[tuple[float, int, int]] = []
    for line in lines:
        if not line.strip():
            continue
        entry = _entry(line)
        if isinstance(entry, str):
            left_out[entry] += 1
        else:
            found.append(entry)
    found.sort(key=lambda entry: entry[0])
    ids = count()
    rows = tuple(
        TraceRow(round(at_ms - found[0][0]), prompt, reply, tuple(next(ids) for _ in range(-(-prompt // TRACE_BLOCK_TOKENS))))
        for at_ms, prompt, reply in found
    )
    return ImportedLog(rows, dict(left_out))


def _entry(line: str) -> tuple[float, int, int] | str:
    """(time in ms, prompt tokens, completion tokens), or why there is none."""
    try:
        record = json.loads(line)
    except ValueError:
        return "not JSON"
    if not isinstance(record, dict):
        return "not an object"
    parts = list(_parts(record))
    counts = next((found for part in parts if (found := _counts(part)) is not None), None)
    if counts is None:
        return "no token counts"
    at_ms = next((moment for part in parts if (moment := _time_ms(part)) is not None), None)
    if at_ms is None:
        return "no time"
    return (at_ms, *counts) if min(counts) >= 1 else "no tokens in prompt or reply"


def _parts(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for place in _PLACES:
        part: Any = record
        for key in place:
            part = part.get(key) if isinstance(part, dict) else None
        if isinstance(part, dict):
            yield part


def _counts(part: dict[str, Any]) -> tuple[int, int] | None:
    usage = part.get("usage", part)
    if not isinstance(usage, dict):
        return None
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    reply = usage.get("completion_tokens", usage.get("output_tokens"))
    return (prompt, reply) if isinstance(prompt, int) and isinstance(reply, int) else None


def _time_ms(part: dict[str, Any]) -> float | None:
    if isinstance(part.get("timestamp_ms"), int | float):
        return float(part["timestamp_ms"])
    for key in ("timestamp", "created", "created_at"):
        value = part.get(key)
        if isinstance(value, int | float):
            return float(value) * MS_PER_S
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                continue
            aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return aware.timestamp() * MS_PER_S
    return None
