"""A trace file to planned requests: window, time scale, length scale.

Traces are JSON in Mooncake's or Bailian's form (``trace_rows``), one object a line or
one array. Formats: kvcache-ai/Mooncake, FAST'25, and
alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, Final, NoReturn

from k3perf.config.workload_spec import TraceReplay
from k3perf.errors import ConfigFileError
from k3perf.units import MS_PER_S, NS_PER_MS
from k3perf.workload.arrivals import RANDOM_STEP_NS
from k3perf.workload.draws import Segment
from k3perf.workload.log_import import (
    CONVERSATION,
    CONVERSATIONS,
    CONVERSATIONS_NEXT_STEP,
    foreign_form,
)
from k3perf.workload.record_file import FileRecord, RecordFile, open_records
from k3perf.workload.trace_rows import (
    TRACE_BLOCK_TOKENS,
    BadRow,
    TraceRow,
    TraceRows,
    TraceSource,
    origin_text,
    read_rows,
    trace_form,
)

_SHOWN_CHARACTERS: Final = 200
_FORM: Final = (
    "A trace has one JSON object for each request, with timestamp, input_length, output_length and"
    " hash_ids (docs/load.md, Traces)."
)


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace's rows in order of time, the tokens of one block, and what was recognised
    in the file.

    ``origin``: the file that it was imported from, in words; "" where that is not
    known.
    """

    rows: tuple[TraceRow, ...]
    block_tokens: int
    source: TraceSource
    origin: str = ""


@dataclass(frozen=True, slots=True)
class TraceUse:
    """What of a trace a plan uses, for the record: file, its SHA-256, scaled block
    size, and the excluded requests by reason.

    ``source``: the form and the unit that were recognised, and where the trace was
    imported from.
    """

    file: str
    sha256: str
    block_tokens: int
    used_count: int
    outside_window_count: int
    too_long_count: int
    beyond_limit_count: int
    source: str = ""

    @property
    def text(self) -> str:
        """One line for the notes of a cell."""
        excluded = (
            f"{self.outside_window_count} outside the window, {self.too_long_count} too long, "
            f"{self.beyond_limit_count} beyond the workload's number"
        )
        return f"trace {self.source}; {self.used_count} requests used, excluded: {excluded}"


@dataclass(frozen=True, slots=True)
class ScaledRequest:
    """One request after windowing and scaling."""

    segments: tuple[Segment, ...]
    output_token_count: int
    offset_ns: int


def read_trace(path: Path) -> Trace:
    """All rows of a trace file. Raises UsageError for a file that cannot be read as
    one; ConfigFileError names the record.
    """
    with open_records(path) as file:
        records = iter(file)
        skipped, first = [], None
        for record in records:
            skipped.append(record)
            if record.fields is not None:
                first = record.fields
                break
        form = trace_form(first) if first is not None and file.container != "CSV" else None
        if form is None:
            _refuse(file, skipped, first)
        found = read_rows(chain(skipped, records), form)
        sha256 = file.sha256
    if found.bad_rows:
        raise _bad_row(path, found.bad_rows, len(found.rows))
    if found.block_tokens is None:
        raise _unknown_block_size(path, found)
    source = found.source(file, form, sha256)
    return Trace(found.rows, found.block_tokens, source, origin_text(path, sha256))


def _refuse(
    file: RecordFile, skipped: Sequence[FileRecord], first: dict[str, Any] | None
) -> NoReturn:
    """The file is not a trace: say what it is, and the command that makes a trace of it
    where there is one.
    """
    path, record = file.path, skipped[-1] if skipped else None
    if first is None or record is None:
        problem = f"no record can be read ({record.problem if record else 'there is none'})"
        raise ConfigFileError(path, record.where if record else "", None, problem, _FORM)
    form = foreign_form(file, record)
    if form == CONVERSATION:
        raise ConfigFileError(path, "", None, CONVERSATIONS, CONVERSATIONS_NEXT_STEP)
    if form:
        output = path.with_name(f"{path.name}.trace.jsonl")
        command = f"k3perf load import-log {quote(str(path))} --output {quote(str(output))}"
        raise ConfigFileError(
            path,
            "",
            None,
            f"this is not a trace but {form}",
            f"Run `{command}` and give the file that it writes.",
        )
    keys = f"its fields are {', '.join(list(first)[:12])}" if first else "the object is empty"
    problem = f"not a token count of 1 or more; {keys}"
    raise ConfigFileError(path, f"{record.where}: input_length", None, problem, _FORM)


