"""Measured rounds handed to pytest-benchmark, so that its JSON and histogram hold this
suite's numbers.

pytest-benchmark times a function itself. Rounds are bought one by one while the gate is
undecided, so by the time their number is known they are over. The benchmark therefore
replays them: its timer is a clock that stands still but for the replayed round, which
moves it by exactly the duration that was measured.
"""

from __future__ import annotations

from typing import Any

from k3perf.records.measurement import CellMeasurement
from k3perf.records.samples import Arm
from k3perf.records.verdict import MetricVerdict


class ReplayClock:
    """A timer in seconds that only ``advance`` moves."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        """The replayed time in seconds."""
        return self._now_s

    def advance(self, duration_s: float) -> None:
        """Move the clock on."""
        self._now_s += duration_s


def carry(
    benchmark: Any,
    clock: ReplayClock,
    measurement: CellMeasurement,
    metrics: tuple[MetricVerdict, ...],
) -> None:
    """Give the benchmark fixture the durations of the candidate's valid rounds and, as
    ``extra_info``, every metric value and outcome.
    """
    durations_s = [
        entry.duration_s
        for session in measurement.arm(Arm.CANDIDATE)
        for entry in session.rounds
        if entry.duration_s is not None and not entry.invalid_reasons
    ]
    if not durations_s:
        return
    pending = iter(durations_s)
    benchmark.pedantic(lambda: clock.advance(next(pending)), rounds=len(durations_s), iterations=1)
    benchmark.extra_info["target"] = measurement.target
    benchmark.extra_info["config"] = measurement.config
    benchmark.extra_info["workload"] = measurement.workload
    benchmark.extra_info["plan_digest"] = measurement.plan_digest
    benchmark.extra_info["sessions"] = [
        {
            "session_id": session.session_id,
            "rounds": [
                {name: value.value for name, value in entry.values.items()}
                for entry in session.rounds
            ],
            "values": {name: value.value for name, value in session.values.items()},
        }
        for session in measurement.arm(Arm.CANDIDATE)
    ]
    benchmark.extra_info["outcomes"] = {metric.metric: str(metric.outcome) for metric in metrics}
