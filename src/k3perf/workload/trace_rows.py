"""Rows of a trace: Mooncake's and Bailian's JSON forms, read strictly or leniently.

Mooncake: ``timestamp`` in milliseconds from the trace's start, ``input_length`` and
``output_length`` in tokens, ``hash_ids``, one for each block of 512 tokens of the
prompt (the last block may be partial). Equal ids mean equal content up to that block's
end. Bailian (Alibaba): the same fields, and ``chat_id``, ``parent_chat_id`` and
``turn``; seconds, blocks of 16 tokens.

The block size follows from the ids where the form's own size does not fit. A row
without ids shares nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from k3perf.workload.log_values import Moment, TimeUnit, moment, number, token_count, unit_by_size
from k3perf.workload.record_file import FileRecord, RecordFile

TRACE_BLOCK_TOKENS: Final = 512
BAILIAN_BLOCK_TOKENS: Final = 16
_BLOCK_SIZES: Final = tuple(2**power for power in range(14))
_BAILIAN_FIELDS: Final = ("chat_id", "parent_chat_id", "turn")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request: ``timestamp_ms`` from the trace's start, lengths in tokens, one id
    for each block.
    """

    timestamp_ms: float
    input_length: int
    output_length: int
    hash_ids: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that is not a row: its number and place, the key and value that are
    wrong, and why.

    ``kind`` is the reason without the record's own numbers, to count by.
    """

    index: int
    where: str
    key: str
    value: object
    problem: str
    kind: str


@dataclass(frozen=True, slots=True)
class TraceForm:
    """A form's name, the unit of times that do not count from 1970, and the block size
    it documents.
    """

    name: str
    unit: TimeUnit
    block_tokens: int
    block_size_is_certain: bool


MOONCAKE: Final = TraceForm(
    "Mooncake's trace form", TimeUnit.MILLISECONDS, TRACE_BLOCK_TOKENS, False
)
BAILIAN: Final = TraceForm("Bailian's trace form", TimeUnit.SECONDS, BAILIAN_BLOCK_TOKENS, True)


@dataclass(frozen=True, slots=True)
class TraceRows:
    """Rows in order of time, and the records that are not rows, in the order of the
    file.

    ``block_tokens`` is None where several of ``possible_block_tokens`` fit equally
    well: then the caller must choose. ``with_ids_count``: rows that came with block
    ids.
    """

    rows: tuple[TraceRow, ...]
    bad_rows: tuple[BadRow, ...]
    block_tokens: int | None
    possible_block_tokens: tuple[int, ...]
    times: str
    with_ids_count: int

    def source(self, file: RecordFile, form: TraceForm, sha256: str) -> TraceSource:
        """Where the rows come from. Needs a known block size."""
        assert self.block_tokens is not None  # noqa: S101 - callers refuse such a file
        return TraceSource(
            file=file.path.name,
            sha256=sha256,
            form=form.name,
            container=file.container,
            times=self.times,
            block_tokens=self.block_tokens,
            shares_prefixes=self.with_ids_count > 0,
            request_count=len(self.rows),
            left_out=dict(Counter(bad.kind for bad in self.bad_rows)),
        )


def trace_form(fields: dict[str, Any]) -> TraceForm | None:
    """The form of a trace's record; None when it is not one."""
    if not {"input_length", "output_length"} & fields.keys() and "hash_ids" not in fields:
        return None
    return BAILIAN if any(key in fields for key in _BAILIAN_FIELDS) else MOONCAKE


@dataclass(frozen=True, slots=True)
class _UntimedRow:
    """A row before the unit of its time and the block size are known."""

    index: int
    where: str
    time: Any
    input_length: int
    output_length: int
    ids: tuple[int | str, ...] | None
    block_tokens: int | None


def read_rows(
    records: Iterable[FileRecord],
    form: TraceForm,
    *,
    time_unit: TimeUnit | None = None,
    block_tokens: int | None = None,
) -> TraceRows:
    """All rows of a trace. ``time_unit`` and ``block_tokens``: what the caller knows of
    them.
    """
    entries = [_fields(index, record) for index, record in enumerate(records)]
    found = [entry for entry in entries if isinstance(entry, _UntimedRow)]
    times, bad_times, reading = _times(found, form, time_unit)
    bad = [entry for entry in entries if isinstance(entry, BadRow)] + bad_times
    stated = {entry.block_tokens for entry in found}
    known = block_tokens or (stated.pop() if len(stated) == 1 else None)
    size, possible = _block_size(found, form, known)
    whole_is_enough = known is not None or form.block_size_is_certain
    rows = []
    fresh = _fresh_ids(found)
    for entry, at_ms in times:
        ids = _block_ids(entry, size or form.block_tokens, fresh, whole_is_enough=whole_is_enough)
        if isinstance(ids, BadRow):
            bad.append(ids)
        else:
            rows.append(TraceRow(at_ms, entry.input_length, entry.output_length, ids))
    rows.sort(key=lambda row: row.timestamp_ms)
    bad.sort(key=lambda entry: entry.index)
    with_ids_count = sum(entry.ids is not None for entry, _ in times)
    return TraceRows(tuple(rows), tuple(bad), size, possible, reading, with_ids_count)


