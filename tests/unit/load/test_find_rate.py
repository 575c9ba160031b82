"""The search for the maximum sustainable rate, on servers with a known limit, and its
commands.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

import k3perf.load.find_rate as find_rate_module
from k3perf.cli.main import main
from k3perf.config.load_yaml import load_document
from k3perf.config.suite import load_suite
from k3perf.config.workload_spec import ServiceLevel, WorkloadSpec
from k3perf.errors import ExitStatus, MeasurementInvalid
from k3perf.load.find_rate import RateSearch, RateTrial, find_rate, live_trial, warm_up
from k3perf.load.mock_server import Behaviour, Delay
from k3perf.records.samples import ChunkRecord, RequestSample, RequestStatus
from k3perf.store.found_rates import found_rate_per_s, read_found_rates
from k3perf.workload.trace import read_trace

LEVEL = ServiceLevel(ttft_ms=50, tpot_ms=10)


def limited_to(limit_per_s, tried):
    def run_trial(rate_per_s, trial_index):
        assert trial_index == len(tried)
        tried.append(rate_per_s)
        passed = rate_per_s <= limit_per_s
        return RateTrial(
            rate_per_s, 20, 20 if passed else 3, 1.0 if passed else 0.15, 1.0, 1.0, passed
        )

    return run_trial


@pytest.mark.parametrize("limit_per_s", [0.25, 0.3, 1.0, 7.3, 99.0, 1000.0])
def test_the_found_rate_is_the_limit_within_the_precision(limit_per_s):
    tried = []
    found = find_rate(RateSearch(LEVEL), limited_to(limit_per_s, tried))
    assert found.rate_per_s <= limit_per_s < found.failed_rate_per_s <= found.rate_per_s * 1.05
    assert len(found.trials) == len(tried) <= 20


def test_a_server_without_a_limit_ends_at_the_ceiling():
    found = find_rate(RateSearch(LEVEL, highest_rate_per_s=100), limited_to(1e9, []))
    assert (found.rate_per_s, found.failed_rate_per_s) == (100, None)


def test_a_server_that_never_meets_the_level_is_invalid():
    with pytest.raises(MeasurementInvalid, match=r"even at 0\.25 requests/s: 3 of 20"):
        find_rate(RateSearch(LEVEL), limited_to(0.1, []))


WORKLOAD = """
schema_version: 1
name: small
description: A small workload for tests
seed: 7
requests: 12
arrival: {kind: closed_loop, concurrency: 4}
prompt_tokens: {kind: fixed, tokens: 12}
output_tokens: {kind: fixed, tokens: 4}
"""


CHECK_CLIENT = find_rate_module._check_client


@pytest.fixture
def busy_machine(monkeypatch):
    """The machine of the tests may be busy. The lag of the client has a test of its own."""
    monkeypatch.setattr(find_rate_module, "_check_client", lambda *_: None)


@pytest.fixture
def arguments(tmp_path, mock_server, busy_machine):
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    base = [
        "load",
        "find-rate",
        "--base-url",
        mock_server.base_url,
        "--model-name",
        "mock",
        "--vocabulary-size",
        "64",
    ]
    return [
        *base,
        "--workload",
        str(tmp_path / "small.yaml"),
        "--duration",
        "0.2",
        "--least-requests",
        "4",
    ]


def test_the_command_finds_the_ceiling_of_a_fast_server(arguments, mock_server, tmp_path, capsys):
    mock_server.behave(Behaviour(ttft=Delay(mean_ms=1), itl=Delay(mean_ms=1)))
    limits = [
        "--ttft-ms",
        "2000",
        "--tpot-ms",
        "2000",
        "--lowest-rate",
        "20",
        "--highest-rate",
        "40",
    ]
    assert main([*arguments, *limits, "--output", str(tmp_path / "found.json")]) == 0
    shown = capsys.readouterr()
    assert shown.out == "40\n"
    assert "raise --highest-rate" in shown.err
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["workload"], found["rate_per_s"], len(found["trials"])) == ("small", 40, 2)


def test_the_command_says_when_nothing_meets_the_level(arguments, mock_server, capsys):
    mock_server.behave(Behaviour(ttft=Delay(mean_ms=30), itl=Delay(mean_ms=1)))
    assert (
        main([*arguments, "--ttft-ms", "5", "--tpot-ms", "2000", "--lowest-rate", "20"])
        == ExitStatus.INVALID
    )
    assert "0 of 4 requests met it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (WORKLOAD, "declares no service_level"),
        (WORKLOAD.replace("seed: 7", "seed: -7"), "'seed'.*-7"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_the_command_refuses_what_it_cannot_use(arguments, tmp_path, capsys, workload, message):
    (tmp_path / "small.yaml").write_text(workload)
    assert main(arguments) == ExitStatus.USAGE
    import re

    assert re.search(message, capsys.readouterr().err)


@pytest.fixture
def for_a_target(tmp_path, repository, mock_server, busy_machine):
    """The command for a declared target's workload, on a running server."""
    mock_server.behave(Behaviour(ttft=Delay(mean_ms=1), itl=Delay(mean_ms=1)))
    base = [
        "load",
        "find-rate",
        "--suite",
        str(repository / "perf_tests"),
        "--baselines",
        str(tmp_path / "baselines"),
    ]
    base += [
        "--target",
        "cpu-gqa",
        "--workload",
        "poisson",
        "--base-url",
        mock_server.base_url,
        "--model-name",
        "mock",
    ]
    return [
        *base,
        "--duration",
        "0.2",
        "--least-requests",
        "4",
        "--lowest-rate",
        "20",
        "--highest-rate",
        "40",
        "--by",
        "ann",
    ]


