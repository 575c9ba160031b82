"""TTFT and inter-token times as empirical distributions, from the samples of
``results.jsonl``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from k3perf.metrics.latency import latency_observations
from k3perf.records.measurement import CellMeasurement
from k3perf.records.samples import Arm, RequestSample
from k3perf.report.page.material import RunMaterial
from k3perf.units import NS_PER_MS

if TYPE_CHECKING:
    import numpy as np

KINDS: Final = {"ttft": "TTFT", "itl": "time between tokens"}
_POINTS: Final = 100


def distributions(material: RunMaterial, measurement: CellMeasurement) -> list[dict[str, Any]]:
    """For each kind and arm: p50 and p99, the number of observations, and the curve.
    Of valid rounds only. Empty without samples.
    """
    found = []
    for arm in (Arm.REFERENCE, Arm.CANDIDATE):
        samples = list(_samples(material, measurement, arm))
        observed = latency_observations(samples)
        for kind, label in KINDS.items():
            values_ms = _sorted_ms(observed[kind].values_ns, observed[kind].weights)
            if len(values_ms):
                name = "base" if measurement.mode == "ab" and arm is Arm.REFERENCE else str(arm)
                found.append(_curve(label, name, values_ms))
    return found


def _samples(
    material: RunMaterial, measurement: CellMeasurement, arm: Arm
) -> Iterable[RequestSample]:
    for session in measurement.arm(arm):
        record = material.sessions.get(session.session_id)
        if record is None or session.invalid_reasons:
            continue
        valid = {one.round_index for one in session.rounds if not one.invalid_reasons}
        for measured in record.rounds:
            if measured.round_index in valid:
                yield from measured.samples


def _sorted_ms(values_ns: list[float], weights: list[int]) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.sort(np.repeat(np.asarray(values_ns, dtype=np.float64) / NS_PER_MS, weights))


def _curve(kind: str, arm: str, values_ms: np.ndarray[Any, Any]) -> dict[str, Any]:
    """At most ``_POINTS`` order statistics, dense in the upper tail."""
    import numpy as np

    count = len(values_ms)
    body = np.linspace(0.0, 1.0, _POINTS // 2)
    tail = 1.0 - np.geomspace(0.2, 1.0 / count, _POINTS // 2) if count > 5 else body
    places = np.unique(np.round(np.concatenate((body, tail)) * (count - 1)).astype(int))
    p50, p99 = (float(value) for value in np.percentile(values_ms, (50, 99)))
    return {
        "kind": kind,
        "arm": arm,
        "n": count,
        "p50": p50,
        "p99": p99,
        "points": [
            [float(values_ms[place]), float((place + 1) / count)] for place in places.tolist()
        ],
    }
