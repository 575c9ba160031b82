"""What the report of a run is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from k3perf.records.baseline import Baseline
from k3perf.records.measurement import CellMeasurement, MeasurementFile
from k3perf.records.samples import SessionRecord
from k3perf.records.verdict import CellVerdict, VerdictDocument


@dataclass(frozen=True, slots=True)
class RunMaterial:
    """One run's files, read. ``measurements`` None, no ``sessions`` and no
    ``experiment``: the file is missing, and the page says what is therefore missing.

    ``prefix``: what the names of its files start with, where several runs are in one
    page. ``sessions``: of ``results.jsonl`` by id. ``baselines``: by target and config.
    """

    verdict: VerdictDocument
    prefix: str = ""
    measurements: MeasurementFile | None = None
    sessions: Mapping[str, SessionRecord] = field(default_factory=dict)
    experiment: Mapping[str, str] = field(default_factory=dict)
    baselines: Mapping[tuple[str, str], Baseline] = field(default_factory=dict)

    def measurement(self, cell: CellVerdict) -> tuple[int, CellMeasurement] | None:
        """The cell's measurement with its place in the file."""
        wanted = (cell.target, cell.config, cell.workload)
        for place, found in enumerate(self.measurements.cells if self.measurements else ()):
            if (found.target, found.config, found.workload) == wanted:
                return place, found
        return None

    def baseline(self, cell: CellVerdict) -> Baseline | None:
        """What the cell was judged by. None in ``ab`` mode, which compares two
        engines.
        """
        return None if cell.mode == "ab" else self.baselines.get((cell.target, cell.config))
