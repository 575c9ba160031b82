"""How long a run still takes: recorded seconds of earlier runs, corrected by what this
run took so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3perf.ci.costs import CostBasis, CostModel, RecordedCosts
from k3perf.config.suite import Cell
from k3perf.run.progress import RoundDone, Step
from k3perf.run.settings import RunSettings


def recorded_costs(suite_root: Path) -> RecordedCosts:
    """``costs.json`` of the suite; empty where there is none that can be read, since it
    is only an estimate.
    """
    try:
        return RecordedCosts.model_validate_json((suite_root / "costs.json").read_bytes())
    except (OSError, ValueError):
        return RecordedCosts()


def sessions_to_record(cells: Sequence[Cell], settings: RunSettings) -> int:
    """How many sessions of each cell a recording takes."""
    return settings.record_sessions or max(
        cell.target.measurement.baseline_sessions for cell in cells
    )


def planned_steps(cells: Sequence[Cell], settings: RunSettings) -> tuple[Step, ...]:
    """The steps of a run: one for each cell, or in a recording one for each cell of
    each session.

    A cell that needs the same engine as the one before it costs no start.
    """
    recorded = recorded_costs(settings.suite.root)
    costs = CostModel(recorded)
    steps = []
    engine: tuple[str, str] | None = None
    for cell in cells:
        start_s = 0.0 if engine == (cell.target.name, cell.config.name) else costs.start_s(cell)
        engine = (cell.target.name, cell.config.name)
        count = cell.target.measurement.minimum_sessions
        if costs.basis(cell) is CostBasis.ASSUMED:
            steps.append(Step(cell.cell_id, None, 1 if settings.record else count))
        elif settings.record:
            session_s = recorded.session_s.get(cell.cell_id, costs.cell_s(cell) / count)
            steps.append(Step(cell.cell_id, session_s + start_s))
        else:
            steps.append(Step(cell.cell_id, costs.cell_s(cell) + start_s, count))
    return tuple(steps) * (sessions_to_record(cells, settings) if settings.record else 1)


@dataclass(slots=True)
class _Current:
    index: int
    started_s: float
    wanted_sessions: int
    marked_s: float | None = None  # when the first round of the session ended
    rounds_since_count: int = 0
    rounds_left_count: int = 0


class TimeLeft:
    """Fed with a run's steps and rounds; ``seconds`` estimates what is left. ``clock``
    gives seconds.
    """

    def __init__(self, steps: Sequence[Step], clock: Callable[[], float] = time.monotonic) -> None:
        self._steps = tuple(steps)
        self._clock = clock
        self._open = list(range(len(self._steps)))
        self._current: _Current | None = None
        self._took: list[tuple[Step, float]] = []

    @property
    def count(self) -> int:
        """How many steps there are."""
        return len(self._steps)

    @property
    def number(self) -> int:
        """Which step is under way, from 1; the last one that ended between two; 0
        before the first.
        """
        return len(self._steps) - len(self._open)

    def start(self, cell: str) -> None:
        """The next step of ``cell`` begins."""
        index = next((index for index in self._open if self._steps[index].cell == cell), None)
        if index is not None:
            self._open.remove(index)
            self._current = _Current(index, self._clock(), self._steps[index].sessions_count)

    def round(self, done: RoundDone) -> None:
        """A round ended: the rounds that its session still needs take as long each as
        those before.
        """
        now = self._current
        if now is None:
            return
        if done.number == 0 or now.marked_s is None:
            now.marked_s, now.rounds_since_count = self._clock(), 0
        else:
            now.rounds_since_count += 1
        now.rounds_left_count = max(0, done.wanted_count - done.valid_count) * done.arm_count

    def want(self, sessions_count: int, rounds_left_count: int) -> None:
        """More was asked for: so many sessions in all, and so many rounds in the
        present one.
        """
        if self._current is not None:
            self._current.wanted_sessions = max(self._current.wanted_sessions, sessions_count)
            self._current.rounds_left_count = max(0, rounds_left_count)

    def finish(self, *, measured: bool) -> None:
        """The step under way ended; one that was not measured says nothing about the
        pace.
        """
        if self._current is not None and measured:
            self._took.append(
                (self._steps[self._current.index], self._clock() - self._current.started_s)
            )
        self._current = None

    def seconds(self) -> float | None:
        """Seconds left, None while nothing is known of a step that is still to come."""
        parts = [self._expected_s(self._steps[index]) for index in self._open]
        if self._current is not None:
            parts.append(self._current_s(self._current))
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def _expected_s(self, step: Step) -> float | None:
        """Its recorded seconds at the pace of this run; where none are recorded, what a
        step of this run took on average.
        """
        recorded = [
            (known.expected_s, took_s)
            for known, took_s in self._took
            if known.expected_s is not None
        ]
        if step.expected_s is not None:
            return step.expected_s * (
                sum(took_s for _, took_s in recorded) / sum(known for known, _ in recorded)
                if recorded
                else 1.0
            )
        return sum(took_s for _, took_s in self._took) / len(self._took) if self._took else None

    def _current_s(self, now: _Current) -> float | None:
        step = self._steps[now.index]
        expected_s = self._expected_s(step)
        left_s = None
        if expected_s is not None:
            left_s = expected_s * now.wanted_sessions / step.sessions_count - (
                self._clock() - now.started_s
            )
        if now.marked_s is None or now.rounds_since_count == 0:
            return (
                left_s if left_s is not None and left_s > 0 else None
            )  # it took longer already: how long is unknown
        rounds_s = now.rounds_left_count * (self._clock() - now.marked_s) / now.rounds_since_count
        return max(rounds_s, left_s or 0.0)


def duration_text(duration_s: float) -> str:
    """A rough duration in words: ``5 s``, ``40 s``, ``3 min``, ``1 h 20 min``."""
    if duration_s < 90:
        return f"{max(5, 5 * round(duration_s / 5))} s"
    minutes = round(duration_s / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