def test_a_targets_rate_is_stored_and_its_workload_resolves(
    for_a_target, tmp_path, repository, capsys
):
    assert main(for_a_target) == 0
    assert capsys.readouterr().out == "40\n"
    suite = load_suite(repository / "perf_tests")
    assert (
        found_rate_per_s(tmp_path / "baselines", suite.target("cpu-gqa"), suite.workload("poisson"))
        == 40
    )
    (stored,) = read_found_rates(tmp_path / "baselines", "cpu-gqa").rates
    assert (stored.found_by, stored.config, stored.vllm_version, stored.failed_rate_per_s) == (
        "ann",
        None,
        "unknown",
        None,
    )
    assert stored.trial_count == 2


def test_a_file_of_rates_that_cannot_be_used_is_told_before_the_search(
    for_a_target, tmp_path, mock_server, capsys
):
    (tmp_path / "baselines" / "cpu-gqa").mkdir(parents=True)
    (tmp_path / "baselines" / "cpu-gqa" / "found_rates.yaml").write_text("rates: []\n")
    assert main(for_a_target) == ExitStatus.USAGE
    assert "found_rates.yaml" in capsys.readouterr().err
    assert mock_server.truth() == []


@pytest.mark.parametrize(
    ("left_out", "added", "needle"),
    [
        (("--base-url", "--model-name", "--target"), (), "name a declared --target"),
        (("--model-name",), (), "--base-url needs --model-name"),
        (("--workload",), ("--workload", "posson"), "unknown workload 'posson'"),
        (("--workload",), ("--workload", "trace"), "a trace has its own rate"),
        (("--workload",), ("--workload", "burst"), "declares no service_level"),
        ((), ("--ttft-ms", "1"), "the workload's own service level"),
        ((), ("--output", "/no/such/folder/x.json"), "directory not found"),
        (("--target",), ("--target", "cpu-gpa"), "unknown target 'cpu-gpa'"),
        (
            ("--base-url", "--model-name", "--target"),
            ("--target", "mi355x-k3"),
            "--target mi355x-k3: ",
        ),
    ],
)
def test_the_command_says_what_is_missing_or_wrong(
    for_a_target, repository, capsys, left_out, added, needle
):
    arguments = list(for_a_target)
    for option in left_out:
        place = arguments.index(option)
        del arguments[place : place + 2]
    if "--target" not in arguments and "--target" not in added:
        arguments[arguments.index("poisson")] = str(
            repository / "perf_tests" / "workloads" / "burst.yaml"
        )
        added = ("--ttft-ms", "9", "--tpot-ms", "9", "--vocabulary-size", "64")
    assert main([*arguments, *added]) == ExitStatus.USAGE
    assert needle in capsys.readouterr().err


