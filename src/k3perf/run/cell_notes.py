"""What a reader of a measured cell should know beside its verdict: scaling efficiency,
the spread of its ranks, the clocks of its devices.

Notes are reported and judge nothing. Reads the scaling bases' baseline files; writes
none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from k3perf.baselines.scaling import ScalingBase
from k3perf.config.models import TargetSpec
from k3perf.config.suite import Cell, Suite
from k3perf.metrics.quality import NOT_DECLARED
from k3perf.metrics.ranks import DeviceClocks, clock_note, device_clocks, memory_note
from k3perf.records.measurement import CellMeasurement
from k3perf.records.samples import Arm, RankMemory, SessionRecord
from k3perf.records.verdict import CellVerdict
from k3perf.store.baselines import read_target_baselines
from k3perf.units import ns_to_s


def read_scaling_base(
    suite: Suite, target: TargetSpec, baselines_directory: Path
) -> ScalingBase | None:
    """The target's scaling base with its committed baselines; None when it names none.
    Raises ConfigFileError for an unusable file.
    """
    if target.scaling_base is None:
        return None
    base = suite.target(target.scaling_base)
    return ScalingBase(suite, target, base, read_target_baselines(baselines_directory, base.name))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a session's record is kept for: samples of a whole run would be too many."""

    memory: tuple[RankMemory, ...]
    clocks: DeviceClocks
    quality: str


class CellNotes:
    """The notes of one run's cells. ``see`` every session's record, then ``add`` them
    to the cell's verdict.
    """

    def __init__(self, suite: Suite, baselines_directory: Path) -> None:
        self._suite = suite
        self._baselines_directory = baselines_directory
        self._bases: dict[str, ScalingBase | None] = {}
        self._seen: dict[str, _Seen] = {}

    def check_inputs(self, cell: Cell) -> None:
        """Read what the cell's efficiency will rest on. Raises ConfigFileError for a
        baseline file that cannot be used.
        """
        self._base(cell)

    def see(self, record: SessionRecord) -> None:
        """Called as often as a session is written down; the last record counts, since
        peaks and rounds are in it.
        """
        self._seen[record.session_id] = _Seen(
            record.memory, device_clocks(record.rounds), quality_note(record)
        )

    def add(self, cell: Cell, measurement: CellMeasurement, verdict: CellVerdict) -> CellVerdict:
        """The verdict with the cell's notes after its own."""
        valid = [
            session.session_id
            for session in measurement.arm(Arm.CANDIDATE)
            if not session.invalid_reasons
        ]
        seen = [self._seen[session_id] for session_id in valid if session_id in self._seen]
        base = self._base(cell)
        notes = [base.of_measurement(measurement).text] if base is not None else []
        notes += [memory_note([entry.memory for entry in seen], cell.target.parallelism.rank_count)]
        notes += (
            [clock_note([entry.clocks for entry in seen])]
            if cell.target.hardware.device_count > 1
            else []
        )
        notes += [entry.quality for entry in seen[-1:]]
        return replace(verdict, notes=(*verdict.notes, *(note for note in notes if note)))

    def _base(self, cell: Cell) -> ScalingBase | None:
        name = cell.target.name
        if name not in self._bases:
            self._bases[name] = read_scaling_base(
                self._suite, cell.target, self._baselines_directory
            )
        return self._bases[name]


def quality_note(record: SessionRecord) -> str:
    """What the answers were compared with, the control arm, and the pass's share of the
    session's time. Empty without a comparison.
    """
    found = record.quality
    if found is None or not found.values:
        return ""
    times_ns = [(one.start_ns, one.end_ns) for one in record.rounds]
    rounds_s = ns_to_s(max(end for _, end in times_ns) - times_ns[0][0]) if times_ns else 0.0
    whole_s = sum(one.duration_s for one in record.stages) + rounds_s + found.duration_s
    floor = found.values.get("quality_floor_kl_nats")
    shown = "unknown" if floor is None or floor.value is None else f"{floor.value:.2g} nats"
    reasons = (one.reason for one in found.values.values())
    missing = dict.fromkeys(one for one in reasons if one not in ("", NOT_DECLARED))
    absent = f"; not compared: {'; '.join(missing)}" if missing else ""
    return (
        f"answers compared with {found.reference}; control arm {shown}; the pass took"
        f" {found.duration_s:.1f} s, {found.duration_s / whole_s:.0%} of the session{absent}"
    )
