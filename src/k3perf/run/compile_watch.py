"""Was anything compiled inside a round's window? What the log says, what compilers left
on disk, and the compilers themselves.

vLLM's JIT monitor alone cannot tell: it knows three compilers of many. Each of the
three looks sees what the others miss. Where the monitor should watch and is not seen
to, silence is not proof, and the reading has no value. All looks are taken at the
window's edges, outside the measured time.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

from k3perf.engine.jit_monitor import JitMonitor
from k3perf.engine.process_tree import ProcessRow, ProcessTree, name_of
from k3perf.metrics.round_readings import JIT_COMPILES_READING, NOT_OFFERED
from k3perf.records.samples import TelemetryReading
from k3perf.run.served_engine import ServedEngine

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# a compiler uses more; a program that only asks for a path does not
_COMPILER_S: Final = 0.05
_SHOWN: Final = 3
_SHOWN_CHARACTERS: Final = (
    # a verbose line holds the kernel's whole signature; its name stands at the front
    200
)
NEW_FILES: Final = "k3perf_new_compiled_files"

Rows = dict[tuple[int, int], ProcessRow]
"""Processes by pid and start."""


class AsksEveryRank(Protocol):
    """What is asked of the engine's workers."""

    def every_rank(self, method: str, *arguments: object) -> list[dict[str, Any]]:
        """The answers of all ranks."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of compiles in one window.

    ``lines``, ``files`` and ``programs``: one text each for the log's lines, the
    folders with new files and the compilers. ``unreadable``: why a folder could not be
    looked at, empty when all were. ``answered_count``: ranks of ``ranks_count`` that
    have looked, ``greetings_count``: those whose monitor has said that it watches.
    """

    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    files_count: int = 0
    programs: tuple[str, ...] = ()
    unreadable: str = ""
    ranks_count: int = 1
    answered_count: int = 1
    greetings_count: int = 0


class CompileWatch:
    """One round's watch over one engine: made before the window, asked after it.
    Another engine's compilers are not seen.
    """

    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine
        for log in engine.logs:
            log.drain()
        self._start_ns = time.monotonic_ns()
        self._before = [_rows(tree) for tree in engine.trees]

    def seen(self, start_ns: int, end_ns: int, *, probe: AsksEveryRank, ranks_count: int) -> Seen:
        """Look at everything once more. ``start_ns`` and ``end_ns`` are the window's,
        on the monotonic clock.

        Raises EngineError when the engine does not answer.
        """
        answers = probe.every_rank(NEW_FILES, _wall_ns(start_ns), time.time_ns())
        files = dict.fromkeys(
            folder for answer in answers for folder in _texts(answer, "new_folders")
        )
        return Seen(
            lines=tuple(
                line for log in self._engine.logs for line in log.compiles_between(start_ns, end_ns)
            ),
            files=tuple(files),
            files_count=max(
                [len(files), *(int(answer.get("new_count") or 0) for answer in answers)]
            ),
            programs=tuple(
                text
                for tree, before in zip(self._engine.trees, self._before, strict=True)
                for text in self._programs(tree, before)
            ),
            unreadable=_listed(
                tuple(
                    dict.fromkeys(
                        str(answer["problem"]) for answer in answers if answer.get("problem")
                    )
                )
            ),
            ranks_count=ranks_count,
            answered_count=len(answers),
            greetings_count=sum(log.greetings_count for log in self._engine.logs),
        )

    def _programs(self, tree: ProcessTree, before: Rows) -> list[str]:
        """Compilers by name where a look met them, else the CPU time of the
        children that have ended meanwhile.
        """
        after = _rows(tree)  # looks at the tree, and so for compilers
        alive = before.keys() & after.keys()
        met = list(tree.compilers_seen.items())
        found = [
            f"{name} (pid {key[0]})"
            for key, (seen_ns, name) in met
            if seen_ns >= self._start_ns or key in alive
        ]
        if found:
            return found
        return [
            f"children of pid {pid} ({name_of(pid)}) that ended used {used_s:.1f} s of CPU time"
            for pid, ticks in _ticks_of_ended_children(before, after).items()
            if (used_s := ticks / _TICKS_PER_S) >= _COMPILER_S
        ]


def _ticks_of_ended_children(before: Rows, after: Rows) -> dict[int, int]:
    """CPU time, by process that is still there, of its children that have ended since
    ``before``.

    What a child had used by then is not counted: Inductor's idle compile workers end
    after a minute, and did their work before the window.
    """
    grown = {
        key[0]: row.children_ticks - before[key].children_ticks
        for key, row in after.items()
        if key in before
    }
    parents = {key[0]: row.parent_pid for key, row in before.items()}
    for key, row in before.items():
        if key in after:
            continue
        heir: int | None = row.parent_pid
        while heir is not None and heir not in grown:
            heir = parents.get(heir)
        if heir is not None:
            grown[heir] -= row.own_ticks + row.children_ticks
    return grown


def compile_reading(seen: Seen, monitor: JitMonitor) -> TelemetryReading:
    """``jit_compiles_count``: how many compiles were seen at least; None with the
    reason where nothing was seen and something could hide.
    """
    count = max(len(seen.lines), seen.files_count, len(seen.programs))
    if count:
        parts = [
            ("engine log", tuple(line[:_SHOWN_CHARACTERS] for line in seen.lines)),
            ("new in", seen.files),
            ("compilers", seen.programs),
        ]
        source = "; ".join(f"{what}: {_listed(texts)}" for what, texts in parts if texts)
        return TelemetryReading(JIT_COMPILES_READING, float(count), source)
    why = _blind(seen, monitor)
    if why:
        return TelemetryReading(JIT_COMPILES_READING, None, why)
    source = (
        "engine log (JIT monitor, set to verbose by the harness), JIT caches, compiler processes"
    )
    return TelemetryReading(JIT_COMPILES_READING, 0.0, source)


def _blind(seen: Seen, monitor: JitMonitor) -> str:
    """Why silence proves nothing; empty where every compile would have been seen."""
    if seen.unreadable:
        return f"JIT caches: {seen.unreadable}"
    if not monitor.offered and not seen.greetings_count:
        return (
            "JIT caches and compiler processes show none; a JIT monitor of this engine is"
            f" {NOT_OFFERED}"
        )
    if seen.greetings_count < seen.ranks_count:
        return (
            f"engine log: the greeting of vLLM's JIT monitor was seen from {seen.greetings_count}"
            f" of {seen.ranks_count} workers"
        )
    if not monitor.verbose:
        return (
            "engine log: the JIT monitor of this vLLM reports a kernel once. Use a release that has"
            " jit_monitor_verbose"
        )
    if seen.answered_count < seen.ranks_count:
        return (
            f"JIT caches: {seen.answered_count} of {seen.ranks_count} ranks answered; those on"
            " another host cannot be read"
        )
    return ""


def _texts(answer: dict[str, Any], key: str) -> list[str]:
    found = answer.get(key)
    return [str(text) for text in found] if isinstance(found, list) else []


def _listed(texts: tuple[str, ...]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _rows(tree: ProcessTree) -> Rows:
    return {(row.pid, row.start_ticks): row for row in tree.rows().values()}


def _wall_ns(monotonic_ns: int) -> int:
    """A moment of the monotonic clock on the wall clock, which dates files."""
    return time.time_ns() - (time.monotonic_ns() - monotonic_ns)
