"""``measurements.json`` of a run, the input of ``k3perf baseline propose``.

Reading and writing are exact for finite numbers. A value that is not finite has no JSON
form: it is written as null and counted under ``excluded`` as ``not_finite``.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from k3perf.documents import read_record
from k3perf.metrics.environment import FORMERLY_LOCKED, environment_of, without_environment
from k3perf.records.measurement import CellMeasurement, MeasurementFile, SessionMetrics
from k3perf.store.atomic import replace_file


def read_measurement_file(path: Path) -> MeasurementFile:
    """Read one ``measurements.json``. Missing, unreadable, truncated or malformed:
    ``ConfigFileError`` with the next step.
    """
    file = read_record(
        MeasurementFile,
        path,
        "Give the measurements.json that a finished run wrote.",
        "a measurement file",
    )
    return replace(file, cells=tuple(_updated(cell) for cell in file.cells))


def write_measurement_file(path: Path, file: MeasurementFile) -> None:
    """The file appears whole or not at all."""
    data = asdict(file, dict_factory=_written)
    replace_file(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def _written(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One record. An engine's log stays in the verdict and in results.jsonl."""
    data = {name: value for name, value in pairs if name != "failure"}
    for name, value in pairs:
        if isinstance(value, float) and not math.isfinite(value):
            data[name] = None
            if "excluded" in data:
                data["excluded"]["not_finite"] = 1
    return data


def _updated(cell: CellMeasurement) -> CellMeasurement:
    """Older files have what they know of the environment in ``resolved_config``."""
    if not any(FORMERLY_LOCKED.keys() & session.resolved_config for session in cell.sessions):
        return cell
    return replace(cell, sessions=tuple(_with_environment(session) for session in cell.sessions))


def _with_environment(session: SessionMetrics) -> SessionMetrics:
    return replace(
        session,
        resolved_config=without_environment(session.resolved_config),
        environment=environment_of(session.environment, session.resolved_config),
    )
