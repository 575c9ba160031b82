"""Every crash text of the corpus: the cause, who failed first, in whatever form the log
is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.crash_corpus import FORMS, crashes, formats, lines_of, one_line

from k3perf.engine.cause_choice import find_root_cause
from k3perf.engine.cause_text import LONGEST_CAUSE
from k3perf.engine.log_reader import LogReader
from k3perf.engine.root_cause import RootCause, describe_end


def cause_of(lines):
    found = find_root_cause(lines)
    return found.text if found is not None else ""


ENTRIES = crashes()


def expect(entry: dict[str, Any], found: RootCause | None) -> None:
    text = found.text if found is not None else ""
    wanted = entry["cause"] if isinstance(entry["cause"], list) else [entry["cause"]]
    for part in wanted:
        assert one_line(part) in one_line(text)
    assert len(text) <= LONGEST_CAUSE
    assert "\n" not in text
    assert "\x1b" not in text
    if wanted == [""]:
        assert found is None
    if "not_in" in entry:
        assert entry["not_in"] not in text


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_the_cause_of_a_crash(entry: dict[str, Any]) -> None:
    found = find_root_cause(lines_of(entry))
    expect(entry, found)
    process = found.process if found is not None else ""
    if process:
        assert process in entry["process"]
    else:
        assert "no prefix" in entry["process"] or entry["process"] == "none"


@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if "repeat" in entry], ids=lambda entry: entry["id"]
)
def test_a_line_that_stands_many_times_in_the_file(entry: dict[str, Any], tmp_path: Path) -> None:
    """More lines than the reader keeps: the cause is searched in the file."""
    path = tmp_path / "engine.log"
    path.write_text("\n".join(lines_of(entry)) + "\n")
    reader = LogReader(path, start_ns=0)
    expect(entry, reader.cause())
    path.unlink()
    assert isinstance(reader.root_cause(), str)  # without a file, what was kept


@pytest.mark.parametrize("entry", formats(), ids=lambda entry: entry["id"])
def test_vllms_forms(entry: dict[str, Any]) -> None:
    found = find_root_cause(lines_of(entry))
    assert found is not None
    assert found.text == entry["cause"]
    assert found.process == entry["process"]


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_the_log_changes_nothing(form: str) -> None:
    plain = {entry["id"]: find_root_cause(lines_of(entry, repeated=False)) for entry in ENTRIES}
    other = {
        entry["id"]: find_root_cause(FORMS[form](lines_of(entry, repeated=False)))
        for entry in ENTRIES
    }
    said = {name: found and found.text for name, found in plain.items()}
    assert {name: found and found.text for name, found in other.items()} == said
    # JSON has no place for the rank behind a process's name
    who = {name: found and found.process.partition(" rank")[0] for name, found in plain.items()}
    assert {
        name: found and found.process.partition(" rank")[0] for name, found in other.items()
    } == who


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([line for entry in ENTRIES for line in lines_of(entry, repeated=False)])
        | st.text(),
        max_size=40,
    )
)
def test_whatever_the_lines_are_there_is_an_answer_of_bounded_length(lines: list[str]) -> None:
    assert len(cause_of(lines)) <= LONGEST_CAUSE


def test_a_long_message_keeps_its_beginning_and_its_reason() -> None:
    noise = [
        f"[{step}/90] /usr/local/cuda/bin/nvcc -gencode=arch=compute_90a -c /x/kernel_{step}.cu"
        for step in range(90)
    ]
    lines = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1',
        "RuntimeError: Error building extension 'k3':",
        *noise,
    ]
    lines[40:40] = ['/x/kernel_36.cu(12): error: identifier "__nv_fp4" is undefined']
    text = cause_of(lines)
    assert text.startswith("RuntimeError: Error building extension 'k3':")
    assert 'error: identifier "__nv_fp4" is undefined' in text


def test_a_message_without_an_end_is_cut_in_its_middle() -> None:
    text = cause_of(
        [
            "Traceback (most recent call last):",
            '  File "x.py", line 1',
            "ValueError: " + "x" * 5000 + " of layer 7",
        ]
    )
    assert len(text) == LONGEST_CAUSE
    assert text.startswith("ValueError: x")
    assert text.endswith(" of layer 7")


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (1, "exit status 1"),
        (-9, "killed by SIGKILL (often the kernel's out-of-memory killer)"),
        (-11, "killed by SIGSEGV"),
        (-7, "killed by SIGBUS (often a full /dev/shm)"),
        (-99, "killed by signal 99"),
    ],
)
def test_an_end_in_words(exit_code: int, words: str) -> None:
    assert describe_end(exit_code) == words


def test_who_died_in_words() -> None:
    assert RootCause("x", "Worker_TP0", 3).died == "Worker_TP0 (pid 3) failed first"
    assert RootCause("x", "VllmWorker-0", None, -9).died.startswith(
        "VllmWorker-0 ended first: killed by SIGKILL"
    )
    assert RootCause("x").died == ""


@pytest.mark.parametrize(
    "line",
    [
        (
            "INFO 11-02 10:15:00 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config:"
            " model='m', error_limit=3"
        ),
        "Loading safetensors checkpoint shards:  50% Completed | 4/8",
        "(Worker_TP0 pid=3) WARNING 11-02 10:15:00 [x.py:1] RuntimeError: caught, going on",
        "",
    ],
)
def test_lines_that_are_no_cause(line: str) -> None:
    assert find_root_cause([line]) is None