def _bad_row(path: Path, bad: Sequence[BadRow], good_count: int) -> ConfigFileError:
    first = bad[0]
    more = f" (and {len(bad) - 1} more records)" if len(bad) > 1 else ""
    command = f"k3perf load import-log {quote(str(path))}"
    step = f"Correct the file. {_FORM}"
    if good_count:
        step = (
            f"Correct the record, or run `{command} --output TRACE`, which leaves such records out."
        )
    if first.key == "hash_ids":
        size = "If the blocks have another size, run"
        step = f"{step} {size} `{command} --block-tokens N --output TRACE` and give TRACE."
    where = f"{first.where}: {first.key}" if first.key else first.where
    value = first.value if len(repr(first.value)) <= _SHOWN_CHARACTERS else "too long to show"
    return ConfigFileError(path, where, value, first.problem + more, step)


def _unknown_block_size(path: Path, found: TraceRows) -> ConfigFileError:
    sizes = ", ".join(map(str, found.possible_block_tokens))
    step = (
        f"Run `k3perf load import-log {quote(str(path))} --block-tokens N --output TRACE` with the"
        " right size, and give TRACE."
    )
    return ConfigFileError(
        path, "hash_ids", None, f"the block ids fit several block sizes ({sizes})", step
    )


def scale_trace(
    arrival: TraceReplay, trace: Trace, *, maximum_requests: int | None
) -> tuple[tuple[ScaledRequest, ...], TraceUse]:
    """Cut the window, scale times and lengths, drop what is too long, keep the first
    ``maximum_requests``; every loss is counted.
    """
    rows = trace.rows
    block_tokens = max(1, round(trace.block_tokens * arrival.length_scale))
    start_ms = arrival.window_start_s * MS_PER_S
    end_ms = (
        start_ms + arrival.window_duration_s * MS_PER_S
        if arrival.window_duration_s is not None
        else float("inf")
    )
    inside = [row for row in rows if start_ms <= row.timestamp_ms < end_ms]
    scaled = [_scale(row, arrival, trace.block_tokens, block_tokens, start_ms) for row in inside]
    limit = arrival.longest_request_tokens
    fitting = [request for request in scaled if limit is None or _total_tokens(request) <= limit]
    used = tuple(fitting[:maximum_requests])
    use = TraceUse(
        file=trace.source.file,
        sha256=trace.source.sha256,
        block_tokens=block_tokens,
        used_count=len(used),
        outside_window_count=len(rows) - len(inside),
        too_long_count=len(scaled) - len(fitting),
        beyond_limit_count=len(fitting) - len(used),
        source=trace.source.text + (f"; imported from {trace.origin}" if trace.origin else ""),
    )
    return used, use


def _total_tokens(request: ScaledRequest) -> int:
    return sum(segment.token_count for segment in request.segments) + request.output_token_count


def _scale(
    row: TraceRow, arrival: TraceReplay, trace_block_tokens: int, block_tokens: int, start_ms: float
) -> ScaledRequest:
    """Whole blocks stay whole and the partial one stays partial, so that the same
    blocks are shared at every scale.
    """
    whole, rest = divmod(row.input_length, trace_block_tokens)
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


def unbounded_hit_ratio(
    rows: Iterable[TraceRow], block_tokens: int = TRACE_BLOCK_TOKENS
) -> float | None:
    """Prompt tokens in whole blocks seen before, over prompt tokens: the trace's own
    prefix hit rate with a cache that forgets nothing.

    As an engine does, a prompt's last token is always computed again. None without
    rows.
    """
    known: set[int | str] = set()
    hit_tokens = asked_tokens = 0
    for row in rows:
        whole = row.input_length // block_tokens
        reusable = (row.input_length - 1) // block_tokens
        hits = next(
            (
                place
                for place, block_id in enumerate(row.hash_ids[:reusable])
                if block_id not in known
            ),
            reusable,
        )
        hit_tokens += hits * block_tokens
        asked_tokens += row.input_length
        known.update(row.hash_ids[:whole])
    return hit_tokens / asked_tokens if asked_tokens else None


def trace_lines(rows: Iterable[TraceRow], block_tokens: int = TRACE_BLOCK_TOKENS) -> Iterator[str]:
    """Rows in Mooncake's form, a line each; ``block_tokens`` is written where it is not
    Mooncake's own.
    """
    size = {} if block_tokens == TRACE_BLOCK_TOKENS else {"block_tokens": block_tokens}
    for row in rows:
        fields = {
            "timestamp": row.timestamp_ms,
            "input_length": row.input_length,
            "output_length": row.output_length,
            **size,
            "hash_ids": list(row.hash_ids),
        }
        yield json.dumps(fields) + "\n"


def trace_text(rows: Iterable[TraceRow], block_tokens: int = TRACE_BLOCK_TOKENS) -> str:
    """All lines of a trace."""
    return "".join(trace_lines(rows, block_tokens))
