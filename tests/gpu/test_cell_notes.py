"""The notes of a measured cell of several devices: from its valid candidate sessions
alone, after the gate's own notes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from k3perf.config.machine_spec import Parallelism
from k3perf.config.suite import Cell, load_suite
from k3perf.metrics.compute import session_metrics
from k3perf.records.measurement import CellMeasurement
from k3perf.records.samples import (
    Arm,
    ChunkRecord,
    EngineIdentity,
    InvalidReason,
    RankMemory,
    RequestSample,
    RequestStatus,
    RoundKind,
    RoundRecord,
    SessionRecord,
    TelemetryReading,
)
from k3perf.records.verdict import CellVerdict
from k3perf.run.cell_notes import CellNotes

SUITE = load_suite(Path(__file__).parents[2] / "perf_tests")
CELLS = {cell.cell_id: cell for cell in SUITE.cells()}
GIB = 1 << 30


def a_round(clocks_mhz: tuple[float, ...]) -> RoundRecord:
    """100 tokens in one second."""
    sample = RequestSample(
        0, RequestStatus.OK, 0, 0, 10**9, (ChunkRecord(10**9, 100),), 8, 100, 100
    )
    telemetry = tuple(
        TelemetryReading("sm_clock_min_mhz", clock, f"NVML device {index}")
        for index, clock in enumerate(clocks_mhz)
    )
    return RoundRecord(0, RoundKind.MEASURED, 0, 10**9, (sample,), telemetry=telemetry)


def a_session(
    name: str,
    memory: tuple[RankMemory, ...],
    clocks_mhz: tuple[float, ...],
    arm: Arm = Arm.CANDIDATE,
) -> SessionRecord:
    identity = EngineIdentity("0.33.0", "3.12", "2.11", "h200-x2", (), None, "vm")
    return SessionRecord(
        name,
        "t",
        "c",
        "w",
        "p",
        arm,
        "2026-11-29T00:00:00Z",
        identity,
        {},
        (),
        memory,
        (a_round(clocks_mhz),),
    )


EVEN = (RankMemory(0, weights_bytes=8 * GIB), RankMemory(1, weights_bytes=8 * GIB))
UNEVEN = (RankMemory(0, weights_bytes=8 * GIB), RankMemory(1, weights_bytes=2 * GIB))


def notes_of(cell: Cell, *records: SessionRecord, baselines: Path) -> tuple[str, ...]:
    notes = CellNotes(SUITE, baselines)
    for record in records:
        notes.see(
            replace(record, memory=(), rounds=())
        )  # a session is written down when it begins, and again with its readings
        notes.see(record)
    names = (cell.target.name, cell.config.name, cell.workload.name)
    sessions = tuple(session_metrics(record) for record in records)
    measurement = CellMeasurement(
        *names, "baseline", cell.target.hardware.hardware_class, "p", sessions
    )
    return notes.add(
        cell, measurement, CellVerdict(*names, "baseline", (), notes=("the gate's own",))
    ).notes


def test_efficiency_ranks_and_clocks_of_valid_candidate_sessions(tmp_path: Path) -> None:
    spoiled = replace(
        a_session("s3", UNEVEN, (400, 300)), invalid_reasons=(InvalidReason("x", "y"),)
    )
    records = (
        a_session("s1", EVEN, (1500, 1400)),
        a_session("s2", EVEN, (1450, 1600)),
        spoiled,
        a_session("s4", UNEVEN, (9, 9), Arm.REFERENCE),
    )
    own, scaling, ranks, clocks = notes_of(
        CELLS["h200-k3-tp2-default-serve_1k"], *records, baselines=tmp_path
    )
    assert own == "the gate's own"
    assert scaling.startswith(
        "no scaling efficiency against h200-k3: baselines/h200-k3/default.json does not exist; "
    )
    assert scaling.endswith(" (100 tokens/s on 2 devices)")
    assert ranks == "memory of 2 ranks: equal in weights_bytes"
    assert clocks.endswith(": 1400 MHz on NVML device 1, 1450 MHz on NVML device 0")


def test_a_data_parallel_engine_answers_for_its_first_rank_alone(tmp_path: Path) -> None:
    record = a_session("s1", EVEN[:1], (1500, 1400))
    _, _, ranks, _ = notes_of(CELLS["h200-k3-dp2-default-serve_1k"], record, baselines=tmp_path)
    assert (
        ranks == "memory of 1 of 2 ranks: the other ranks' readings are missing and are not judged"
    )


@pytest.mark.parametrize("ranks", [{"tensor": 2}, {"pipeline": 2}, {"data": 2}])
def test_ranks_of_every_kind_are_expected_to_answer(ranks: dict[str, int], tmp_path: Path) -> None:
    cell = CELLS["h200-k3-tp2-default-serve_1k"]
    wide = replace(
        cell, target=cell.target.model_copy(update={"parallelism": Parallelism(**ranks)})
    )
    assert (
        "memory of 1 of 2 ranks: "
        in notes_of(wide, a_session("s1", EVEN[:1], (1500, 1400)), baselines=tmp_path)[2]
    )


@pytest.mark.parametrize("cell", ["h200-k3-default-serve_1k", "cpu-hybrid-default-chat"])
def test_one_device_has_nothing_to_tell(cell: str, tmp_path: Path) -> None:
    """Whatever other devices the host has."""
    assert notes_of(CELLS[cell], a_session("s1", EVEN[:1], (1500, 1400)), baselines=tmp_path) == (
        "the gate's own",
    )


def test_a_cell_without_a_valid_session_says_so(tmp_path: Path) -> None:
    notes = notes_of(CELLS["h200-k3-tp2-default-serve_1k"], baselines=tmp_path)
    assert notes == (
        "the gate's own",
        "no scaling efficiency against h200-k3: no valid session of this cell has a throughput",
    )


def test_every_target_of_a_run_has_its_own_base(tmp_path: Path) -> None:
    notes = CellNotes(SUITE, tmp_path)
    told = []
    for cell in (
        CELLS[f"{target}-default-serve_1k"]
        for target in ("h200-k3-tp2", "h200-k3", "h200-k3-small-tp2")
    ):
        names = (cell.target.name, cell.config.name, cell.workload.name)
        measurement = CellMeasurement(
            *names, "baseline", cell.target.hardware.hardware_class, "p", ()
        )
        told.append(
            [
                note.partition(":")[0]
                for note in notes.add(cell, measurement, CellVerdict(*names, "baseline", ())).notes
            ]
        )
    assert told == [
        ["no scaling efficiency against h200-k3"],
        [],
        ["no scaling efficiency against h200-k3-small"],
    ]


def test_a_session_that_could_not_be_written_down_tells_nothing_of_its_ranks(
    tmp_path: Path,
) -> None:
    cell, record = CELLS["h200-k3-tp2-default-serve_1k"], a_session("s1", EVEN, (1500, 1400))
    names = (cell.target.name, cell.config.name, cell.workload.name)
    measurement = CellMeasurement(
        *names, "baseline", cell.target.hardware.hardware_class, "p", (session_metrics(record),)
    )
    (scaling,) = (
        CellNotes(SUITE, tmp_path).add(cell, measurement, CellVerdict(*names, "baseline", ())).notes
    )
    assert scaling.endswith(" (100 tokens/s on 2 devices)")
