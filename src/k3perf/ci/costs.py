"""What a cell's measurement takes: recorded seconds of earlier runs, and a price for
every cell. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from k3perf.config.suite import Cell
from k3perf.records.samples import Arm, SessionRecord
from k3perf.units import ns_to_s

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# What a session's rounds or a start are assumed to take before any run has recorded one
# like it.
UNRECORDED_SESSION_S = 300.0
UNRECORDED_START_S = 120.0


class RecordedCosts(BaseModel):
    """Wall time of earlier runs, in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    schema_version: Literal[1] = 1
    """Version of this file's format."""
    runs: tuple[str, ...] = ()
    """Ids of the runs that were read."""
    engine_start_s: dict[str, Seconds] = Field(default_factory=dict)
    """Median start of each engine, by `target/config`."""
    session_s: dict[str, Seconds] = Field(default_factory=dict)
    """Median of one session's rounds by cell id, warm-up and the reference's rounds
    included.
    """

    def over(self, earlier: RecordedCosts) -> RecordedCosts:
        """These costs, and the earlier ones of engines and cells that these do not
        have.
        """
        return RecordedCosts(
            runs=tuple(sorted({*earlier.runs, *self.runs})),
            engine_start_s=dict(sorted({**earlier.engine_start_s, **self.engine_start_s}.items())),
            session_s=dict(sorted({**earlier.session_s, **self.session_s}.items())),
        )


def record_costs(sessions: Iterable[SessionRecord], *, runs: Iterable[str] = ()) -> RecordedCosts:
    """The median start of each engine, and for each cell the median time from a
    session's first round to the last of it and of its reference's.

    A start that serves several sessions counts once. Give sessions that ended: one that
    was cut short counts as a short one.
    """
    starts: dict[str, dict[str, float]] = {}
    pairs: dict[tuple[str, str], list[SessionRecord]] = {}
    for session in sessions:
        start_s = sum(stage.duration_s for stage in session.stages)
        if (
            start_s > 0 and session.arm is Arm.CANDIDATE
        ):  # a reference's session bears its cell's names, its engine is another config's
            starts.setdefault(f"{session.target}/{session.config}", {})[
                f"{session.started_at_utc} {start_s}"
            ] = start_s
        if session.rounds:
            # a pair's two sessions belong to one cell, the candidate's
            pairs.setdefault((session.pair_id or session.session_id, session.workload), []).append(
                session
            )
    cells: dict[str, list[float]] = {}
    for members in pairs.values():
        for candidate in (member for member in members if member.arm is Arm.CANDIDATE):
            rounds = [record for member in members for record in member.rounds]
            span_s = ns_to_s(
                max(record.end_ns for record in rounds) - min(record.start_ns for record in rounds)
            )
            cells.setdefault(
                f"{candidate.target}-{candidate.config}-{candidate.workload}", []
            ).append(span_s)
    return RecordedCosts(
        runs=tuple(sorted(set(runs))),
        engine_start_s={
            key: _rounded_s(median(values.values())) for key, values in sorted(starts.items())
        },
        session_s={key: _rounded_s(median(values)) for key, values in sorted(cells.items())},
    )


def _rounded_s(duration_s: float) -> float:
    """To tenths, at least one: no cost is 0."""
    return max(round(duration_s, 1), 0.1)


class CostBasis(StrEnum):
    """What a cell's seconds rest on. All but MEASURED is an estimate, and shown as
    one.
    """

    MEASURED = "measured"  # sessions of this very cell
    RELATED = "related"  # other configs of its target and workload
    ASSUMED = "assumed"  # nothing like it was ever recorded


@dataclass(frozen=True, slots=True)
class CostModel:
    """Recorded seconds, with the median of the nearest recorded relatives where a cell
    has none.

    ``recording``: the run takes ``record_sessions`` of each cell (None: the target's
    ``baseline_sessions``), and judges nothing. ``confirming``: a judged cell takes the
    second session that proves a loss. ``spent``: mean sessions of earlier nights
    (``ci.nights.sessions_spent``). ``pace``: real over priced time, by hardware class.
    """

    recorded: RecordedCosts
    recording: bool = False
    record_sessions: int | None = None
    confirming: bool = False
    spent: Mapping[str, float] = field(default_factory=dict)
    pace: Mapping[str, float] = field(default_factory=dict)

    def basis(self, cell: Cell) -> CostBasis:
        """What ``cell_s`` rests on."""
        if cell.cell_id in self.recorded.session_s:
            return CostBasis.MEASURED
        return CostBasis.RELATED if self._related_s(cell) else CostBasis.ASSUMED

    def cell_s(self, cell: Cell) -> float:
        """Seconds to measure the cell once its engine is ready. A judged session after
        the first starts every engine again. An undecided cell buys more, so this is no
        limit.
        """
        known = self.recorded.session_s.get(cell.cell_id)
        if known is None:
            near = self._related_s(cell)
            known = median(near) if near else UNRECORDED_SESSION_S
        count = self.session_count(cell)
        starts_s = 0.0 if self.recording else (count - 1) * self._starts_s(cell)
        return self._paced(cell, count * known + starts_s)

    def engine_s(self, cell: Cell) -> float:
        """Seconds of the starts that all cells of the engine share. A recording starts
        it once a session. The reference config's cells bear the resident reference.
        """
        count = self.session_count(cell) if self.recording else 1.0
        resident = cell.config.name == cell.target.reference
        start_s = self._starts_s(cell) if resident else self.start_s(cell)
        return self._paced(cell, count * start_s)

    def session_count(self, cell: Cell) -> float:
        """Sessions of the cell that the price counts."""
        plan = cell.target.measurement
        if self.recording:
            return self.record_sessions or plan.baseline_sessions
        least = max(plan.minimum_sessions, 2 if self.confirming else 1)
        spent = self.spent.get(cell.cell_id, self.spent.get(f"{cell.target.name}/", least))
        return max(plan.minimum_sessions, spent)

    def _paced(self, cell: Cell, duration_s: float) -> float:
        return duration_s * self.pace.get(cell.target.hardware.hardware_class, 1.0)

    def _starts_s(self, cell: Cell) -> float:
        """One start of every engine of a session."""
        return self.start_s(cell) + (
            self._start_of_s(cell.target.name, cell.target.reference)
            if cell.target.measurement.mode == "reference"
            else 0.0
        )

    def _related_s(self, cell: Cell) -> list[float]:
        """Sessions of other configs. A config's name has no dash, so it cannot be taken
        for a part of a target's or workload's name.
        """
        cell_of_any_config = re.compile(
            f"{re.escape(cell.target.name)}-[a-z0-9_]+-{re.escape(cell.workload.name)}"
        )
        return [
            cost
            for key, cost in self.recorded.session_s.items()
            if cell_of_any_config.fullmatch(key)
        ]

    def start_s(self, cell: Cell) -> float:
        """Seconds from process start to ready."""
        return self._start_of_s(cell.target.name, cell.config.name)

    def _start_of_s(self, target: str, config: str) -> float:
        known = self.recorded.engine_start_s.get(f"{target}/{config}")
        if known is not None:
            return known
        near = [
            cost
            for key, cost in self.recorded.engine_start_s.items()
            if key.startswith(f"{target}/")
        ]
        return median(near) if near else UNRECORDED_START_S
