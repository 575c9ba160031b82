from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from k3perf.engine import health
from k3perf.errors import EngineError
from k3perf.records.samples import RankMemory
from k3perf.telemetry.server import ServerProbe
from tests.processes import WAIT_S

INFO = {
    "vllm_config": {
        "cache_config": {
            "block_size": 640,
            "effective_attention_block_size": 640,
            "kv_cache_size_tokens": 516096,
            "kv_cache_max_concurrency": 126.0,
            "num_gpu_blocks": 1638,
        },
        "scheduler_config": {"max_num_seqs": 32},
    },
    "vllm_env": {"VLLM_CPU_KVCACHE_SPACE": 1},
    "system_env": {"vllm_version": "0.32.0"},
}


class FakeServer:
    """Answers by path; ``calls`` keeps what was posted to the RPC route."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {
            "/server_info?config_format=json": (200, json.dumps(INFO)),
            "/metrics": (200, "vllm:num_preemptions_total 3.0\n"),
            "/reset_prefix_cache": (200, '{"success": true}'),
        }
        self.rpc: dict[str, list[Any]] = {}
        self.calls: list[dict[str, Any]] = []
        self.url = ""


@contextmanager
def serving(fake: FakeServer) -> Iterator[FakeServer]:
    class Handler(BaseHTTPRequestHandler):
        def _send(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self) -> None:
            self._send(*fake.answers.get(self.path, (404, '{"detail":"Not Found"}')))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/collective_rpc" and self.path not in fake.answers:
                call = json.loads(body)
                fake.calls.append(call)
                self._send(200, json.dumps({"results": fake.rpc[call["method"]]}))
            else:
                self._send(*fake.answers.get(self.path, (404, "{}")))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with serving(FakeServer()) as running:
        yield running


def test_memory_of_every_rank_in_rank_order_with_what_is_absent(fake: FakeServer) -> None:
    fake.rpc["k3perf_memory"] = [
        {"rank": 1, "weights_bytes": 7},
        {"rank": 0, "weights_bytes": 5, "kv_cache_bytes": 0, "new_part_bytes": 3},
    ]
    first, second = ServerProbe(fake.url).rank_memory()
    assert (first.rank, first.weights_bytes, first.kv_cache_bytes) == (0, 5, 0)
    assert "kv_cache_bytes" not in first.absent
    assert "peak_activation_bytes" in first.absent
    assert second == RankMemory(rank=1, weights_bytes=7, absent=second.absent)
    assert "kv_cache_bytes" in second.absent


def test_calls_carry_method_and_arguments(fake: FakeServer) -> None:
    fake.rpc["k3perf_hold_bytes"] = [{"rank": 0}]
    assert ServerProbe(fake.url, timeout_s=7).call("k3perf_hold_bytes", "weights", 1 << 20) == [
        {"rank": 0}
    ]
    assert fake.calls == [
        {"method": "k3perf_hold_bytes", "args": ["weights", 1 << 20], "timeout": 7}
    ]


def test_capacity_and_resolved_configuration(fake: FakeServer) -> None:
    fake.rpc["k3perf_identity"] = [{"rank": 0, "vllm_version": "0.32.0", "triton_version": "3.9.0"}]
    probe = ServerProbe(fake.url)
    assert (probe.kv_capacity_tokens, probe.max_concurrency, probe.block_size_tokens) == (
        516096,
        126.0,
        640,
    )
    resolved = probe.resolved_config()
    assert resolved["cache_config.block_size"] == 640
    assert resolved["version.triton"] == "3.9.0"
    assert resolved["env.VLLM_CPU_KVCACHE_SPACE"] == 1


def test_counters(fake: FakeServer) -> None:
    assert ServerProbe(fake.url).counters() == {"vllm:num_preemptions_total": 3.0}


def test_counters_are_waited_for_and_given_as_they_are_when_time_is_up(fake: FakeServer) -> None:
    probe = ServerProbe(fake.url)
    before = probe.counters()

    def count_later() -> None:
        fake.answers["/metrics"] = (200, "vllm:num_preemptions_total 5.0\n")

    later = threading.Timer(0.2, count_later)
    later.start()
    assert probe.counters_after(before, "vllm:num_preemptions_total", 2, timeout_s=WAIT_S) == {
        "vllm:num_preemptions_total": 5.0
    }
    later.join()
    assert probe.counters_after(before, "vllm:num_preemptions_total", 3, timeout_s=0) == {
        "vllm:num_preemptions_total": 5.0
    }


def test_a_refused_cache_reset_is_an_error(fake: FakeServer) -> None:
    ServerProbe(fake.url).reset_prefix_cache()
    fake.answers["/reset_prefix_cache"] = (200, '{"success": false}')
    with pytest.raises(EngineError, match="blocks are still held"):
        ServerProbe(fake.url).reset_prefix_cache()
    fake.answers["/reset_prefix_cache"] = (200, "")
    ServerProbe(fake.url).reset_prefix_cache()


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        (
            "/server_info?config_format=json",
            (404, "{}"),
            "HTTP status 404; start the server with VLLM_SERVER_DEV_MODE=1",
        ),
        ("/server_info?config_format=json", (200, "<html>"), "the answer is not valid JSON"),
        ("/server_info?config_format=json", (200, "[]"), "not a JSON object"),
        (
            "/server_info?config_format=json",
            (200, '{"vllm_config": {"cache_config": {}}}'),
            "no 'scheduler_config'",
        ),
        ("/collective_rpc", (500, '{"error": "boom"}'), "HTTP status 500"),
        ("/collective_rpc", (200, '{"results": "x"}'), "did not answer with a list of results"),
    ],
)
def test_unusable_answers_name_route_and_content(
    fake: FakeServer, path: str, answer: tuple[int, str], message: str
) -> None:
    fake.rpc["k3perf_identity"] = [{"rank": 0}]
    fake.answers[path] = answer
    with pytest.raises(EngineError, match=message):
        ServerProbe(fake.url).resolved_config()


@pytest.mark.parametrize("answer", [None, "x", {}, {"rank": "first"}])
def test_an_answer_without_the_ranks_number_is_an_engine_error(
    fake: FakeServer, answer: object
) -> None:
    fake.rpc["k3perf_memory"] = [answer]
    with pytest.raises(EngineError, match=r"k3perf_memory answered .*, not one dict per rank"):
        ServerProbe(fake.url).rank_memory()


def test_no_answer_at_all_is_an_engine_error(fake: FakeServer) -> None:
    fake.rpc["k3perf_identity"] = []
    with pytest.raises(EngineError, match="no rank answered k3perf_identity"):
        ServerProbe(fake.url).identity()


def test_text_that_is_no_exposition_is_an_engine_error(fake: FakeServer) -> None:
    fake.answers["/metrics"] = (200, "<html>")
    with pytest.raises(EngineError, match="not a Prometheus sample"):
        ServerProbe(fake.url).counters()


def test_a_server_that_is_gone_is_an_engine_error() -> None:
    with serving(FakeServer()) as gone:
        pass
    with pytest.raises(EngineError, match="GET /metrics"):
        ServerProbe(gone.url).counters()


def test_an_address_without_port_is_refused() -> None:
    with pytest.raises(EngineError, match="http://HOST:PORT"):
        ServerProbe("https://127.0.0.1")


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        ({"rank": 0, "weights_bytes": "much"}, "weights_bytes of k3perf_memory is 'much'"),
        ({"rank": 0, "weights_bytes": -1}, "weights_bytes of k3perf_memory is '-1'"),
        ({"rank": "first"}, "not one dict per rank with the rank's number"),
        ({"rank": -1}, "k3perf_memory answered rank -1: .*python -m k3perf_probe.contract"),
    ],
)
def test_memory_that_is_no_size_is_an_engine_error(
    fake: FakeServer, rank: dict[str, Any], message: str
) -> None:
    fake.rpc["k3perf_memory"] = [rank]
    with pytest.raises(EngineError, match=message):
        ServerProbe(fake.url).rank_memory()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_cache_size_tokens": "all"}, "kv_capacity_tokens of /server_info is 'all'"),
        (
            {"kv_cache_size_tokens": float("nan")},
            "the answer is not valid JSON",
        ),  # json.dumps writes NaN, which is none
    ],
)
def test_a_capacity_that_is_no_number_is_an_engine_error(
    fake: FakeServer, change: dict[str, Any], message: str
) -> None:
    info = json.loads(json.dumps(INFO))
    info["vllm_config"]["cache_config"] |= change
    fake.answers["/server_info?config_format=json"] = (200, json.dumps(info))
    with pytest.raises(EngineError, match=message):
        _ = ServerProbe(fake.url).kv_capacity_tokens


def test_sections_of_another_form_are_an_engine_error(fake: FakeServer) -> None:
    fake.rpc["k3perf_identity"] = [{"rank": 0}]
    fake.answers["/server_info?config_format=json"] = (
        200,
        json.dumps(INFO | {"vllm_env": ["A=1"]}),
    )
    with pytest.raises(EngineError, match="not of the form"):
        ServerProbe(fake.url).resolved_config()


def test_an_answer_to_a_reset_that_is_no_json(fake: FakeServer) -> None:
    fake.answers["/reset_prefix_cache"] = (200, "done")
    with pytest.raises(
        EngineError, match="/reset_prefix_cache: the answer is not valid JSON: 'done'"
    ):
        ServerProbe(fake.url).reset_prefix_cache()


@contextmanager
def dripping(pause_s: float, piece: bytes) -> Iterator[int]:
    """A server whose answers never end; gives its port."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while not ended.wait(pause_s):
                    self.wfile.write(piece)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("pause_s", "piece", "message"),
    [(0.02, b"x 1\n", "did not end within 0.3 s"), (0, b"x" * 65536, "larger than 64 MiB")],
)
def test_an_answer_that_never_ends_is_an_engine_error(
    pause_s: float, piece: bytes, message: str
) -> None:
    with dripping(pause_s, piece) as port, pytest.raises(EngineError, match=message):
        ServerProbe(f"http://127.0.0.1:{port}", timeout_s=0.3 if pause_s else WAIT_S).counters()


def test_endless_answers_do_not_hold_up_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_TIMEOUT_S", 0.3)
    with dripping(0.02, b"x") as port:
        assert not health.is_healthy("127.0.0.1", port)
        assert health.served_models("127.0.0.1", port) is None
