"""Wrong use of ``k3perf`` ends with the documented status and shows the usage of the
command that was meant.
"""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from k3perf.cli.main import COMMAND_MODULES, build_parser, main
from k3perf.errors import ExitStatus


@pytest.mark.parametrize(
    ("words", "usage", "message"),
    [
        ("nosuch", "usage: k3perf [", "invalid choice: 'nosuch'"),
        ("", "usage: k3perf [", "required: COMMAND (one of init, drift, upgrade, export, "),
        ("baseline", "usage: k3perf baseline ", "required: ACTION (one of propose, accept, show)"),
        ("memory", "usage: k3perf memory ", "required: COMMAND (one of plan)"),
        ("--nosuch scaling", "usage: k3perf [", "unrecognized arguments: --nosuch"),
        ("export default", "usage: k3perf export ", "required: --target"),
        ("scaling --nosuch", "usage: k3perf scaling ", "unrecognized arguments: --nosuch"),
        ("inject --slow-step-percent x", "usage: k3perf inject ", "invalid float value: 'x'"),
        (
            "plan --shards two",
            "usage: k3perf plan ",
            "two shards; a workflow matrix holds 1 to 256 jobs",
        ),
        ("memory plan --tensor 0", "usage: k3perf memory plan ", "0 is not a count of 1 or more"),
        (
            "memory plan --device-memory-bytes -5",
            "usage: k3perf memory plan ",
            "-5 is not a count of 1 or more",
        ),
        ("bundle make", "usage: k3perf bundle make ", "required"),
        (
            "load find-rate --workload w --nosuch 3",
            "usage: k3perf load find-rate ",
            "unrecognized arguments: --nosuch 3",
        ),
    ],
)
def test_wrong_use_is_the_documented_status(
    words: str, usage: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == ExitStatus.USAGE == 4
    told = capsys.readouterr().err
    assert told.startswith(usage)
    assert message in told.splitlines()[-1]


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    for module in COMMAND_MODULES:
        with pytest.raises(SystemExit) as ended:
            build_parser((module,)).parse_args([module.replace("_", "-"), "--help"])
        assert ended.value.code == 0
    assert "usage: k3perf scaling" in capsys.readouterr().out


def test_what_follows_two_dashes_is_passed_on() -> None:
    parsed = build_parser(("inject",)).parse_args(
        ["inject", "--slow-step-percent", "15", "--", "-k", "fp8_kv"]
    )
    assert parsed.pytest_arguments == ["-k", "fp8_kv"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "plan --output {gone}/plan.json",
            (
                "{gone}/plan.json cannot be written (No such file or directory); choose another"
                " --output"
            ),
        ),
        (
            "plan --github-output {gone}/out",
            (
                "{gone}/out cannot be written (No such file or directory); choose another"
                " --github-output"
            ),
        ),
        (
            "ci comment {gone}/verdict.json --output {gone}/comment",
            "{gone}/comment cannot be written",
        ),
        ("gate selftest --recorded {empty}", "it holds no .json file"),
        (
            "memory plan --config default --target h200-k3 --set max_modle_len=1",
            "Did you mean 'max_model_len'?",
        ),
        (
            "memory plan --config default --target h200-k3 --set gpu_memory_utilization=NaN",
            "is not a share above 0 and up to 1",
        ),
        (
            "memory plan --config default --target h200-k3 --set gpu_memory_utilization=7",
            "is not a share above 0 and up to 1",
        ),
        (
            "memory plan --config default --target h200-k3 --set block_size=0",
            "block_size 0 is not a number of 1 or more",
        ),
    ],
)
def test_files_and_values_that_cannot_be_used_are_one_line(
    words: str,
    message: str,
    tmp_path: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(repository)
    (tmp_path / "empty").mkdir()
    places = {"gone": tmp_path / "gone", "empty": tmp_path / "empty"}
    assert main([word.format(**places) for word in words.split()]) == ExitStatus.USAGE
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("k3perf: ")
    assert message.format(**places) in told


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (
            FileNotFoundError(2, "No such file", "x.json"),
            ExitStatus.USAGE,
            "k3perf: [Errno 2] No such file: 'x.json'. Name a usable file or directory",
        ),
        (
            ConnectionRefusedError(111, "Connection refused"),
            ExitStatus.INVALID,
            "Connection refused. Check that the server runs",
        ),
        (
            TimeoutError("timed out"),
            ExitStatus.INVALID,
            "k3perf: timed out. Check that the server runs",
        ),
        (
            socket.gaierror(-2, "Name or service not known"),
            ExitStatus.INVALID,
            "not known. Check that the server runs",
        ),
        (
            OSError(28, "No space left on device"),
            ExitStatus.INVALID,
            "No space left on device. The system refused the operation: check free disk space",
        ),
    ],
)
def test_only_an_error_that_names_a_file_asks_for_another_one(
    error: OSError,
    status: ExitStatus,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: object) -> int:
        raise error

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=fail)
    monkeypatch.setattr("k3perf.cli.main.build_parser", lambda _: parser)
    assert main([]) == status
    assert told in capsys.readouterr().err
