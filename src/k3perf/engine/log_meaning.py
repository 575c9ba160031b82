"""What the statements of a log mean: a process's own words, a death, a quotation, a
lost peer, a second-hand report, or nothing.

It omits what a process survived, what a client's request did, and what is only
reported.
"""

from __future__ import annotations

import signal
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from k3perf.engine import log_patterns
from k3perf.engine.cause_text import chosen_message, joined
from k3perf.engine.log_record import Record
from k3perf.engine.log_statements import ERROR_LEVELS, Kind, Statement, statements

_ORDINARY_LEVELS: Final = ("INFO", "DEBUG")
_SHELL_SIGNAL_BASE: Final = 128  # a shell's status above it is a signal
_READ_LINES: Final = 40  # of a message, for what it means
_CLOCK_SLACK_S: Final = 60.0
_HEADER_REACH: Final = 40  # records back, where the traceback's beginning is lost
# How long, or for how many ordinary lines, a process lived on: it survived what it said
# before.
_LIVED_ON_S: Final = 10.0
_LIVED_ON_LINES: Final = 3
_LIVED_ON_UNSIGNED_LINES: Final = 10
_LIVED_ON_AFTER_FATAL_S: Final = 60.0
_LIVED_ON_AFTER_FATAL_LINES: Final = 50


class Meaning(Enum):
    """What a statement is good for, as a cause."""

    OWN = "its own exception, abort or refusal"
    DEATH = "who died, and perhaps how"
    QUOTE = "what another said, quoted"
    LOST_PEER = "its own exception, which says that a peer is gone"
    ERROR = "a logged error without an exception"
    ENDED = "it was asked to end"
    SECOND_HAND = "another's failure, reported"


_SURVIVABLE: Final = (Meaning.OWN, Meaning.LOST_PEER, Meaning.ERROR, Meaning.QUOTE)


@dataclass(slots=True)
class Said:
    """A statement with what it means.

    ``depth`` is how deep its process is in the tree (worker 3, core 2, API server 1,
    unknown 0). ``marked``: its process certainly ended behind it. ``victim`` and the
    fields below are those of a death: who, and how, as ``Popen.returncode`` counts.
    """

    statement: Statement
    depth: int
    at_s: float | None
    marked: bool = False
    death: bool = False
    victim: str = ""
    victim_pid: int | None = None
    code: int | None = None

    @property
    def position(self) -> int:
        """Where it begins, among the records."""
        return self.statement.first

    @property
    def head(self) -> str:
        """The first line of its message."""
        return chosen_message(self.statement)[0].strip()


def depth_of(process: str, record: Record | None = None, header: str = "") -> int:
    """How deep a process is in the tree, by its name, else by its line's file."""
    for text in (process, record.source if record is not None else "", header):
        found = log_patterns.first("depths", text) if text else None
        if found is not None:
            return int(found[0].given["depth"])
    return 0


def filled_times(log: Sequence[Record]) -> list[float | None]:
    """The time of each record. One without a time has that of the record before it."""
    inner = any(record.at_s is not None for record in log)
    filled: list[float | None] = []
    last: float | None = None
    for record in log:
        own = record.at_s if inner else record.outer_at_s
        last = own if own is not None else last
        filled.append(last)
    return filled


def gap_s(before_s: float | None, after_s: float | None) -> float | None:
    """Seconds between two times. None where unknown, or the clock was set back."""
    if before_s is None or after_s is None or after_s < before_s - _CLOCK_SLACK_S:
        return None
    return after_s - before_s


