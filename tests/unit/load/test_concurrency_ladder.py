"""A concurrency ladder against the mock server, and the saturation point that it gives."""

import json
import random

import pytest

from k3perf.cli.main import main
from k3perf.cli.sweep_command import saturation
from k3perf.errors import ExitStatus
from k3perf.load.concurrency_ladder import LadderStep, ladder_order

WORKLOAD = "--workload single_stream --vocabulary-size 1000 --model-name mock"


def test_a_ladder_climbs_up_and_down():
    assert ladder_order((1, 2, 4), 2) == [(0, 1), (0, 2), (0, 4), (1, 4), (1, 2), (1, 1)]


def steps(throughput, passes=3):
    noise = random.Random(1)
    return [
        LadderStep(concurrency, index, 8, rate * noise.gauss(1, 0.005), 10.0, 20.0, 5.0)
        for index in range(passes)
        for concurrency, rate in throughput.items()
    ]


def test_saturation_is_where_more_in_flight_brings_nothing():
    knee = saturation(steps({1: 100.0, 2: 190.0, 4: 350.0, 8: 500.0, 16: 502.0, 32: 499.0}))
    assert knee.value == 8
    assert knee.low <= 8 <= knee.high


def test_no_saturation_where_throughput_still_rises():
    assert "still rises at 8" in saturation(steps({1: 100.0, 2: 190.0, 4: 350.0, 8: 600.0})).text


def test_one_pass_shows_no_saturation():
    assert saturation(steps({1: 100.0, 2: 190.0, 4: 350.0}, passes=1)) is None


def test_a_running_server_is_climbed(mock_server, repository, monkeypatch, capsys):
    monkeypatch.chdir(repository)
    words = f"sweep --concurrency 1,2 --blocks 1 --json --base-url {mock_server.base_url}"
    assert main([*words.split(), *WORKLOAD.split()]) == ExitStatus.OK
    found = json.loads(capsys.readouterr().out)
    assert [one["concurrency"] for one in found["steps"]] == [1, 2]
    assert all(one["output_tokens_per_s"] > 0 for one in found["steps"])
    assert found["saturation"] is None


def test_no_server_is_invalid(repository, monkeypatch, capsys):
    monkeypatch.chdir(repository)
    words = "sweep --concurrency 1,2 --base-url http://127.0.0.1:9"
    assert main([*words.split(), *WORKLOAD.split()]) == ExitStatus.INVALID
    assert "no server answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--concurrency 0,2", "whole numbers from 1"),
        ("--concurrency 1,2 --set max_num_seqs=4", "not both"),
        ("--set max_num_seqs=4 --base-url http://127.0.0.1:9", "belongs to --concurrency"),
        ("--concurrency 1,2 --base-url http://127.0.0.1:9", "needs --model-name"),
    ],
)
def test_wrong_use_is_one_message(repository, monkeypatch, capsys, words, message):
    monkeypatch.chdir(repository)
    assert main(["sweep", "--workload", "single_stream", *words.split()]) == ExitStatus.USAGE
    assert message in capsys.readouterr().err