def test_a_log_becomes_a_trace(tmp_path, capsys):
    line = json.dumps(
        {"created": 1763000000, "usage": {"prompt_tokens": 700, "completion_tokens": 3}}
    )
    (tmp_path / "log.jsonl").write_text(f"{line}\nnothing\n")
    assert (
        main(
            [
                "load",
                "import-log",
                str(tmp_path / "log.jsonl"),
                "--output",
                str(tmp_path / "t.jsonl"),
            ]
        )
        == 0
    )
    assert "omitted: not JSON (1)" in capsys.readouterr().err
    assert read_trace(tmp_path / "t.jsonl").rows[0].input_length == 700


def test_a_log_without_counts_is_refused(tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text("{}\n")
    assert (
        main(
            [
                "load",
                "import-log",
                str(tmp_path / "log.jsonl"),
                "--output",
                str(tmp_path / "t.jsonl"),
            ]
        )
        == ExitStatus.USAGE
    )
    assert "no token counts (1)" in capsys.readouterr().err
    assert not (tmp_path / "t.jsonl").exists()


def test_a_trace_can_be_made(tmp_path):
    path = tmp_path / "t.jsonl"
    assert (
        main(["load", "make-trace", "--requests", "30", "--duration", "9", "--output", str(path)])
        == 0
    )
    assert len(read_trace(path).rows) == 30


@pytest.fixture
def closed_port():
    """A taken port of the loopback interface without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def hanging_up():
    """A port of a server that resets every connection after the first bytes."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                connection.recv(1)
                connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )  # close as a reset
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    ("port", "reason"), [("closed_port", "connection refused"), ("hanging_up", "connection lost")]
)
def test_no_server_is_told_before_any_trial(arguments, request, capsys, port, reason):
    url = f"http://127.0.0.1:{request.getfixturevalue(port)}"
    arguments[arguments.index("--base-url") + 1] = url
    assert main([*arguments, "--ttft-ms", "9", "--tpot-ms", "9"]) == ExitStatus.INVALID
    told = capsys.readouterr().err
    assert f"no server answers at {url}: {reason}" in told
    assert "requests/s" not in told


def test_the_warm_up_finds_that_no_server_is_there(arguments, closed_port, tmp_path):
    url = f"http://127.0.0.1:{closed_port}"
    with pytest.raises(MeasurementInvalid, match=f"no server answers at {url}"):
        warm_up(
            load_document(WorkloadSpec, tmp_path / "small.yaml"),
            base_url=url,
            model_name="mock",
            vocabulary_size=64,
        )


LOST = RequestSample(0, RequestStatus.RESET, 0, 0, 1, (), 8, 0, 0, detail="Connection lost")
BROKEN_OFF = replace(LOST, chunks=(ChunkRecord(1, 1),))
SERVED = replace(BROKEN_OFF, status=RequestStatus.OK)


@pytest.mark.parametrize("samples", [(LOST, SERVED), (LOST, BROKEN_OFF)])
def test_a_server_that_answered_one_request_is_there(arguments, tmp_path, monkeypatch, samples):
    monkeypatch.setattr(
        find_rate_module, "run_round", lambda *_, **__: SimpleNamespace(samples=samples)
    )
    spec = load_document(WorkloadSpec, tmp_path / "small.yaml")
    warm_up(spec, base_url="http://x", model_name="mock", vocabulary_size=64)
    monkeypatch.setattr(
        find_rate_module, "run_round", lambda *_, **__: SimpleNamespace(samples=(LOST, LOST))
    )
    with pytest.raises(MeasurementInvalid, match="no server answers at http://x: connection lost"):
        warm_up(spec, base_url="http://x", model_name="mock", vocabulary_size=64)


