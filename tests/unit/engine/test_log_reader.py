from __future__ import annotations

from pathlib import Path

import pytest

from k3perf.engine import log_reader
from k3perf.engine.log_reader import LogReader


class Clock:
    def __init__(self) -> None:
        self.now_ns = 100

    def __call__(self) -> int:
        return self.now_ns


JIT = "Triton JIT compile during inference: k. This causes a latency spike; consider\n"


def test_lines_complete_late_and_carry_an_interval(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock()
    reader = LogReader(path, start_ns=100, clock_ns=clock)
    assert reader.drain() == 0
    path.write_text("half")
    clock.now_ns = 200
    assert reader.drain() == 0
    assert reader.tail() == ("half",)
    with path.open("a") as handle:
        handle.write(" a line\n" + JIT)
    clock.now_ns = 300
    assert reader.drain() == 2
    assert reader.lines()[0] == "half a line"
    # written after 200 and before 300: it may lie in every window that touches that
    assert reader.compiles_between(0, 199) == ()
    assert len(reader.compiles_between(0, 250)) == 1
    assert len(reader.compiles_between(250, 400)) == 1
    assert reader.compiles_between(301, 400) == ()


def test_stages_only_go_forward_and_add_up(tmp_path: Path) -> None:
    path, clock, heard = tmp_path / "log", Clock(), []
    reader = LogReader(path, start_ns=100, clock_ns=clock, on_stage=heard.append)
    for now_ns, line in (
        (200, "Starting to load model"),
        (500, "Graph capturing finished"),
        (600, "Starting to load model"),
        (700, "x"),
    ):
        with path.open("a") as handle:
            handle.write(line + "\n")
        clock.now_ns = now_ns
        reader.drain()
    assert heard == ["load", "capture"]
    assert reader.stage == "capture"
    timings = {stage.stage: stage.duration_s for stage in reader.stage_timings(1100)}
    assert timings == {"import": 100e-9, "load": 300e-9, "capture": 600e-9}


def test_progress_bars_count_and_heartbeats_do_not(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock()
    reader = LogReader(path, start_ns=100, clock_ns=clock)
    path.write_text("Loading: 10%\rLoading: 20%\r")
    clock.now_ns = 200
    assert reader.drain() == 2
    assert reader.last_progress_ns == 200
    with path.open("a") as handle:
        handle.write("Waiting for 1 local, 0 remote core engine proc(s) to start.\n")
    clock.now_ns = 300
    reader.drain()
    assert reader.last_progress_ns == 200


def test_progress_that_the_log_does_not_show(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock()
    path.write_text("WARNING 11-02 10:15:00 [x.py:1] deprecated\n")
    reader = LogReader(path, start_ns=100, clock_ns=clock)
    clock.now_ns = 200
    reader.drain()
    assert not reader.names_stages
    clock.now_ns = 300
    reader.note_progress()
    assert reader.last_progress_ns == 300
    with path.open("a") as handle:
        handle.write("INFO 11-02 10:15:00 [x.py:1] non-default args: {}\n")
    reader.drain()
    assert reader.names_stages


def test_the_cause_is_read_again_only_when_the_log_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_text("ValueError: first\n")
    asked: list[int] = []
    real = log_reader.find_root_cause
    monkeypatch.setattr(log_reader, "find_root_cause", lambda lines: asked.append(1) or real(lines))
    reader = LogReader(path, start_ns=0)
    assert reader.root_cause() == reader.root_cause() == "ValueError: first"
    assert len(asked) == 1
    path.write_text("KeyError: 'second, and longer'\n")
    assert reader.root_cause() == "KeyError: 'second, and longer'"


def test_bytes_that_are_no_text_do_not_stop_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe broken \n\n")
    reader = LogReader(path, start_ns=0, clock_ns=Clock())
    reader.drain()
    assert len(reader.lines()) == 1


def test_a_log_without_line_ends_neither_fills_the_memory_nor_looks_hung(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock()
    reader = LogReader(path, start_ns=100, clock_ns=clock)
    for at_ns in (200, 300, 400):
        with path.open("ab") as handle:
            handle.write(b"x" * (5 << 20))
        clock.now_ns = at_ns
        reader.drain()
        assert reader.last_progress_ns == at_ns
    assert sum(map(len, reader.lines())) < 1 << 20
    with path.open("ab") as handle:
        handle.write(b"\nRuntimeError: the end\n")
    assert reader.root_cause() == "RuntimeError: the end"


def test_a_long_line_keeps_its_head_and_its_tail(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"(EngineCore pid=7) loading" + b"." * 40_000 + b" Segmentation fault\n")
    reader = LogReader(path, start_ns=0, clock_ns=Clock())
    assert reader.drain() == 1
    (line,) = reader.lines()
    assert line.startswith("(EngineCore pid=7) loading...")
    assert line.endswith("... Segmentation fault")
    assert len(line) == 1 << 14
    assert reader.root_cause().startswith(
        "loading..."
    )  # an error in the tail is found, with the process that the head names


def test_a_line_written_while_a_look_ends_is_not_older_than_its_writing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first\n")
    readings_ns: list[int] = []
    written_ns = 0

    def clock_ns() -> int:
        nonlocal written_ns
        if (
            len(readings_ns) == 1
        ):  # between the first and the second time that the look reads the clock
            written_ns = 150
            with path.open("a") as handle:
                handle.write(JIT)
        readings_ns.append(100 * (len(readings_ns) + 1))
        return readings_ns[-1]

    reader = LogReader(path, start_ns=0, clock_ns=clock_ns)
    assert reader.drain() == 1
    assert len(reader.compiles_between(0, written_ns)) == 1  # the window ends just then


def test_an_error_in_a_last_line_without_an_end_is_the_root_cause(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "Loading: 10%\nINFO all is well\n(EngineCore pid=7) RuntimeError: the device is lost"
    )
    reader = LogReader(path, start_ns=100)
    assert reader.root_cause() == "RuntimeError: the device is lost"
    assert len(reader.lines()) == 2
    with path.open("a") as handle:
        handle.write(", at step 7\n")
    assert reader.root_cause() == "RuntimeError: the device is lost, at step 7"


def test_a_deeper_process_wins_where_its_line_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "(APIServer pid=1) RuntimeError: Engine died\n(Worker pid=9) ValueError: bad scale"
    )
    assert LogReader(path, start_ns=100).root_cause() == "ValueError: bad scale"
