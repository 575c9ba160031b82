from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3perf.errors import ConfigFileError
from k3perf.records.measurement import (
    CellMeasurement,
    MeasurementFile,
    MetricValue,
    RoundMetrics,
    SessionMetrics,
)
from k3perf.records.samples import Arm, InvalidReason, TelemetryReading
from k3perf.store.measurements import read_measurement_file, write_measurement_file

finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=8)
values = st.dictionaries(
    names,
    st.builds(
        MetricValue,
        st.none() | finite,
        st.integers(0, 99),
        st.dictionaries(names, st.integers(0, 9)),
    ),
    max_size=3,
)
reasons = st.lists(
    st.builds(InvalidReason, names, names, st.none() | finite, st.none() | finite), max_size=2
).map(tuple)
readings = st.lists(st.builds(TelemetryReading, names, st.none() | finite, names), max_size=2).map(
    tuple
)
rounds = st.lists(
    st.builds(
        RoundMetrics,
        st.integers(0, 20),
        st.none() | st.integers(0, 20),
        values,
        reasons,
        st.none() | finite,
        readings,
    ),
    max_size=3,
).map(tuple)
configs = st.dictionaries(
    names,
    st.none() | st.booleans() | st.integers(-9, 9) | names | st.lists(names, max_size=2),
    max_size=3,
)
sessions = st.lists(
    st.builds(
        SessionMetrics,
        names,
        st.sampled_from(Arm),
        st.none() | names,
        rounds,
        values,
        configs,
        reasons,
        names,
    ),
    max_size=3,
).map(tuple)
measurements = st.builds(
    CellMeasurement,
    names,
    names,
    names,
    st.sampled_from(["baseline", "reference", "ab"]),
    names,
    names,
    sessions,
    reasons,
)


@given(measurements)
def test_a_measurement_survives_the_disk(
    tmp_path_factory: pytest.TempPathFactory, measurement: CellMeasurement
) -> None:
    path = tmp_path_factory.mktemp("run") / "measurements.json"
    write(path, measurement)
    assert read_measurement_file(path).cells == (measurement,)


def one_cell(value: float | None = 1.0) -> CellMeasurement:
    measured = RoundMetrics(0, None, {"ttft_p50_ms": MetricValue(value, 8)})
    session = SessionMetrics("s1", Arm.CANDIDATE, None, (measured,), {}, {"block_size": 16})
    return CellMeasurement("cpu", "default", "short", "baseline", "cpu-x", "abc", (session,))


def test_an_older_file_has_neither_times_nor_readings(tmp_path: Path) -> None:
    data = written(tmp_path)
    session = data["cells"][0]["sessions"][0]
    del (
        session["started_at_utc"],
        session["rounds"][0]["duration_s"],
        session["rounds"][0]["readings"],
    )
    assert reread(tmp_path, data) == one_cell()


def test_an_older_file_has_the_environment_in_its_configuration(tmp_path: Path) -> None:
    data = written(tmp_path)
    session = data["cells"][0]["sessions"][0]
    session["resolved_config"]["version.python"] = "3.11.7"
    del session["environment"]
    (read,) = reread(tmp_path, data).sessions
    assert (read.environment, read.resolved_config) == ({"python": "3.11.7"}, {"block_size": 16})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_without_json_form_becomes_a_counted_null(tmp_path: Path, bad: float) -> None:
    restored = reread(tmp_path, written(tmp_path, one_cell(bad)))
    assert restored.sessions[0].rounds[0].values["ttft_p50_ms"] == MetricValue(
        None, 8, {"not_finite": 1}
    )


@pytest.mark.parametrize("change", [{"extra": 1}, {"schema_version": 2}, {"mode": "guess"}])
def test_unknown_keys_and_versions_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    data = written(tmp_path)
    data["cells"][0] |= change
    with pytest.raises(ConfigFileError) as caught:
        reread(tmp_path, data)
    assert caught.value.key == f"cells.0.{next(iter(change))}"


def written(folder: Path, cell: CellMeasurement | None = None) -> dict[str, Any]:
    write(folder / "measurements.json", cell or one_cell())
    data: dict[str, Any] = json.loads((folder / "measurements.json").read_text())
    return data


def reread(folder: Path, data: dict[str, Any]) -> CellMeasurement:
    path = folder / "measurements.json"
    path.write_text(json.dumps(data, allow_nan=False))
    (cell,) = read_measurement_file(path).cells
    return cell


def write(path: Path, cell: CellMeasurement | None = None) -> None:
    write_measurement_file(
        path,
        MeasurementFile(
            run_id="r1",
            commit="c0ffee",
            created_at_utc="2026-01-02T03:04:05Z",
            identity={"vllm": "0.32.0"},
            cells=(cell or one_cell(),),
        ),
    )


def test_a_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "measurements.json"
    write(path)
    restored = read_measurement_file(path)
    assert restored.cells == (one_cell(),)
    assert (restored.run_id, restored.commit, restored.identity) == (
        "r1",
        "c0ffee",
        {"vllm": "0.32.0"},
    )
    assert [entry.name for entry in path.parent.iterdir()] == ["measurements.json"]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "measurements.json"
    write(path)
    before = path.read_bytes()

    def broken(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="No space"):
        write(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["measurements.json"]


def test_a_missing_file_names_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=r"file not found.*finished run"):
        read_measurement_file(tmp_path / "none.json")


def test_truncated_unreadable_and_wrong_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "measurements.json"
    write(path)
    whole = path.read_bytes()
    for cut in (0, 1, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:cut])
        with pytest.raises(ConfigFileError, match=r"cut short|is empty"):
            read_measurement_file(path)
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigFileError, match="UTF-8"):
        read_measurement_file(path)
    with pytest.raises(ConfigFileError, match="cannot be read"):
        read_measurement_file(tmp_path)
    path.write_text(whole.decode().replace('"run_id": "r1"', '"run_id": ""'))
    with pytest.raises(ConfigFileError) as caught:
        read_measurement_file(path)
    assert caught.value.key == "run_id"
