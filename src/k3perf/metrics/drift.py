"""Whether a measurement can be compared with a baseline, and the differences of two
resolved configurations.

Which keys count is decided where the configuration is read, not here. Only what older
files have in it and is environment now is excluded.
"""

from __future__ import annotations

from collections.abc import Mapping

from k3perf.metrics.environment import without_environment
from k3perf.metrics.resolved import ABSENT
from k3perf.records.baseline import Baseline
from k3perf.records.measurement import CellMeasurement
from k3perf.records.verdict import ConfigDifference


def config_differences(
    approved: Mapping[str, object], resolved: Mapping[str, object]
) -> tuple[ConfigDifference, ...]:
    """Every key whose value differs in value or type (1, 1.0 and True differ), sorted
    by key.
    """
    if approved is resolved:
        return ()
    was, now = (without_environment(_flat(side)) for side in (approved, resolved))
    return tuple(
        ConfigDifference(key=key, was=was.get(key, ABSENT), now=now.get(key, ABSENT))
        for key in sorted(was.keys() | now.keys())
        if key not in was or key not in now or not _same(was[key], now[key])
    )


def _flat(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested mappings to dotted keys: ``{"cache": {"block_size": 16}}`` and
    ``{"cache.block_size": 16}`` give the same. Lists are values.
    """
    flat: dict[str, object] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _same(was: object, now: object) -> bool:
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(map(_same, was, now))
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        return was.keys() == now.keys() and all(_same(was[key], now[key]) for key in was)
    return type(was) is type(now) and (was == now or (was != was and now != now))  # noqa: PLR0124 - NaN stays NaN


def mismatch(baseline: Baseline | None, measurement: CellMeasurement) -> str:
    """Why the baseline cannot be compared with. Empty: it can."""
    cell = f"{measurement.target}/{measurement.config}"
    if baseline is None:
        return f"no baseline is committed for {cell}"
    if (baseline.target, baseline.config) != (measurement.target, measurement.config):
        return f"the baseline is of {baseline.target}/{baseline.config}, the measurement of {cell}"
    workload = baseline.workload(measurement.workload)
    if workload is None:
        return f"the baseline of {cell} knows no workload {measurement.workload!r}"
    if workload.plan_digest != measurement.plan_digest:
        return (
            f"the plan of {measurement.workload!r} changed: {workload.plan_digest} was recorded,"
            f" {measurement.plan_digest} was measured"
        )
    classes = other_class(baseline, measurement)
    if classes and measurement.mode == "baseline":
        return f"the baseline of {cell} was {classes}; absolute numbers do not carry over"
    return ""


def other_class(baseline: Baseline, measurement: CellMeasurement) -> str:
    """How the hardware classes differ. Empty: they do not."""
    was, now = baseline.hardware_class, measurement.hardware_class
    return "" if was == now else f"recorded on hardware class {was!r}, measured on {now!r}"