class Meanings:
    """The statements of one log by what they mean, each sort in the log's order."""

    def __init__(self, log: Sequence[Record]) -> None:
        self._log = log
        self._times = filled_times(log)
        self._ordinary: dict[tuple[str, int | None], list[int]] = {}
        self._deep_ordinary: list[int] = []
        for position, record in enumerate(log):
            if record.level in _ORDINARY_LEVELS and not log_patterns.matches("ending", record.text):
                self._ordinary.setdefault(record.key, []).append(position)
                if depth_of(record.process, record) > 1:
                    self._deep_ordinary.append(position)
        self._served = next(
            (
                at
                for at in range(len(log) - 1, -1, -1)
                if log_patterns.matches("serves", log[at].text)
            ),
            -1,
        )
        self._sorted: dict[Meaning, list[Said]] = {meaning: [] for meaning in Meaning}
        previous: Said | None = None
        for statement in statements(log):
            previous = self._said(statement, previous)
            meaning = self._meaning(previous)
            if meaning is not None and not (meaning in _SURVIVABLE and self._went_on(previous)):
                self._sorted[meaning].append(previous)

    def of(self, meaning: Meaning) -> list[Said]:
        """All statements of this meaning."""
        return self._sorted[meaning]

    def _said(self, statement: Statement, previous: Said | None) -> Said:
        record = statement.record
        if statement.traceback and not statement.header and previous is not None:
            before = previous.statement
            if record.unit is not None and (before.record.key, before.record.unit) == (
                record.key,
                record.unit,
            ):
                statement.header = (
                    before.header
                )  # a note of an exception is its traceback once more
        header = statement.header
        said = Said(
            statement, depth_of(statement.process, record, header), self._times[statement.first]
        )
        uncaught = (
            statement.kind is Kind.EXCEPTION
            and not record.level
            and not header.startswith("Exception in thread")
        )
        said.marked = (
            uncaught
            or statement.kind in (Kind.ABORT, Kind.REFUSAL)
            or record.level == "CRITICAL"
            or log_patterns.matches("fatal_headers", header)
            or self._follows_fatal_header(statement)
        )
        if statement.kind in (Kind.ERROR, Kind.EXCEPTION):
            _note_death(said)
        return said

    def _follows_fatal_header(self, statement: Statement) -> bool:
        """The line before, of the same process, says that it is the end: it was logged
        for itself, or the traceback's beginning is lost.
        """
        for position in range(statement.first - 1, max(statement.first - _HEADER_REACH, -1), -1):
            record = self._log[position]
            if record.key == statement.record.key:
                return record.level in ERROR_LEVELS and log_patterns.matches(
                    "fatal_headers", record.text
                )
        return False

    @staticmethod
    def _meaning(said: Said) -> Meaning | None:
        statement, head = said.statement, said.head
        text = joined(chosen_message(statement)[:_READ_LINES])
        if log_patterns.matches("reported_only", statement.header) or _is_request(said, text):
            return None
        second_hand = log_patterns.matches("second_hand", head) or log_patterns.matches(
            "points_elsewhere", text
        )
        if said.death and (
            statement.kind is Kind.ERROR or second_hand or log_patterns.matches("deaths", head)
        ):
            return Meaning.DEATH
        if log_patterns.matches("quotes", head):
            return Meaning.QUOTE
        if second_hand:
            return Meaning.SECOND_HAND
        if log_patterns.matches("ended", head):
            return Meaning.ENDED
        if statement.kind is Kind.ERROR:
            accompanies = log_patterns.matches_one(head, "accompany", "fatal_headers")
            return None if accompanies else Meaning.ERROR
        lost_peer = statement.kind is not Kind.REFUSAL and log_patterns.matches("lost_peers", text)
        return Meaning.LOST_PEER if lost_peer else Meaning.OWN

    def _went_on(self, said: Said) -> bool:
        """Its process logged ordinary lines afterwards, or the engine served on."""
        statement = said.statement
        signed = bool(statement.process and statement.record.process)
        ordinary = self._ordinary.get(statement.record.key, []) if signed else self._deep_ordinary
        later_count = len(ordinary) - bisect_right(ordinary, statement.last)
        fatal = said.marked and signed
        lines, seconds = (
            (_LIVED_ON_AFTER_FATAL_LINES, _LIVED_ON_AFTER_FATAL_S)
            if fatal
            else (_LIVED_ON_LINES, _LIVED_ON_S)
        )
        if statement.kind is Kind.ERROR and signed:
            lines = 1
        elif said.marked and not signed:
            lines = _LIVED_ON_UNSIGNED_LINES
        lived_s = gap_s(said.at_s, self._times[ordinary[-1]]) if later_count else None
        if (lived_s is not None and lived_s >= seconds) or later_count >= lines:
            return True
        served_s = (
            gap_s(said.at_s, self._times[self._served]) if self._served > statement.last else None
        )
        return served_s is not None and served_s >= _LIVED_ON_AFTER_FATAL_S


def _is_request(said: Said, text: str) -> bool:
    """What one client's request did."""
    if log_patterns.matches("request_errors", f"{said.statement.header} {text}"):
        return True
    source = said.statement.record.source
    files = (
        entry for entry in log_patterns.patterns("request_errors") if entry.given.get("by_source")
    )
    return bool(source) and any(entry.regex.search(source) for entry in files)


def _note_death(said: Said) -> None:
    statement = said.statement
    messages = statement.messages if statement.kind is Kind.EXCEPTION else statement.messages[-1:]
    found = log_patterns.first(
        "deaths", " ".join(joined(message[:_READ_LINES]) for message in messages)
    )
    if found is None:
        return
    groups = {name: value for name, value in found[1].groupdict().items() if value is not None}
    said.death = True
    said.victim = groups.get("victim", "")
    said.victim_pid = int(groups["pid"]) if "pid" in groups else None
    said.code = _exit_code(groups, found[0].given.get("signal"))


def _exit_code(groups: dict[str, str], name: str | None) -> int | None:
    name = groups.get("signal", name)
    if name is not None:
        return -getattr(signal, name) if hasattr(signal, name) else None
    if "number" in groups:
        return -int(groups["number"])
    status = groups.get("status") or groups.get("status2")
    if status is not None:
        return (
            int(status) if int(status) <= _SHELL_SIGNAL_BASE else _SHELL_SIGNAL_BASE - int(status)
        )
    return None if groups.get("code") in (None, "None") else int(groups["code"])
