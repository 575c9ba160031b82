"""Which of a log's statements says why the engine died: the process that failed first,
in its own words.

Every level of vLLM reports its child's death again, peers complain of the one that left
them, and a process that is killed says nothing. In order of preference: a process's own
exception, abort or refusal that explains the first death, a quotation of it, a lost
peer's word where no other death explains that, who died and by which signal, a logged
error, the end that was asked for, a second-hand report.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from typing import Final

from k3perf.engine import log_patterns
from k3perf.engine.cause_text import LONGEST_CAUSE, cause_text, shortened
from k3perf.engine.log_meaning import Meaning, Meanings, Said, depth_of, gap_s
from k3perf.engine.log_record import Record, records
from k3perf.engine.log_statements import Kind
from k3perf.engine.root_cause import RootCause, describe_end

_NEAR_S: Final = 60.0  # a failure and the death that it causes are seconds apart
_NEAR_LINES: Final = 400
_LAST_WORDS_LINES: Final = 40
_AT_THE_END_LINES: Final = 5
_WORKER_DEPTH: Final = 3
_ENDED_BY_OTHERS: Final = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, 0)
_ABORT_SIGNALS: Final = tuple(
    -getattr(signal, f"SIG{name}") for name in ("ABRT", "SEGV", "BUS", "ILL", "FPE", "TRAP")
)


def find_root_cause(lines: Iterable[str]) -> RootCause | None:
    """The cause that the lines of a log tell. None where nothing in them is one."""
    log = records(lines)
    begins = [
        at for at, record in enumerate(log) if log_patterns.matches("beginnings", record.text)
    ]
    last_life = _Choice(log[begins[-1] :]).made() if len(begins) > 1 else None
    return last_life or _Choice(log).made()


class _Choice:
    """Chooses among the statements of one log."""

    def __init__(self, log: Sequence[Record]) -> None:
        self._log = log
        self._meanings = Meanings(log)
        self._deaths = self._meanings.of(Meaning.DEATH)
        # the first end by a signal that no parent sends, or with an exit status: who
        # ends its children reports those too
        self._death = next(
            (
                said
                for said in self._deaths
                if said.code is not None and said.code not in _ENDED_BY_OTHERS
            ),
            None,
        )

    def made(self) -> RootCause | None:
        """The cause, or None."""
        death = self._death
        own = [
            said
            for said in self._meanings.of(Meaning.OWN)
            if death is None or self._explains(said, death)
        ]
        if own:
            return self._own_words(_first_own(own))
        quotes = self._meanings.of(Meaning.QUOTE)
        if quotes and (death is None or quotes[0].position < death.position):
            return _of(quotes[0], second_hand=True)
        if death is None:
            return self._without_a_death()
        lost = next(
            (said for said in self._meanings.of(Meaning.LOST_PEER) if _died_of_it(said, death)),
            None,
        )
        if lost is not None:
            return self._own_words(lost)
        return self._before(death) or self._passed_on(death) or _of_death(death)

    def _before(self, death: Said) -> RootCause | None:
        """Last words in no known form of the one that died. A killed one has none."""
        if death.code == -signal.SIGKILL:
            return None
        logged = [
            said
            for said in self._meanings.of(Meaning.ERROR)
            if said.position < death.position
            and said.depth in (0, _victim_depth(death))
            and _same(said, death) is not False
        ]
        if logged and (death.code or 0) > 0:
            return self._own_words(logged[-1])
        words = self._last_words(death.position, _LAST_WORDS_LINES)
        return (
            words
            if words is not None
            and (not words.process or not death.victim or words.process == death.victim)
            else None
        )

    def _passed_on(self, death: Said) -> RootCause | None:
        """A report before an exit with a status: the child failed first."""
        reports = [
            said
            for said in self._meanings.of(Meaning.SECOND_HAND)
            if said.position < death.position
        ]
        return _of(reports[0], second_hand=True) if reports and (death.code or 0) > 0 else None

    def _without_a_death(self) -> RootCause | None:
        """No line says how a process ended. What is written after the first report of a
        failure follows from that failure.
        """
        named = [
            said
            for said in self._deaths
            if said.code is None and (said.victim or said.victim_pid is not None)
        ]
        if named and self._deaths[0].code is None:
            return _of_death(named[0])
        reports = [*self._meanings.of(Meaning.SECOND_HAND), *self._deaths]
        reported = min((said.position for said in reports), default=len(self._log))
        before = {
            meaning: [
                said
                for said in self._meanings.of(meaning)
                if said.position < reported or said.statement.process.startswith("Ray")
            ]
            for meaning in (Meaning.LOST_PEER, Meaning.ERROR, Meaning.ENDED)
        }
        if before[Meaning.LOST_PEER]:
            return self._own_words(before[Meaning.LOST_PEER][0])
        if before[Meaning.ERROR]:
            deepest = max(said.depth for said in before[Meaning.ERROR])
            return self._own_words(
                [said for said in before[Meaning.ERROR] if said.depth == deepest][-1]
            )
        for found in (before[Meaning.ENDED], reports):
            if found:
                return _of(min(found, key=lambda said: said.position), second_hand=True)
        return self._last_words(len(self._log), _AT_THE_END_LINES)

    def _explains(self, said: Said, death: Said) -> bool:
        """Whether the death follows from what was said."""
        code = death.code or 0
        if said.position > death.position:
            # what is written after a death follows from it; only an abort's own words
            # may come late
            return (
                said.statement.kind is Kind.ABORT and code in _ABORT_SIGNALS and _near(death, said)
            )
        near, same = _near(said, death), _same(said, death)
        if code > 0:
            return said.marked or (near and said.depth >= _victim_depth(death))
        if said.statement.kind is Kind.ABORT:
            return code in _ABORT_SIGNALS and near and same is not False
        if same or (same is None and said.depth == 0):
            return said.marked or (near and code != -signal.SIGKILL)
        if said.depth > _victim_depth(death):
            return said.marked or near
        if said.statement.record.key == death.statement.record.key or said.depth < _victim_depth(
            death
        ):
            return said.marked
        # a peer that complains first, unless its failure was reported before the death
        reports = (*self._meanings.of(Meaning.SECOND_HAND), *self._meanings.of(Meaning.QUOTE))
        return (same is None and said.marked) or any(
            said.position < report.position < death.position for report in reports
        )

    def _last_words(self, end: int, reach: int) -> RootCause | None:
        """The first of the last group of unlogged complaints before ``end``."""
        found: Record | None = None
        for position in range(end - 1, max(end - 1 - reach, -1), -1):
            record = self._log[position]
            if record.level and found is not None:
                break
            if record.level or not record.text.strip() or record.text[0].isspace():
                continue
            if log_patterns.matches_one(
                record.text, "noise", "boundaries", "second_hand", "deaths"
            ):
                continue
            if log_patterns.matches("complaints", record.text):
                found = record
        if found is None:
            return None
        return RootCause(
            shortened([found.text], LONGEST_CAUSE),
            found.process,
            found.pid,
            self._death.code if self._death else None,
        )

    def _own_words(self, said: Said) -> RootCause:
        ends = [death for death in self._deaths if death.code is not None and _same(said, death)]
        if not ends and not said.statement.process:
            ends = [death for death in self._deaths if death.code is not None]
        end = ends[0] if ends else None
        process = said.statement.process or (end.victim if end is not None else "")
        return RootCause(
            cause_text(said.statement),
            process,
            said.statement.record.pid,
            end.code if end is not None else None,
        )


def _of(said: Said, *, second_hand: bool) -> RootCause:
    process = said.victim or said.statement.process
    return RootCause(
        cause_text(said.statement), process, said.victim_pid, said.code, second_hand=second_hand
    )


def _of_death(said: Said) -> RootCause:
    end = f"; {describe_end(said.code)}" if said.code is not None and said.code < 0 else ""
    return RootCause(
        cause_text(said.statement, suffix=end),
        said.victim,
        said.victim_pid,
        said.code,
        second_hand=True,
    )


def _first_own(own: Sequence[Said]) -> Said:
    """The first behind which its process certainly ended. Rather one before it, near it
    and deeper, of which that is likely.
    """
    marked = next((said for said in own if said.marked), None)
    if marked is None:
        deepest = max(said.depth for said in own)
        return next(said for said in reversed(own) if said.depth == deepest)
    before = [said for said in own if not said.marked and said.position < marked.position]
    likely = [said for said in before if said.depth > marked.depth and _near(said, marked)]
    return likely[-1] if likely else marked


def _near(before: Said, after: Said) -> bool:
    apart_s = gap_s(before.at_s, after.at_s)
    return (
        apart_s <= _NEAR_S
        if apart_s is not None
        else after.position - before.position <= _NEAR_LINES
    )


def _died_of_it(lost: Said, death: Said) -> bool:
    """The one that lost its peer is the one that died."""
    same, code = _same(lost, death), death.code or 0
    return same or (same is None and code in _ABORT_SIGNALS) or (code > 0 and same is not False)


def _victim_depth(death: Said) -> int:
    return (depth_of(death.victim) if death.victim else 0) or _WORKER_DEPTH


def _same(said: Said, death: Said) -> bool | None:
    """Whether the one that spoke is the one that died. None where names are silent."""
    process, pid = said.statement.process, said.statement.record.pid
    if death.victim_pid is not None and pid is not None:
        return death.victim_pid == pid
    if not process or not death.victim:
        return None
    if process == death.victim:
        return True
    if said.depth != _victim_depth(death):
        return False
    rank, number = _number(process), _number(death.victim)
    return None if rank is None or number is None else rank == number


def _number(name: str) -> int | None:
    """The rank in a worker's name (``VllmWorker-3``, ``Worker_TP3``, ``rank 3``). None
    for one with several numbers or none.
    """
    numbers = re.findall(r"\d+", name)
    return int(numbers[0]) if len(numbers) == 1 else None