def _fields(index: int, record: FileRecord) -> _UntimedRow | BadRow:
    fields = record.fields
    if fields is None:
        return BadRow(index, record.where, "", None, record.problem, record.problem)
    lengths = []
    for key in ("input_length", "output_length"):
        length = token_count(fields.get(key))
        if isinstance(length, str):
            why = f"is not a token count of 1 or more ({length})"
            return BadRow(index, record.where, key, fields.get(key), why, length)
        lengths.append(length)
    ids = fields.get("hash_ids")
    if ids is not None and not _is_id_list(ids):
        why = "is not a list of block ids (whole numbers or strings)"
        return BadRow(index, record.where, "hash_ids", ids, why, "hash_ids that are not block ids")
    size = fields.get("block_tokens")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        why = "is not a number of tokens of 1 or more"
        return BadRow(
            index, record.where, "block_tokens", size, why, "block_tokens that is not a size"
        )
    block_ids = None if ids is None else tuple(ids)
    return _UntimedRow(
        index, record.where, fields.get("timestamp"), lengths[0], lengths[1], block_ids, size
    )


def _is_id_list(ids: Any) -> bool:
    return isinstance(ids, list) and all(
        isinstance(entry, int | str) and not isinstance(entry, bool) for entry in ids
    )


def _times(
    found: Sequence[_UntimedRow], form: TraceForm, given: TimeUnit | None
) -> tuple[list[tuple[_UntimedRow, float]], list[BadRow], str]:
    """(rows with their milliseconds from the start, rows without a time, how times were
    read).

    Numbers count from 1970 when the smallest one does; otherwise they are in the form's
    unit.
    """
    numbers = [value for entry in found if (value := number(entry.time)) is not None]
    by_size = unit_by_size(min(numbers)) if numbers and given is None else None
    unit = given or by_size or form.unit
    timed: list[tuple[_UntimedRow, Moment]] = []
    bad = []
    for entry in found:
        at = moment(entry.time, given=unit)
        if isinstance(at, str):
            why = f"is not a number of {unit.name.lower()}, 0 or more, or a date ({at})"
            bad.append(BadRow(entry.index, entry.where, "timestamp", entry.time, why, at))
        else:
            timed.append((entry, at))
    of_most = sum(at.is_since_1970 for _, at in timed) * 2 > len(timed)
    for entry, at in timed:
        if at.is_since_1970 is not of_most:
            why = "times since 1970 and times since the start are mixed"
            bad.append(BadRow(entry.index, entry.where, "timestamp", entry.time, why, why))
    timed = [(entry, at) for entry, at in timed if at.is_since_1970 is of_most]
    begin_ms = min((at.at_ms for _, at in timed), default=0.0) if of_most else 0.0
    readings = sorted({at.reading for _, at in timed})
    return [(entry, at.at_ms - begin_ms) for entry, at in timed], bad, " and ".join(readings)


def _block_size(
    found: Sequence[_UntimedRow], form: TraceForm, known: int | None
) -> tuple[int | None, tuple[int, ...]]:
    """(tokens of a block, sizes that fit as well as any). None where several fit and
    none is the form's.
    """
    if known is not None or form.block_size_is_certain:
        return known or form.block_tokens, ()
    fitting: Counter[int] = Counter({form.block_tokens: 0})
    for entry in found:
        if entry.ids is not None:
            count_of_ids = len(entry.ids)
            fitting.update(size for size in _BLOCK_SIZES if _blocks(entry, size) == count_of_ids)
    most = max(fitting.values())
    best = tuple(size for size in sorted(fitting) if fitting[size] == most)
    if form.block_tokens in best:
        return form.block_tokens, best
    return (best[0] if len(best) == 1 else None), best


def _blocks(entry: _UntimedRow, size: int) -> int:
    return -(-entry.input_length // size)


def _fresh_ids(found: Sequence[_UntimedRow]) -> Iterator[int]:
    given = (block for entry in found for block in entry.ids or () if isinstance(block, int))
    return count(max(given, default=-1) + 1)


def _block_ids(
    entry: _UntimedRow, size: int, fresh: Iterator[int], *, whole_is_enough: bool
) -> tuple[int | str, ...] | BadRow:
    """The row's ids; new ids where it has none, or one more for a partial last
    block.
    """
    wanted = _blocks(entry, size)
    if entry.ids is None:
        return tuple(next(fresh) for _ in range(wanted))
    if len(entry.ids) == wanted:
        return entry.ids
    if whole_is_enough and len(entry.ids) == entry.input_length // size:
        return (*entry.ids, next(fresh))
    why = f"is not {wanted} block ids, one for each {size} tokens of {entry.input_length}"
    kind = f"hash_ids that do not fit blocks of {size} tokens"
    return BadRow(entry.index, entry.where, "hash_ids", f"{len(entry.ids)} entries", why, kind)


@dataclass(frozen=True, slots=True)
class TraceSource:
    """What was recognised in a file. ``times``: how its times were read. ``left_out``:
    records that were not used, counted by reason. ``shares_prefixes``: whether it says
    which blocks are equal.
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
    """The file next to an imported trace that says where it comes from."""
    return trace.with_name(trace.name + ".source.json")


def source_document(source: TraceSource, trace_sha256: str) -> str:
    """The text of that file; ``trace_sha256`` ties it to the trace."""
    return json.dumps({"trace_sha256": trace_sha256, **asdict(source)}, indent=1) + "\n"


def origin_text(trace: Path, trace_sha256: str) -> str:
    """Where an imported trace comes from; "" without a file that says so of this very
    trace.
    """
    try:
        document: Any = json.loads(source_path(trace).read_text(encoding="utf-8"))
        known = document.pop("trace_sha256") == trace_sha256
        return TraceSource(**document).text if known else ""
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return ""
