"""Lines of an engine's log without what stands before the message: colours, time
stamps, levels, processes, ranks, containers, JSON.

Pure text in, records out. Which forms are known is data (``log_patterns.yaml``). A line
in no known form is a separate message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from k3perf.engine import log_patterns

_ESCAPE: Final = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]|#033\[[0-9;]*m"
)
_UNSEEN: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")
_REPEATED: Final = re.compile(r"\s*\[repeated \d+x across (?:all |the )?cluster\].*$")
# vLLM's own form: found anywhere in the line, since VLLM_LOGGING_PREFIX and a progress
# bar without a line end may stand before it
_VLLM: Final = re.compile(
    r"(?:\((?P<process>[^()\s=][^()=]*?)(?: rank=(?P<rank>\d+))?(?:,? pid=(?P<pid>\d+))?(?:,"
    r" ?ip=[^()]*)?\) )?"
    r"\b(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+(?P<time>\d\d-\d\d \d\d:\d\d:\d\d)\s+"
    r"(?:\[(?P<source>[^\]\s]+:\d+)\]|(?P<old_source>[\w./-]+:\d+)\]) ?"
)
_PREFIX_IN_THE_LINE: Final = re.compile(
    r"(?<=[^\s(])\((?P<process>[A-Za-z][\w:.-]*) pid=(?P<pid>\d+)[^()]*\) "
)
_TIME: Final = re.compile(r"(?:\d{4}-)?(\d{1,2}?)-?(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_LEVEL_NAMES: Final = {
    "D": "DEBUG",
    "I": "INFO",
    "W": "WARNING",
    "WARN": "WARNING",
    "E": "ERROR",
    "ERR": "ERROR",
    "F": "CRITICAL",
    "C": "CRITICAL",
    "FATAL": "CRITICAL",
    "TRACE": "DEBUG",
}
_LEVELS: Final = ("INFO", "ERROR", "WARNING", "DEBUG", "CRITICAL")
_MOST_PREFIXES: Final = 12
_SECONDS_OF_A_DAY: Final = 86_400
_DAYS_OF_A_MONTH: Final = 31


@dataclass(frozen=True, slots=True)
class Record:
    """One line of one message.

    ``process`` is the innermost named process, ``rank N`` where only a rank is named,
    else empty. ``level`` is empty for what no logger wrote. ``unit`` is equal for lines
    of one logged message, None where that is unknown. ``at_s`` counts seconds within a
    year by the logger's clock, ``outer_at_s`` by the container's. Only differences of
    one clock mean anything. ``index`` is the line's number.
    """

    text: str
    index: int = 0
    process: str = ""
    pid: int | None = None
    level: str = ""
    source: str = ""
    unit: object = None
    at_s: float | None = None
    outer_at_s: float | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        """The same for lines of one process."""
        return self.process, self.pid


def records(lines: Iterable[str]) -> list[Record]:
    """The records of the lines, in order. A line that holds several (JSON with a
    traceback, carriage returns) gives several.
    """
    return [
        record
        for index, line in enumerate(lines)
        for part in line.rstrip("\r\n").split("\r")
        for record in _of_line(part, index)
    ]


def _of_line(line: str, index: int, outer: Record | None = None) -> Iterator[Record]:
    """The records of one line. What it does not say itself is taken from ``outer``, the
    object that it was found in.
    """
    text = (
        _UNSEEN.sub("", _ESCAPE.sub("", line)) if not line.isprintable() or "#033" in line else line
    )
    record = (
        replace(outer, text=text.rstrip()) if outer is not None else Record(text.rstrip(), index)
    )
    loaded, before = _object_in(record)
    if loaded is None:
        # a blank at the end, which prefixes of an empty message need and collectors cut
        # off
        peeled = _peeled(replace(record, text=record.text + " "))
        yield replace(peeled, text=peeled.text.rstrip())
    else:
        yield from _of_object(loaded, before)


def _object_in(record: Record) -> tuple[dict[str, Any] | None, Record]:
    """The JSON object that the line is, with what a container wrote before it. None for
    a line that only holds one.
    """
    text = record.text
    if not text.endswith("}") or "{" not in text:
        return None, record
    before, brace, inside = text.partition("{")
    outer = _without_prefixes(replace(record, text=before + brace))
    if outer.text != brace or outer.level != record.level:
        return None, record
    try:
        loaded = json.loads(brace + inside)
    except (ValueError, RecursionError):
        return None, record
    known = isinstance(loaded, dict) and any(
        _member(loaded, what) is not None for what in ("message", "traces")
    )
    return (loaded if known else None), outer


def _peeled(record: Record) -> Record:
    """The record with its text behind every prefix."""
    found = _VLLM.search(record.text) if any(level in record.text for level in _LEVELS) else None
    if found is not None:
        record = _with(record, found, record.text[found.end() :])
        return (
            replace(record, text=_REPEATED.sub("", record.text))
            if "[repeated " in record.text
            else record
        )
    if "%|" in record.text and (inside := _PREFIX_IN_THE_LINE.search(record.text)) is not None:
        record = replace(record, text=record.text[inside.start() :])
    record = _without_prefixes(record)
    return (
        replace(record, text=_REPEATED.sub("", record.text))
        if "[repeated " in record.text
        else record
    )


def _without_prefixes(record: Record) -> Record:
    for _ in range(_MOST_PREFIXES):
        if not log_patterns.starts_with("prefixes", record.text):
            break
        match = next(
            (
                match
                for prefix in log_patterns.patterns("prefixes")
                if (match := prefix.regex.match(record.text))
            ),
            None,
        )
        if match is None:
            break
        groups = match.groupdict()
        record = _with(record, match, groups.get("text") or record.text[match.end() :])
        if groups.get("level"):
            break
    return record


def _with(record: Record, match: re.Match[str], text: str) -> Record:
    """The record with what the prefix says. An inner process takes the place of an
    outer one. A rank alone does not.
    """
    groups = match.groupdict()
    process, pid, rank = groups.get("process") or "", groups.get("pid"), groups.get("rank")
    named = bool(process or pid)
    if pid and not process:
        # Ray names a worker by its pid alone until it has an actor
        process = "RayWorker"
    if named and rank is not None:
        process = f"{process} rank {rank}".strip()
    elif not named and rank is not None and not record.process:
        process = f"rank {rank}"
    level = (groups.get("level") or "").upper()
    level = _LEVEL_NAMES.get(level, level)
    source = groups.get("source") or groups.get("old_source") or ""
    at_s, outer_at_s = record.at_s, record.outer_at_s
    if level:
        at_s = _seconds(groups.get("time"))
    elif at_s is None and outer_at_s is None:
        outer_at_s = _seconds(match.group())
    return replace(
        record,
        text=text,
        process=process or record.process,
        pid=(
            int(pid)
            if pid is not None
            else (None if process and process != record.process else record.pid)
        ),
        level=level or record.level,
        source=source or record.source,
        unit=(level, source, groups.get("time")) if level else record.unit,
        at_s=at_s,
        outer_at_s=outer_at_s,
    )


def _seconds(text: str | None) -> float | None:
    match = _TIME.search(text) if text else None
    if match is None:
        return None
    month, day, hour, minute, second = map(int, match.groups())
    return float(
        (month * _DAYS_OF_A_MONTH + day) * _SECONDS_OF_A_DAY + hour * 3600 + minute * 60 + second
    )


def _member(loaded: Mapping[str, Any], what: str) -> Any:
    """The object's member for ``what``, by its known names, nested ones (``log.level``)
    included. None when it has none.
    """
    for name in log_patterns.document()["json"][what]:
        value: Any = loaded.get(name)
        for part in () if value is not None else name.split("."):
            inner = loaded if value is None else value
            value = inner.get(part) if isinstance(inner, Mapping) else None
            if value is None:
                break
        if value not in (None, "", {}):
            return value
    return None


def _of_object(loaded: Mapping[str, Any], outer: Record) -> Iterator[Record]:
    """The records of a JSON object: its message, then its tracebacks. A message that is
    itself a line of a log is read as one.
    """
    level = str(_member(loaded, "level") or "").upper()
    process, pid = _member(loaded, "process"), _member(loaded, "pid")
    base = replace(
        outer,
        process=process if isinstance(process, str) else outer.process,
        pid=(
            int(pid)
            if isinstance(pid, int) or (isinstance(pid, str) and pid.isdigit())
            else outer.pid
        ),
        level=_LEVEL_NAMES.get(level, level) or outer.level,
        # the object of a log driver (docker's json-file) is a line, not a message
        unit=("object", outer.index) if level else outer.unit,
        at_s=_seconds(str(_member(loaded, "time") or "")) if level else outer.at_s,
    )
    for line in str(_member(loaded, "message") or "").rstrip("\n").split("\n"):
        yield from _of_line(line, outer.index, base)
    given = [
        loaded[name]
        for name in log_patterns.document()["json"]["traces"]
        if isinstance(loaded.get(name), str | list)
    ]
    nested = _member(loaded, "traces")
    for trace in given or ([nested] if isinstance(nested, str) else []):
        for line in (
            (trace if isinstance(trace, str) else "\n".join(map(str, trace)))
            .rstrip("\n")
            .split("\n")
        ):
            yield replace(base, text=line.rstrip())
