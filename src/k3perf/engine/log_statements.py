"""Records of a log to what its processes said of failures: exceptions with their whole
message, aborts, refusals, plain errors.

Each process's lines are read for themselves, since processes write into one file at
once. What no process signed is read as one more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from k3perf.engine import log_patterns
from k3perf.engine.log_record import Record

ERROR_LEVELS: Final = ("ERROR", "CRITICAL")
_TRACEBACK: Final = "Traceback (most recent call last):"
_CHAINS: Final = (
    "The above exception was the direct cause",
    "During handling of the above exception",
)
_MARGIN: Final = re.compile(r"^\s*(?:[+|]-?|\+-\+-+ \d+ -+|\+-+$)(?: |$)")
_FRAME: Final = re.compile(r'^\s*File ".*", line \d+|^\s*File “')
_PROCESS_ENDS: Final = re.compile(r"^Process (?P<name>[\w:.-]+):$")
# behind a traceback any class counts, elsewhere one that looks like a class of
# exceptions
_ANY_CLASS: Final = re.compile(r"^[A-Za-z_][\w.<>]*(?:\([\w.]+\))?(?::(?:\s.*)?)?$")
_A_CLASS: Final = re.compile(
    r"^(?!\S*Warning\b)(?:[A-Za-z_][\w<>]*\.)*"
    r"(?:[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Expired|Refused|Failed)(?:\([\w.]+\))?(?::(?:\s|$)|$)"
    r"|(?<=\.)[A-Z]\w*(?:\([\w.]+\))?:\s)"
)
_LONGEST_MESSAGE: Final = 400  # lines
_LONGEST_LOOSE_MESSAGE: Final = 40  # lines, where nothing says which belong together
_LONGEST_TRACEBACK: Final = 4_000  # lines


class Kind(Enum):
    """What sort of statement it is."""

    EXCEPTION = "exception"
    ABORT = "abort"
    REFUSAL = "refusal"
    ERROR = "error"


@dataclass(slots=True)
class Statement:
    """What one process said at one place.

    ``messages`` are the exceptions of a chain in the order of the log, each its lines
    (first the class). Other kinds have one message. ``header`` is what was said before
    a traceback. ``first`` and ``last`` are positions among the records.
    """

    kind: Kind
    first: int
    last: int
    record: Record
    messages: list[list[str]]
    header: str = ""
    traceback: bool = False
    direct_cause: bool = False
    process: str = ""

    @property
    def text(self) -> str:
        """The last message on one line."""
        return " ".join(line.strip() for line in self.messages[-1])


@dataclass(slots=True)
class _Stream:
    """One process's records, with their positions in the log."""

    positions: list[int] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


def statements(records: Sequence[Record]) -> list[Statement]:
    """All statements of the log, in the order of their beginning."""
    streams: dict[tuple[str, int | None], _Stream] = {}
    for position, record in enumerate(records):
        stream = streams.setdefault(record.key, _Stream())
        stream.positions.append(position)
        stream.records.append(record)
    found = [
        statement for stream in streams.values() for statement in _Reader(stream, records).read()
    ]
    return sorted(found, key=lambda statement: statement.first)


def looks_like_exception(text: str) -> bool:
    """A line that names a class of exceptions at its beginning."""
    return _A_CLASS.match(text) is not None


