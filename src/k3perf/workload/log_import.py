"""Other people's files to a trace: request logs, CSV traces, and traces in another
form.

A log's record is a request's own or a response: counts are looked for in ``usage`` (at
the top, under ``response``, ``body`` or ``response.body``) or at the top itself, and a
time in the fields of ``log_values.TIME_FIELDS``. What a record says and does not say is
counted, never guessed. A log says nothing about shared content, so every block gets a
separate id. A trace (``trace_rows``) keeps its ids.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, NoReturn

from k3perf.errors import UsageError
from k3perf.workload.log_values import (
    CSV_FORMS,
    NO_UNIT,
    PROMPT_FIELDS,
    REPLY_FIELDS,
    TIME_FIELDS,
    Moment,
    TimeUnit,
    moment,
    named_unit,
    normal_name,
    token_count,
)
from k3perf.workload.record_file import FileRecord, RecordFile, open_records
from k3perf.workload.trace_rows import (
    TRACE_BLOCK_TOKENS,
    TraceForm,
    TraceRow,
    TraceSource,
    read_rows,
    trace_form,
)

_PLACES: Final = ((), ("response",), ("body",), ("response", "body"), ("request",))
_USAGE: Final = ("usage", "usageDetails", "token_usage")
_TALKS: Final = ("conversations", "conversation", "messages")
CONVERSATION: Final = "conversation without times and token counts"
CONVERSATIONS: Final = (
    "these are conversations (as ShareGPT has them): they hold neither arrival times nor token"
    " counts, and a trace needs both"
)
CONVERSATIONS_NEXT_STEP: Final = (
    "Write a workload with its own lengths and arrivals instead (docs/load.md, Workloads and"
    " plans), or import the log of a server that these conversations were sent to."
)
NEEDED_FIELDS: Final = (
    "a time (such as timestamp, created or startTime) and both token counts "
    "(such as prompt_tokens and completion_tokens, at the top or under usage)"
)


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """An imported file: iterate over ``rows()`` in order of time, the first at 0 ms.

    ``span_s``: seconds from the first request to the last. ``prompt_tokens_count`` and
    ``reply_tokens_count`` are sums.
    """

    source: TraceSource
    span_s: float
    prompt_tokens_count: int
    reply_tokens_count: int
    _times_ms: Any
    _prompts: Any
    _replies: Any
    _ids: tuple[tuple[int | str, ...], ...] | None

    def rows(self) -> Iterator[TraceRow]:
        """The trace's rows, made one by one."""
        fresh = count()
        size = self.source.block_tokens
        columns = zip(self._times_ms, self._prompts, self._replies, strict=True)
        for place, (at_ms, prompt, reply) in enumerate(columns):
            own = (next(fresh) for _ in range(-(-int(prompt) // size)))
            ids = tuple(own) if self._ids is None else self._ids[place]
            yield TraceRow(round(float(at_ms)), int(prompt), int(reply), ids)


def import_log(
    path: Path, *, time_unit: TimeUnit | None = None, block_tokens: int | None = None
) -> ImportedTrace:
    """Read a log, a CSV trace or a trace in another form.

    ``time_unit``: of the times that are numbers. ``block_tokens``: of a trace's block
    ids. Raises UsageError where no record can be used, with what to do about it.
    """
    with open_records(path) as file:
        records = iter(file)
        skipped = []
        form = None
        for record in records:
            skipped.append(record)
            if record.fields is not None:
                form = trace_form(record.fields) if file.container != "CSV" else None
                break
        everything = chain(skipped, records)
        if form is not None:
            return _import_trace(file, everything, form, time_unit, block_tokens)
        if block_tokens is not None:
            raise UsageError(f"{path}: has no block ids. Leave out --block-tokens.")
        return _LogReader(file, time_unit).read(everything)


def _import_trace(
    file: RecordFile,
    records: Iterable[FileRecord],
    form: TraceForm,
    time_unit: TimeUnit | None,
    block_tokens: int | None,
) -> ImportedTrace:
    found = read_rows(records, form, time_unit=time_unit, block_tokens=block_tokens)
    if found.block_tokens is None:
        sizes = ", ".join(map(str, found.possible_block_tokens))
        raise UsageError(
            f"{file.path}: its block ids fit several block sizes ({sizes}). Give the right one with"
            " --block-tokens."
        )
    if not found.rows:
        left_out = Counter(bad.kind for bad in found.bad_rows)
        raise UsageError(
            f"{file.path}: no record of {form.name} can be used ({_counted(left_out)}); the first:"
            f" {found.bad_rows[0].where} {found.bad_rows[0].key} {found.bad_rows[0].problem}. Give"
            " --block-tokens if blocks have another size, --time-unit if times have another"
            " unit."
        )
    first_ms = found.rows[0].timestamp_ms
    return ImportedTrace(
        source=found.source(file, form, file.sha256),
        span_s=(found.rows[-1].timestamp_ms - first_ms) / 1e3,
        prompt_tokens_count=sum(row.input_length for row in found.rows),
        reply_tokens_count=sum(row.output_length for row in found.rows),
        _times_ms=[row.timestamp_ms - first_ms for row in found.rows],
        _prompts=[row.input_length for row in found.rows],
        _replies=[row.output_length for row in found.rows],
        _ids=tuple(row.hash_ids for row in found.rows),
    )


class _LogReader:
    """Reads the records of one log into columns, which stay small for millions of
    them.
    """

    def __init__(self, file: RecordFile, time_unit: TimeUnit | None) -> None:
        self._file = file
        self._time_unit = time_unit
        self._name, self._form_unit = _csv_form(file.header)
        self._times_ms, self._since_1970 = array("d"), array("b")
        self._prompts, self._replies = array("q"), array("q")
        self._left_out: Counter[str] = Counter()
        self._readings: Counter[str] = Counter()

    def read(self, records: Iterable[FileRecord]) -> ImportedTrace:
        """Raises UsageError when no record can be used."""
        for record in records:
            entry = _entry(record, self._time_unit, self._form_unit)
            if isinstance(entry, str):
                self._left_out[entry] += 1
                continue
            field, at, prompt, reply = entry
            if not self._name:
                self._name = _json_form(record.fields or {})
            self._readings[f"{at.reading} ({field})"] += 1
            self._times_ms.append(at.at_ms)
            self._since_1970.append(at.is_since_1970)
            self._prompts.append(prompt)
            self._replies.append(reply)
        if not self._times_ms:
            _refuse(self._file, self._left_out)
        return self._imported()

    def _imported(self) -> ImportedTrace:
        import numpy as np

        times_ms = np.frombuffer(self._times_ms, dtype=np.float64)
        since_1970 = np.frombuffer(self._since_1970, dtype=np.int8).astype(bool)
        of_most = bool(since_1970.sum() * 2 > len(since_1970))
        kept = np.flatnonzero(since_1970 == of_most)
        if len(kept) < len(times_ms):
            other = "a time since the start, others are since 1970"
            reason = other if of_most else "a time since 1970, others are since the start"
            self._left_out[reason] += len(times_ms) - len(kept)
        order = kept[np.argsort(times_ms[kept], kind="stable")]
        times_ms = times_ms[order] - times_ms[order[0]]
        prompts = np.frombuffer(self._prompts, dtype=np.int64)[order]
        replies = np.frombuffer(self._replies, dtype=np.int64)[order]
        source = TraceSource(
            file=self._file.path.name,
            sha256=self._file.sha256,
            form=self._name,
            container=self._file.container,
            times=" and ".join(sorted(self._readings)),
            block_tokens=TRACE_BLOCK_TOKENS,
            shares_prefixes=False,
            request_count=len(order),
            left_out=dict(self._left_out),
        )
        return ImportedTrace(
            source=source,
            span_s=float(times_ms[-1]) / 1e3,
            prompt_tokens_count=int(prompts.sum()),
            reply_tokens_count=int(replies.sum()),
            _times_ms=times_ms,
            _prompts=prompts,
            _replies=replies,
            _ids=None,
        )


def _csv_form(header: tuple[str, ...]) -> tuple[str, TimeUnit | None]:
    """(name, unit of times that are not since 1970) of a CSV file; ("", None) for
    JSON.
    """
    names = {normal_name(name) for name in header}
    for columns, form, unit in CSV_FORMS:
        if columns <= names:
            return form, unit
    return ("a request log with a header line" if header else ""), None


def _json_form(fields: dict[str, Any]) -> str:
    return (
        "LiteLLM's spend log"
        if "startTime" in fields and "endTime" in fields
        else "a log of OpenAI-style requests"
    )


def _entry(
    record: FileRecord, given: TimeUnit | None, form: TimeUnit | None
) -> tuple[str, Moment, int, int] | str:
    """(field of the time, time, prompt tokens, reply tokens), or why there is none."""
    fields = record.fields
    if fields is None:
        return record.problem
    parts = list(_parts(fields))
    counts = next((found for part in parts if (found := _counts(part)) is not None), None)
    times = [found for part in parts for found in _times(part, given, form)]
    at = next(((key, value) for key, value in times if isinstance(value, Moment)), None)
    if counts is None:
        talks = at is None and any(isinstance(fields.get(key), list) for key in _TALKS)
        return CONVERSATION if talks else "no token counts"
    prompt, reply = counts
    if isinstance(prompt, str):
        return prompt
    if isinstance(reply, str):
        return reply
    if at is None:
        return str(times[0][1]) if times else "no time"
    return at[0], at[1], prompt, reply


def _parts(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for place in _PLACES:
        part: Any = record
        for key in place:
            part = part.get(key) if isinstance(part, dict) else None
        if isinstance(part, dict):
            yield part


def _counts(part: dict[str, Any]) -> tuple[int | str, int | str] | None:
    usages = [part[key] for key in _USAGE if isinstance(part.get(key), dict)]
    for usage in (*usages, part):
        prompt = reply = None
        for key, value in usage.items():
            name = normal_name(key)
            if name in PROMPT_FIELDS or (usage is not part and name == "input"):
                prompt = value if prompt is None else prompt
            elif name in REPLY_FIELDS or (usage is not part and name == "output"):
                reply = value if reply is None else reply
        if prompt is not None and reply is not None:
            return token_count(prompt), token_count(reply)
    return None


def _times(
    part: dict[str, Any], given: TimeUnit | None, form: TimeUnit | None
) -> list[tuple[str, Moment | str]]:
    """(field, time or why it is none) of each field that holds a time, the one that
    counts first.
    """
    found = []
    for key, value in part.items():
        base, field_unit = named_unit(key)
        if value is not None and base in _TIME_RANKS:
            found.append(
                (
                    _TIME_RANKS[base],
                    key,
                    moment(value, field_unit=field_unit, given=given, form=form),
                )
            )
    return [(key, at) for _, key, at in sorted(found, key=lambda entry: entry[0])]


_TIME_RANKS: Final = {name: rank for rank, name in enumerate(TIME_FIELDS)}


def foreign_form(file: RecordFile, record: FileRecord) -> str:
    """What a file is that is not a trace but can be imported, from one of its records;
    "" otherwise.
    """
    name, unit = _csv_form(file.header)
    entry = _entry(record, None, unit)
    if isinstance(entry, str) and entry not in {NO_UNIT, CONVERSATION}:
        return ""
    return CONVERSATION if entry == CONVERSATION else name or _json_form(record.fields or {})


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason} ({number})" for reason, number in reasons.most_common())


def _refuse(file: RecordFile, left_out: Counter[str]) -> NoReturn:
    """No record can be used: say why, and what to do."""
    common = left_out.most_common(1)
    reason = common[0][0] if common else ""
    if reason == CONVERSATION:
        raise UsageError(f"{file.path}: {CONVERSATIONS}. {CONVERSATIONS_NEXT_STEP}")
    told = f"{file.path}: no record can be used: {_counted(left_out) or 'there is none'}"
    if reason == NO_UNIT:
        raise UsageError(f"{told}. Give the unit of its times with --time-unit s, ms, us or ns.")
    how = "Give JSON lines, a JSON array, or CSV with a header line"
    if file.container == "CSV":
        how = f"Its columns are {', '.join(file.header)}: name them in the header line"
    raise UsageError(f"{told}. {how}; each record needs {NEEDED_FIELDS}.")
