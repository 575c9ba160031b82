"""How long a recording goes on: until the declared tolerances can be tested, or a limit
is reached. What it needs is said before it starts and after its second session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from k3perf.baselines.need import Need, need_after, need_of
from k3perf.config.suite import Cell
from k3perf.errors import UsageError
from k3perf.records.baseline import Baseline
from k3perf.records.measurement import CellMeasurement, SessionMetrics
from k3perf.run.run_parts import RunParts
from k3perf.run.time_left import duration_text, planned_steps, sessions_to_record
from k3perf.store.baselines import read_target_baselines

FIRST_KNOWN = 2
"""Sessions after which the noise between sessions is known at all."""


class RecordingNeed:
    """Made for one recording. ``clock`` gives seconds."""

    def __init__(self, parts: RunParts, clock: Callable[[], float] = time.monotonic) -> None:
        self._parts = parts
        self._clock = clock
        self._started_s = clock()
        self._planned_count = sessions_to_record(parts.cells, parts.settings)
        self.expected_count = self._planned_count
        """Sessions of each cell in all, as is known so far."""
        self._fixed = parts.settings.record_sessions is not None
        self._limit_s = 60 * parts.settings.record_minutes
        self._committed: dict[str, tuple[Baseline, ...]] = {
            name: tuple(read_target_baselines(parts.settings.baselines_directory, name))
            for name in dict.fromkeys(cell.target.name for cell in parts.cells)
        }

    def say_before(self) -> None:
        """What the tolerances need at the noise of the committed baselines."""
        suite, settings = self._parts.settings.suite, self._parts.settings
        steps = planned_steps(self._parts.cells, settings)[: len(self._parts.cells)]
        known = [step.expected_s for step in steps if step.expected_s is not None]
        round_s = sum(known) if len(known) == len(steps) else None
        for target, committed in self._committed.items():
            asked = self._configs(target)
            try:
                need = need_of(suite, target, committed, asked)
            except UsageError:
                need = None
            if need is None:
                text = (
                    f"{target}: no noise of these configs is recorded; how many sessions the"
                    f" tolerances need is known after session {FIRST_KNOWN}"
                )
            else:
                text = need.text() + self._takes(need.sessions_count, "", round_s)
            self._parts.progress.note(text)
        self._parts.progress.note(self._plan_text())

    def goes_on(
        self, done_count: int, sessions: Mapping[str, Sequence[SessionMetrics]], broken: set[str]
    ) -> bool:
        """Whether another session of every cell is recorded. ``sessions``: by cell id,
        what was recorded so far. ``broken``: ids of cells that failed.
        """
        needs = self._needs(done_count, sessions, broken) if done_count >= FIRST_KNOWN else []
        session_s = (self._clock() - self._started_s) / max(done_count, 1)
        if done_count == FIRST_KNOWN:
            for need in needs:
                takes = self._takes(need.missing_count, " more", session_s)
                self._parts.progress.note(f"after {done_count} sessions: {need.text()}{takes}")
        if self._parts.settings.record_within_minutes is not None:
            return not self._fixed or done_count < self._planned_count
        if done_count < self._planned_count:
            return True
        return self._wants_more(done_count, needs, session_s)

    def _wants_more(self, done_count: int, needs: Sequence[Need], session_s: float) -> bool:
        """After the planned sessions: what is short, and whether that is recorded."""
        say = self._parts.progress.note
        for need in needs if done_count > FIRST_KNOWN else ():
            if need.missing_count or need.hopeless:
                say(f"after {done_count} sessions: {need.text()}")
        missing_count = max((need.missing_count for need in needs), default=0)
        if not missing_count and any(need.hopeless for need in needs):
            say(
                "`k3perf baseline propose --only-testable` gates what this noise can test, at the"
                " least lock and memory"
            )
        elif needs and not missing_count:
            say(f"recorded {done_count} sessions of each cell: every tolerance can be tested")
        if not missing_count:
            return False
        if self._fixed:
            say("--k3-sessions ends the recording here; without it, it would go on")
            return False
        if self._clock() - self._started_s + session_s > self._limit_s:
            say(
                f"another session would exceed --k3-record-minutes"
                f" {self._parts.settings.record_minutes:g}; record again with more, and propose"
                " both results together"
            )
            return False
        return True

    def _needs(
        self, done_count: int, sessions: Mapping[str, Sequence[SessionMetrics]], broken: set[str]
    ) -> list[Need]:
        found = []
        for target, committed in self._committed.items():
            cells: dict[str, list[CellMeasurement]] = {}
            for cell in self._parts.cells:
                if cell.target.name == target and cell.cell_id not in broken:
                    cells.setdefault(cell.config.name, []).append(
                        self._measured(cell, sessions[cell.cell_id])
                    )
            need = need_after(self._parts.settings.suite, target, cells, committed)
            if need is not None:
                found.append(need)
        missing = max((need.missing_count for need in found), default=0)
        self.expected_count = max(self._planned_count, done_count + missing)
        return found

    def _measured(self, cell: Cell, sessions: Sequence[SessionMetrics]) -> CellMeasurement:
        return replace(self._parts.nothing(cell), sessions=tuple(sessions))

    def _configs(self, target: str) -> set[str]:
        return {cell.config.name for cell in self._parts.cells if cell.target.name == target}

    def _plan_text(self) -> str:
        within = self._parts.settings.record_within_minutes
        if within is not None:
            most = f"at most {self._planned_count} sessions" if self._fixed else "sessions"
            return f"recording {most} of each cell in turn for {within:g} min (--k3-record-within)"
        if self._fixed:
            return f"recording {self._planned_count} sessions of each cell (--k3-sessions)"
        return (
            f"recording at least {self._planned_count} sessions of each cell, then until the"
            f" tolerances can be tested or {self._limit_s / 60:g} min are over"
            " (--k3-record-minutes)"
        )

    def _takes(self, count: int, more: str, session_s: float | None) -> str:
        """How long so many sessions of every cell take."""
        if not count:
            return ""
        if session_s is None:
            return "; how long that takes is not known yet"
        return f"; that takes about {duration_text(count * session_s)}{more}"