def test_a_server_that_is_gone_at_the_first_trial_is_told(arguments, closed_port, tmp_path):
    url = f"http://127.0.0.1:{closed_port}"
    spec = load_document(WorkloadSpec, tmp_path / "small.yaml")
    run_trial = live_trial(
        spec,
        RateSearch(LEVEL),
        base_url=url,
        model_name="mock",
        vocabulary_size=64,
        duration_s=0.1,
        least_requests=4,
    )
    with pytest.raises(MeasurementInvalid, match=f"no server answers at {url}"):
        run_trial(50.0, 0)
    with pytest.raises(MeasurementInvalid, match="5 of 5 requests failed"):
        run_trial(50.0, 1)  # lost in the search: not a rate that is too high


def trial_of(monkeypatch, arguments, tmp_path, *samples, lag_p99_ns=0):
    del arguments  # it writes the workload
    seen = SimpleNamespace(samples=samples, client_lag_p99_ns=lag_p99_ns)
    monkeypatch.setattr(find_rate_module, "run_round", lambda *_, **__: seen)
    run_trial = live_trial(
        load_document(WorkloadSpec, tmp_path / "small.yaml"),
        RateSearch(LEVEL),
        base_url="http://x",
        model_name="mock",
        vocabulary_size=64,
        duration_s=1,
        least_requests=len(samples),
    )
    return run_trial(80.0, 3)


@pytest.mark.parametrize(
    "status", [status for status in RequestStatus if status not in find_rate_module._SLOW]
)
def test_a_failed_request_is_not_a_slow_one(arguments, tmp_path, monkeypatch, status):
    """A server that was killed in the search gave the last rate before it as found."""
    broken = replace(SERVED, status=status, detail="500 Internal Server Error")
    with pytest.raises(MeasurementInvalid) as caught:
        trial_of(monkeypatch, arguments, tmp_path, SERVED, broken, broken, SERVED)
    assert f"at 80 requests/s is not valid: 2 of 4 requests failed (2 {status})" in str(
        caught.value
    )
    assert "the first said: 500 Internal Server Error" in str(caught.value)


def test_a_client_that_sent_late_finds_no_rate(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(find_rate_module, "_check_client", CHECK_CLIENT)
    with pytest.raises(MeasurementInvalid, match="the client sent 21 ms late"):
        trial_of(monkeypatch, arguments, tmp_path, SERVED, lag_p99_ns=21_000_000)


@pytest.mark.parametrize("status", [RequestStatus.TIMED_OUT, RequestStatus.STALLED])
def test_a_slow_request_misses_the_level(arguments, tmp_path, monkeypatch, status):
    slow = replace(SERVED, status=status)
    trial = trial_of(monkeypatch, arguments, tmp_path, slow, slow)
    assert (trial.met_count, trial.passed) == (0, False)


def test_the_command_takes_a_base_url_with_v1(arguments, mock_server, capsys):
    position = arguments.index("--base-url") + 1
    usual = [*arguments[:position], f"{arguments[position]}/v1", *arguments[position + 1 :]]
    limits = ["--ttft-ms", "5000", "--tpot-ms", "5000", "--lowest-rate", "20"]
    assert main([*usual, *limits, "--highest-rate", "20"]) == ExitStatus.OK
    assert capsys.readouterr().out == "20\n"


def test_the_command_names_a_wrong_path_of_the_server(arguments, mock_server, tmp_path, capsys):
    position = arguments.index("--base-url") + 1
    wrong = [*arguments[:position], f"{arguments[position]}/v2", *arguments[position + 1 :]]
    output = tmp_path / "found.json"
    limits = ["--ttft-ms", "2000", "--tpot-ms", "2000", "--lowest-rate", "20"]
    assert main([*wrong, *limits, "--output", str(output)]) == ExitStatus.INVALID
    shown = capsys.readouterr()
    assert "requests failed" in shown.err
    assert "check --model-name and --base-url" in shown.err
    assert (shown.out, output.exists()) == ("", False)
