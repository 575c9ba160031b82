"""The mock server's delays, routes, counts and refusals."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import urllib.error
import urllib.request
from statistics import fmean

import pytest

from k3perf.cli.main import main
from k3perf.errors import ExitStatus, UsageError
from k3perf.load.mock_server import Behaviour, Delay
from k3perf.load.mock_server import main as mock_main
from k3perf.load.mock_server.prefix_cache import PrefixCache
from k3perf.load.mock_server.truth import RequestTruth, Truth
from tests.processes import WAIT_S


def get(server, path, body=None):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(server.base_url + path, data=data)  # noqa: S310
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310
        return answer.read().decode()


@pytest.mark.parametrize(
    ("delay", "mean_ms"),
    [
        (Delay(mean_ms=7), 7),
        (Delay(kind="uniform", mean_ms=7, spread=2), 7),
        (Delay(kind="exponential", mean_ms=7), 7),
        (Delay(kind="lognormal", mean_ms=7, spread=0.4), 7),
    ],
)
def test_delays_have_their_mean(delay, mean_ms):
    generator = random.Random(1)
    drawn = [delay.draw_ns(generator) for _ in range(20_000)]
    assert min(drawn) >= 0
    assert fmean(drawn) / 1e6 == pytest.approx(mean_ms, rel=0.03)


def test_it_writes_when_it_says(mock_server):
    mock_server.behave(Behaviour(ttft=Delay(mean_ms=30), itl=Delay(mean_ms=4)))
    get(mock_server, "/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 5, "stream": True})
    (record,) = mock_server.truth()
    waited_ms = [(at_ns - record["received_ns"]) / 1e6 for at_ns in record["write_ns"]]
    assert len(waited_ms) == 5
    assert all(waited >= due for waited, due in zip(waited_ms, (30, 34, 38, 42, 46), strict=True))
    assert record["prompt_token_count"] == 3


def test_steps_put_every_chunk_on_a_common_grid(mock_server):
    mock_server.behave(Behaviour(ttft=Delay(mean_ms=7), itl=Delay(mean_ms=1), step_ms=50))
    get(mock_server, "/v1/completions", {"prompt": [5], "max_tokens": 3, "stream": True})
    (record,) = mock_server.truth()
    steps = [at_ns // 50_000_000 for at_ns in record["write_ns"]]
    assert [step - steps[0] for step in steps] == [0, 1, 2]


def test_chat_streams_have_a_role_chunk_and_a_reasoning_channel(mock_server):
    mock_server.behave(
        Behaviour(ttft=Delay(mean_ms=1), itl=Delay(mean_ms=1), empty_chunks=1, reasoning_tokens=1)
    )
    body = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 2, "stream": True}
    body["stream_options"] = {"include_usage": True}
    lines = [
        line[6:]
        for line in get(mock_server, "/v1/chat/completions", body).splitlines()
        if line.startswith("data: {")
    ]
    deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": " t10"},
        {"content": " t11"},
    ]
    assert json.loads(lines[-1])["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
    }


def test_replies_without_streaming_are_whole(mock_server):
    mock_server.behave(Behaviour(ttft=Delay(mean_ms=1), itl=Delay(mean_ms=1)))
    reply = json.loads(
        get(mock_server, "/v1/completions", {"prompt": "a b", "max_tokens": 3, "n": 2})
    )
    assert [choice["text"] for choice in reply["choices"]] == [" t10 t11 t12"] * 2
    assert reply["usage"]["completion_tokens"] == 6


def test_the_other_routes_answer(mock_server):
    mock_server.behave(Behaviour(model_name="k"))
    assert get(mock_server, "/health") == ""
    assert json.loads(get(mock_server, "/v1/models"))["data"][0]["id"] == "k"
    assert 'vllm:num_preemptions_total{engine="0",model_name="k"} 0.0' in get(
        mock_server, "/metrics"
    )
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(mock_server, "/nothing")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        get(mock_server, "/behaviour", {"ttft": {"mean_ms": -1}})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        get(mock_server, "/v1/completions", [1])


def test_histograms_are_cumulative_and_complete():
    truth = Truth(
        [RequestTruth(0, 1, 3, 0, 0, "", [3_000_000, 10_000_000, 200_000_000], [1, 2, 1])]
    )
    text = truth.metrics_text("m")
    label = 'engine="0",model_name="m"'
    assert f'vllm:time_to_first_token_seconds_bucket{{{label},le="0.001"}} 0.0' in text
    assert f'vllm:time_to_first_token_seconds_bucket{{{label},le="0.005"}} 1.0' in text
    assert f'vllm:inter_token_latency_seconds_bucket{{{label},le="0.005"}} 2.0' in text
    assert f'vllm:inter_token_latency_seconds_bucket{{{label},le="+Inf"}} 3.0' in text
    assert f"vllm:inter_token_latency_seconds_sum{{{label}}} 0.197" in text
    assert f"vllm:generation_tokens_total{{{label}}} 4.0" in text


def test_the_prefix_cache_hits_whole_blocks_from_the_beginning():
    cache = PrefixCache(4)
    assert cache.look_up_and_add(range(10)) == 0
    assert cache.look_up_and_add([*range(8), 99, 98, 97]) == 8
    assert cache.look_up_and_add([7, *range(1, 8), 5]) == 0
    assert cache.look_up_and_add(range(8)) == 4
    assert cache.look_up_and_add(range(3)) == 0


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    mock_main.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fault", "earthquake"), "earthquake"),
        (("--ttft", "soon"), "soon"),
        (("--itl", "5:weibull"), "weibull"),
        (("--chunk-tokens", "0"), "chunk_tokens"),
        (("--behaviour", "{"), "JSON"),
    ],
)
def test_arguments_that_cannot_be_meant_are_one_message(arguments, message):
    with pytest.raises(UsageError, match=message):
        mock_main.run(parsed(*arguments))


def test_a_taken_port_is_one_message(mock_server):
    port = mock_server.base_url.rsplit(":", 1)[1]
    with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{port}.*choose another"):
        mock_main.run(parsed("--port", port))


def test_the_command_serves_and_ends_on_a_signal():
    command = [
        sys.executable,
        "-m",
        "k3perf.cli.main",
        "mock-server",
        "--port",
        "0",
        "--fault",
        "http_429:2:1",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(url + "/health", timeout=WAIT_S) as answer:  # noqa: S310
            assert answer.status == 200
        process.terminate()
        assert process.wait(WAIT_S) == 0


def test_the_fast_server_refuses_what_it_cannot_do(capsys):
    assert main(["mock-server", "--fast", "--itl", "5:exponential"]) == ExitStatus.USAGE
    assert "--fast knows fixed --ttft and --itl" in capsys.readouterr().err
    assert main(["mock-server", "--fast", "--fault", "reset"]) == ExitStatus.USAGE
