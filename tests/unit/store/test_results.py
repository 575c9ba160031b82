"""Results survive any end of a run: written as they come, read back whole, a partly
written last line cut off.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.processes import WAIT_S

from k3perf.errors import ConfigFileError, MeasurementInvalid
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
    StageTiming,
    TelemetryReading,
)
from k3perf.store.results import CellKey, FinishedCell, ResultWriter, read_results

KEY = CellKey("cpu", "default", "burst", "reference", "d1")


def sample(index: int) -> RequestSample:
    return RequestSample(
        index,
        RequestStatus.OK,
        10,
        11,
        99,
        (ChunkRecord(20, 1), ChunkRecord(30, 2)),
        4,
        3,
        3,
        detail="é\u2028x",
    )


def round_record(index: int, count: int = 3) -> RoundRecord:
    return RoundRecord(
        round_index=index,
        kind=RoundKind.MEASURED,
        start_ns=1,
        end_ns=2,
        samples=tuple(sample(number) for number in range(count)),
        counters={"vllm:num_preemptions_total": 1.0},
        telemetry=(TelemetryReading("steal_ratio", None, "/proc/stat"),),
        invalid_reasons=(InvalidReason("preemptions", "text", 1.0, 0.0),),
    )


def session_record(name: str, rounds: tuple[RoundRecord, ...] = ()) -> SessionRecord:
    return SessionRecord(
        session_id=name,
        target="cpu",
        config="default",
        workload="burst",
        plan_digest="d1",
        arm=Arm.REFERENCE,
        started_at_utc="2026-01-01T00:00:00+00:00",
        identity=EngineIdentity("0.32.0", "3.11", "2.13", "cpu-2", (), None, "host"),
        resolved_config={"block_size": 32, "nested": {"x": None}},
        stages=(StageTiming("load", 1.5),),
        memory=(RankMemory(0, weights_bytes=5, absent=("graph_pool_bytes",)),),
        rounds=rounds,
        environment={"python": "3.11.7", "kernel": "6.1.0"},
    )


def test_everything_written_is_read_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run" / "results.jsonl"
    rounds = (round_record(0), round_record(1))
    with ResultWriter(path, run_id="r1") as writer:
        writer.session(session_record("s1"))
        for entry in rounds:
            writer.round("s1", entry)
        writer.session_end("s1", (InvalidReason("valid_rounds_count", "few"),))
        writer.cell(FinishedCell(KEY, "PASS", ("s1",), valid=True))
    results = read_results(path)
    assert results.run_id == "r1"
    assert results.sessions["s1"] == replace(
        session_record("s1", rounds), invalid_reasons=(InvalidReason("valid_rounds_count", "few"),)
    )
    assert results.ended_sessions == {"s1"}
    assert results.cell_sessions(KEY) == (results.sessions["s1"],)


def test_samples_of_a_round_that_never_ended_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultWriter(path, run_id="r1") as writer:
        writer.session(session_record("s1"))
        writer.round("s1", round_record(0))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert '"kind":"sample"' in path.read_text()
    assert read_results(path).sessions["s1"].rounds == ()


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(min_value=0, max_value=4000))
def test_a_file_cut_anywhere_is_readable_and_can_be_continued(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "results.jsonl"
    with ResultWriter(path, run_id="r1") as writer:
        writer.session(session_record("s1"))
        writer.round("s1", round_record(0))
        writer.round("s1", round_record(1))
    whole = path.read_bytes()
    os.truncate(path, min(cut, len(whole)))
    before = read_results(path)
    known = before.sessions["s1"].rounds if "s1" in before.sessions else ()
    with ResultWriter(path, run_id="r1") as writer:
        writer.session(session_record("s2"))
        writer.round("s2", round_record(0))
    after = read_results(path)
    assert after.sessions["s2"].rounds == (round_record(0),)
    assert (after.sessions["s1"].rounds if "s1" in after.sessions else ()) == known


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultWriter(path, run_id="r1") as writer:
        writer.session(session_record("s1"))
    path.write_bytes(path.read_bytes() + b'{"kind":"round"}\n')
    with pytest.raises(ConfigFileError, match="line 3") as caught:
        read_results(path)
    assert (
        "the 2 before it can be read and hold 0 sessions that ended, 0 follow"
        in caught.value.problem
    )
    assert "measure again" in caught.value.next_step


@pytest.mark.parametrize(
    "damage", ['{"kind":"sample","content":{"session_id":"s2"}}', '{"kind":"sam', "\x00\x00"]
)
def test_what_stands_before_a_damaged_line_can_be_used_as_the_message_says(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "results.jsonl"
    lines = written(path)
    number = next(
        number
        for number, line in enumerate(lines, start=1)
        if '"kind":"round"' in line and '"s2"' in line
    )
    path.write_text("".join([*lines[: number - 1], f"{damage}\n", *lines[number:]]))
    with pytest.raises(ConfigFileError) as caught:
        read_results(path)
    found = caught.value
    assert found.key == f"line {number}"
    assert found.problem.endswith(
        f"; the {number - 1} before it can be read and hold 1 session that ended,"
        f" {len(lines) - number} follow"
    )
    command = found.next_step.split("`")[1].replace("NEW", str(tmp_path / "new"))
    subprocess.run(["sh", "-c", command], check=True, timeout=WAIT_S)
    assert read_results(tmp_path / "new").ended_sessions == {"s1"}


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"surprise","content":{}}',
        '{"kind":"run","content":{"schema_version":99,"run_id":"x"}}',
        "[]",
        "nonsense",
    ],
)
def test_lines_that_are_no_records_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigFileError, match="line 1") as caught:
        read_results(path)
    assert (
        caught.value.next_step
        == "It is not a results file, or not its beginning. Give results.jsonl of the interrupted"
        " run, or the run's directory."
    )


def test_only_a_valid_cell_of_the_same_plan_counts_as_finished(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    invalid = replace(KEY, workload="other")
    with ResultWriter(path, run_id="r1") as writer:
        for name in ("s1", "s2"):
            writer.session(session_record(name))
            writer.session_end(name, ())
        writer.cell(FinishedCell(KEY, "PASS", ("s1",), valid=True))
        writer.cell(FinishedCell(invalid, "INVALID", ("s2",), valid=False))
    results = read_results(path)
    assert results.finished(KEY) is not None
    assert results.finished(invalid) is None
    assert results.finished(replace(KEY, plan_digest="d2")) is None


def written(path: Path) -> list[str]:
    """The lines of a file with one finished cell of two sessions."""
    with ResultWriter(path, run_id="r1") as writer:
        for name in ("s1", "s2"):
            writer.session(session_record(name))
            writer.round(name, round_record(0))
            writer.session_end(name, ())
        writer.cell(FinishedCell(KEY, "PASS", ("s1", "s2"), valid=True))
    return [
        f"{line}\n" for line in path.read_text().split("\n")[:-1]
    ]  # a record may hold other line ends


@pytest.mark.parametrize("lost", ["session", "session_end"])
def test_a_cell_that_lacks_one_of_its_sessions_is_measured_again(tmp_path: Path, lost: str) -> None:
    path = tmp_path / "results.jsonl"
    lines = written(path)
    assert read_results(path).finished(KEY) is not None
    of_s2 = [line for line in lines if '"s2"' in line and '"kind":"cell"' not in line]
    gone = (
        of_s2 if lost == "session" else [line for line in of_s2 if '"kind":"session_end"' in line]
    )
    path.write_text("".join(line for line in lines if line not in gone))
    assert read_results(path).finished(KEY) is None


def test_a_round_that_is_there_twice_would_count_twice(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    lines = written(path)
    end = next(number for number, line in enumerate(lines) if '"kind":"round"' in line) + 1
    path.write_text("".join([*lines[:end], *lines[end - 4 : end], *lines[end:]]))
    with pytest.raises(ConfigFileError, match="round 0 of session s1 appears twice"):
        read_results(path)


def test_lines_out_of_order_and_files_put_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    lines = written(path)
    path.write_text("".join(lines * 2))
    with pytest.raises(
        ConfigFileError, match=r"line \d+.*begins with that run's line and has no other"
    ):
        read_results(path)
    path.write_text("".join(lines[1:]))
    with pytest.raises(ConfigFileError, match=r"line 1.*begins with that run's line"):
        read_results(path)
    path.write_text("".join([lines[0], *reversed(lines[1:])]))
    with pytest.raises(ConfigFileError, match="it lacks 's2', or a line before it that names that"):
        read_results(path)


def test_a_full_disk_is_invalid_and_leaves_a_readable_file() -> None:
    with pytest.raises(MeasurementInvalid, match="cannot be written"):
        ResultWriter(Path("/dev/full"), run_id="r1")


def test_a_directory_in_the_way_is_invalid(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(MeasurementInvalid, match="cannot be written"):
        ResultWriter(blocked / "results.jsonl", run_id="r1")


def test_results_that_are_not_there_or_no_file_are_one_clear_error(tmp_path: Path) -> None:
    for path, problem in (
        (tmp_path / "none.jsonl", "file not found"),
        (tmp_path, "cannot be read: Is a directory"),
    ):
        with pytest.raises(ConfigFileError) as caught:
            read_results(path)
        assert caught.value.problem == problem
        assert caught.value.next_step.startswith("Check the path")