class _Reader:
    """Walks over one stream. ``_at`` is the line to read next."""

    def __init__(self, stream: _Stream, log: Sequence[Record]) -> None:
        self._positions = stream.positions
        self._records = stream.records
        self._log = log
        self._at = 0
        self._found: list[Statement] = []

    def read(self) -> list[Statement]:
        """All statements of the stream."""
        while self._at < len(self._records):
            record = self._records[self._at]
            if record.level and record.level not in ERROR_LEVELS:
                self._at += 1
            elif _TRACEBACK in record.text:
                self._traceback(header=record.text.partition(_TRACEBACK)[0])
            elif record.level:
                self._logged()
            else:
                self._unlogged(record.text)
        return self._found

    def _text(self, at: int) -> str:
        return self._records[at].text

    def _add(self, kind: Kind, first: int, messages: list[list[str]], **more: object) -> Statement:
        statement = Statement(
            kind,
            self._positions[first],
            self._positions[self._at - 1],
            self._records[first],
            messages,
        )
        statement.process = statement.record.process
        for name, value in more.items():
            setattr(statement, name, value)
        self._found.append(statement)
        return statement

    def _logged(self) -> None:
        """One logged message: up to its traceback, its exception, or its end."""
        first = self._at
        unit = self._records[first].unit
        while (
            self._at < len(self._records)
            and self._records[self._at].unit == unit
            and self._at - first < _LONGEST_MESSAGE
        ):
            text = self._text(self._at)
            header = " ".join(
                self._text(at).strip()
                for at in range(first, self._at)
                if not self._text(at).startswith((" ", "\t"))
            )
            if _TRACEBACK in text:
                self._traceback(header=f"{header} {text.partition(_TRACEBACK)[0]}".strip())
                return
            if looks_like_exception(text) and not log_patterns.matches("aborts", text):
                self._exception(header)
                return
            self._at += 1
        lines = [self._text(at) for at in range(first, self._at)]
        kind = Kind.ABORT if log_patterns.matches("aborts", lines[0]) else Kind.ERROR
        self._add(kind, first, [lines])

    def _unlogged(self, text: str) -> None:
        """A line that no logger wrote."""
        first = self._at
        if looks_like_exception(text):
            self._exception("")
            return
        self._at += 1
        if not text or text[0].isspace():
            return
        if log_patterns.matches("aborts", text):
            lines = [text, *self._further_abort_lines(text)]
            self._add(Kind.ABORT, first, [lines])
        elif log_patterns.matches_one(text, "deaths", "second_hand"):
            self._add(Kind.ERROR, first, [[text]])
        elif log_patterns.matches("refusals", text):
            self._add(Kind.REFUSAL, first, [[text]])

    def _further_abort_lines(self, text: str) -> list[str]:
        """What a dying process says more: the text of the C++ exception, other
        handlers' lines, each once. Stacks in between are omitted.
        """
        lines: list[str] = []
        end = self._at
        for at in range(self._at, min(self._at + _LONGEST_MESSAGE, len(self._records))):
            further = self._text(at)
            if self._records[at].level and not log_patterns.matches("aborts", further):
                break
            if further.lstrip().startswith("what():") or log_patterns.matches("aborts", further):
                if further != text and further not in lines:
                    lines.append(further)
                end = at + 1
            elif (
                further.strip()
                and not further[0].isspace()
                and not log_patterns.matches("noise", further)
            ):
                break
        self._at = end
        return lines

    def _exception(self, header: str) -> None:
        """An exception without the traceback's beginning."""
        first = self._at
        self._at += 1
        messages = [[self._text(first)]]
        self._message(messages, first)
        self._add(Kind.EXCEPTION, first, messages, header=header)

    def _traceback(self, header: str) -> None:
        """A traceback and those chained to it, to the end of the last message."""
        first = self._at
        messages: list[list[str]] = []
        direct_cause = False
        while True:
            grouped = (
                self._text(self._at).lstrip().startswith(("+ Exception Group", "| Traceback", "+-"))
            )
            self._at += 1
            if not self._frames(first, grouped):
                break
            messages.append([self._inner(self._at, grouped)])
            self._at += 1
            self._message(messages, first, grouped=grouped)
            chained = (
                self._chained(first)
                if (embedded := self._embedded(messages[-1], first)) is None
                else embedded
            )
            if chained is None:
                break
            direct_cause = direct_cause or chained
        header, process = self._header(header, first)
        if messages:
            self._add(
                Kind.EXCEPTION,
                first,
                messages,
                header=header,
                traceback=True,
                direct_cause=direct_cause,
            )
            self._found[-1].process = process or self._found[-1].process

    def _inner(self, at: int, grouped: bool) -> str:
        text = self._text(at)
        return _MARGIN.sub("", text) if grouped else text

    def _frames(self, first: int, grouped: bool) -> bool:
        """Go to the exception's line. False, behind the frames, where there is none."""
        after_frame = False
        while self._at < len(self._records) and self._at - first < _LONGEST_TRACEBACK:
            record = self._records[self._at]
            text = self._inner(self._at, grouped)
            if _TRACEBACK in text and self._at > first + 1 and not after_frame:
                return False
            if record.level not in (self._records[first].level, ""):
                return False
            if _PROCESS_ENDS.match(text) or text.startswith(_CHAINS):
                return False
            indented = not text or text[0].isspace()
            if (
                not indented
                and not _FRAME.match(text)
                and not after_frame
                and _ANY_CLASS.match(text)
            ):
                return True
            # where blanks at the beginnings were lost, the line below a frame is code
            after_frame = not indented and _FRAME.match(text) is not None
            self._at += 1
        return False

    def _message(self, messages: list[list[str]], first: int, *, grouped: bool = False) -> None:
        """Take the further lines of the last of ``messages``. An exception behind
        frames inside it (Ray quotes so) is a separate message.
        """
        unit, level = self._records[first].unit, self._records[first].level
        begin, framed = self._at, False
        longest = _LONGEST_MESSAGE if unit is not None else _LONGEST_LOOSE_MESSAGE
        while self._at < len(self._records) and self._at - begin < longest:
            record = self._records[self._at]
            text = self._inner(self._at, grouped)
            if (
                (unit is not None and record.unit != unit)
                or record.level != level
                or self._ends_message(text, unit is not None)
            ):
                return
            if grouped and text == self._text(self._at) and not text.startswith(" "):
                return
            framed = framed or _FRAME.match(text) is not None
            if framed and _ANY_CLASS.match(text) and looks_like_exception(text):
                messages.append([text])
                framed = False
            else:
                messages[-1].append(text)
            self._at += 1

    def _ends_message(self, text: str, logged: bool) -> bool:
        if _TRACEBACK in text or text.startswith(_CHAINS):
            return True
        if logged:
            return log_patterns.matches("fatal_headers", text) and not text.startswith((" ", "\t"))
        if log_patterns.matches_one(text, "boundaries", "aborts", "deaths"):
            return True
        return looks_like_exception(text) and log_patterns.matches_one(text, "second_hand", "ended")

    def _embedded(self, message: list[str], first: int) -> Literal[False] | None:
        """Whether a traceback stands inside the logged message that was just read: what
        a pool's or compiler's child raised.
        """
        unit = self._records[first].unit
        if (
            unit is None
            or self._at >= len(self._records)
            or self._records[self._at].unit != unit
            or _TRACEBACK not in self._text(self._at)
        ):
            return None
        announced = any(line.rstrip().endswith((":", '"""')) for line in message)
        return False if announced else None

    def _chained(self, first: int) -> bool | None:
        """Step over the sentence that joins two tracebacks: True for a direct cause,
        False for another join, None where there is none.
        """
        at = self._at
        joined: bool | None = None
        group = False
        while at < len(self._records) and at - self._at < 6:
            text = _MARGIN.sub("", self._text(at)).strip()
            if self._records[at].level != self._records[first].level:
                return None
            if text.startswith(_CHAINS):
                joined = text.startswith(_CHAINS[0])
            elif _TRACEBACK in text:
                group = self._text(at).lstrip().startswith(("|", "+"))
                if joined is None and not group:
                    return None
                self._at = at
                return bool(joined)
            elif text and not _MARGIN.match(self._text(at)):
                return None
            at += 1
        return None

    def _header(self, header: str, first: int) -> tuple[str, str]:
        """What was said before the traceback, and the process that it names, where the
        traceback's own lines do not say."""
        if header.strip() or not self._records[first].level:
            before = self._text(first - 1) if first > 0 else ""
            header = header.strip() or before.strip()
        if not self._records[first].level:
            ends = next(
                (
                    match
                    for at in range(max(first - 1, 0), first)
                    if (match := _PROCESS_ENDS.match(self._text(at)))
                ),
                None,
            )
            if ends is not None:
                return header, "" if self._records[first].process else ends["name"]
            return self._spoken_before(header, first)
        return header, ""

    def _spoken_before(self, header: str, first: int) -> tuple[str, str]:
        """A formatter that signs only a message's first line: the line before, in the
        whole log, may be that one.
        """
        position = self._positions[first]
        before = self._log[position - 1] if position > 0 else None
        while before is not None and not before.text.strip() and position > 1:
            position -= 1
            before = self._log[position - 1]
        if (
            before is None
            or before.level not in ERROR_LEVELS
            or self._records[first].process
            or before.text.startswith((" ", "\t"))
        ):
            return header, ""
        if looks_like_exception(before.text) or log_patterns.matches_one(
            before.text, "deaths", "second_hand"
        ):
            return header, ""
        return before.text.strip(), before.process
