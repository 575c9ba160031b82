"""The search for the highest rate, on servers with a known limit, and the commands around it."""

from __future__ import annotations

import json

import pytest

from k3perf.cli.main import main
from k3perf.config.workload_spec import ServiceLevel
from k3perf.errors import ExitStatus, MeasurementInvalid
from k3perf.load.find_rate import RateSearch, RateTrial, find_rate
from k3perf.load.mock_server import Behaviour, Delay
from k3perf.workload.trace import read_trace

LEVEL = ServiceLevel(ttft_ms=50, tpot_ms=10)


def limited_to(limit_per_s, tried):
    def run_trial(rate_per_s, trial_index):
        assert trial_index == len(tried)
        tried.append(rate_per_s)
        passed = rate_per_s <= limit_per_s
        return RateTrial(rate_per_s, 20, 20 if passed else 3, 1.0 if passed else 0.15, 1.0, 1.0, passed)

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


@pytest.fixture
def arguments(tmp_path, mock_server):
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    base = ["load", "find-rate", "--base-url", mock_server.base_url, "--model-name", "mock", "--vocabulary-size", "64"]
    return [*base, "--workload", str(tmp_path / "small.yaml"), "--duration", "0.2", "--least-requests", "4"]


def test_the_command_finds_the_ceiling_of_a_fast_server(arguments, mock_server, tmp_path, capsys):
    mock_server.behave(Behaviour(ttft=Delay(mean_ms=1), itl=Delay(mean_ms=1)))
    limits = ["--ttft-ms", "2000", "--tpot-ms", "2000", "--lowest-rate", "20", "--highest-rate", "40"]
    assert main([*arguments, *limits, "--output", str(tmp_path / "found.json")]) == 0
    shown = capsys.readouterr()
    assert shown.out == "40\n"
    assert "raise --highest-rate" in shown.err
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["workload"], found["rate_per_s"], len(found["trials"])) == ("small", 40, 2)


def test_the_command_says_when_nothing_meets_the_level(arguments, mock_server, capsys):
    mock_server.behave(Behaviour(ttft=Delay(mean_ms=30), itl=Delay(mean_ms=1)))
    assert main([*arguments, "--ttft-ms", "5", "--tpot-ms", "2000", "--lowest-rate", "20"]) == ExitStatus.INVALID
    assert "0 of 4 requests met it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (WORKLOAD, "declares no service_level"),
        (WORKLOAD.replace("seed: 7", "seed: -7"), "'seed'.*-7"),
        ("a: [", "cannot be read"),
    ],
)
def test_the_command_refuses_what_it_cannot_use(arguments, tmp_path, capsys, workload, message):
    (tmp_path / "small.yaml").write_text(workload)
    assert main(arguments) == ExitStatus.USAGE
    import re

    assert re.search(message, capsys.readouterr().err)


def test_a_log_becomes_a_trace(tmp_path, capsys):
    line = json.dumps({"created": 1, "usage": {"prompt_tokens": 700, "completion_tokens": 3}})
    (tmp_path / "log.jsonl").write_text(f"{line}\nnothing\n")
    assert main(["load", "import-log", str(tmp_path / "log.jsonl"), "--output", str(tmp_path / "t.jsonl")]) == 0
    assert "1 requests imported; left out: 1 lines not JSON" in capsys.readouterr().err
    assert read_trace(tmp_path / "t.jsonl")[0][0].input_length == 700


def test_a_log_without_counts_is_refused(tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text("{}\n")
    assert main(["load", "import-log", str(tmp_path / "log.jsonl"), "--output", str(tmp_path / "t.jsonl")]) == ExitStatus.USAGE
    assert "1 lines no token counts" in capsys.readouterr().err
    assert not (tmp_path / "t.jsonl").exists()


def test_a_trace_can_be_made(tmp_path):
    path = tmp_path / "t.jsonl"
    assert main(["load", "make-trace", "--requests", "30", "--duration", "9", "--output", str(path)]) == 0
    assert len(read_trace(path)[0]) == 30
