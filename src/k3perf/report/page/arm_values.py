"""The absolute values of both arms of a measured cell. Pure."""

from __future__ import annotations

from statistics import median

from k3perf.records.measurement import CellMeasurement
from k3perf.records.samples import Arm


def arm_value(measurement: CellMeasurement, arm: Arm, metric: str) -> tuple[float | None, int]:
    """Median over the arm's valid sessions of each session's median valid round (of a
    SESSION metric its value), and the number of sessions.
    """
    values = []
    for session in measurement.arm(arm):
        if session.invalid_reasons:
            continue
        rounds = [
            value.value
            for measured in session.rounds
            if not measured.invalid_reasons
            and (value := measured.values.get(metric)) is not None
            and value.value is not None
        ]
        single = session.values.get(metric)
        if rounds:
            values.append(median(rounds))
        elif single is not None and single.value is not None:
            values.append(single.value)
    return (median(values) if values else None), len(values)


def measured_metrics(measurement: CellMeasurement) -> list[str]:
    """Every metric with a value in a valid session, in the table's order."""
    from k3perf.records.metric_definitions import METRICS

    return [
        name
        for name in METRICS
        if any(arm_value(measurement, arm, name)[1] for arm in (Arm.CANDIDATE, Arm.REFERENCE))
    ]
