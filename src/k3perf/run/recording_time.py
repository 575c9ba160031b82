"""The hard limit of a recording (``--k3-record-within``): no session starts that would
end later. What a session takes is learnt from those before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from k3perf.ci.costs import CostBasis, CostModel
from k3perf.config.suite import Cell
from k3perf.run.settings import RunSettings
from k3perf.run.time_left import recorded_costs

MARGIN: Final = 1.1
"""A session may take this much longer than the last one of its cell."""


class RecordingTime:
    """Made when the recording begins. ``clock`` gives seconds. Without the option every
    session fits.
    """

    def __init__(self, settings: RunSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_minutes = settings.record_within_minutes
        self._clock = clock
        self._started_s = clock()
        self._took_s: dict[str, float] = {}
        self._costs = CostModel(recorded_costs(settings.suite.root))

    @property
    def limited(self) -> bool:
        """Whether the option was given."""
        return self._limit_minutes is not None

    @property
    def left_s(self) -> float:
        """Seconds until the limit, infinite without one; negative after it."""
        if self._limit_minutes is None:
            return float("inf")
        return self._started_s + 60 * self._limit_minutes - self._clock()

    def fits(self, cell: Cell) -> bool:
        """Whether another session of the cell would end in time."""
        return self.left_s > MARGIN * self.expected_s(cell)

    def fitting(self, cells: Sequence[Cell]) -> tuple[Cell, ...]:
        """Those of ``cells`` with a session that would end in time, in order."""
        return tuple(cell for cell in cells if self.fits(cell))

    def took(self, cell: Cell, duration_s: float) -> None:
        """A session of the cell took so long, its engine's start included."""
        self._took_s[cell.cell_id] = duration_s

    def expected_s(self, cell: Cell) -> float:
        """What a session takes: as the cell's last one, as costs.json has it, as the
        longest of this recording, else 0.
        """
        if cell.cell_id in self._took_s:
            return self._took_s[cell.cell_id]
        if self._costs.basis(cell) is CostBasis.ASSUMED:
            return max(self._took_s.values(), default=0.0)
        session_s = self._costs.recorded.session_s.get(cell.cell_id)
        if session_s is None:
            session_s = self._costs.cell_s(cell) / cell.target.measurement.minimum_sessions
        return session_s + self._costs.start_s(cell)

    def text(self) -> str:
        """The limit, for messages."""
        return f"{self._limit_minutes:g} min (--k3-record-within)"
