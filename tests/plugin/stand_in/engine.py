"""A stand-in engine for whole runs of the plugin: answers every route that the harness
uses, tokens at a stated pace, readings as told.

Started in vLLM's place by a launcher script: takes the arguments of ``python -m
vllm.entrypoints.openai.api_server``. Behaviour comes from the JSON file in
K3PERF_STAND_IN: ``token_s`` (what a token takes on the stand-in's own clock, which
``own_clock`` puts on the samples), ``real_token_s`` (how long it really waits for a
token, 0 by default), ``identity`` (overrides of what each rank says of itself),
``cache_config`` (overrides of the resolved configuration), ``die_after_requests``,
``die_once`` (a file that the engine makes when it dies after twelve requests; where it
is there no engine dies), ``die_at_reset`` (it dies when its peaks are to be read anew),
``tuned`` (by argument: the ``section`` of its resolved value, its ``default``, the
``forced`` value, how many times a token takes as long in ``pace``, ``no_memory``
values), ``weights_bytes``, ``rank_step_bytes`` (how much more weights each further rank has),
``rss_bytes``, ``call_log`` (a file that gets the name of every remote call),
``absent_engines`` (data-parallel engines that cannot write into the harness's
directory). It has as many ranks as tensor and data parallelism ask for, and like vLLM
returns the answers of the first data-parallel engine alone.
"""

import argparse
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

SERVER_INFO = json.loads(
    (
        Path(__file__).parent.parent.parent / "unit" / "metrics" / "server_info_0_32_0_cpu.json"
    ).read_text()
)
BEHAVIOUR = (
    json.loads(Path(os.environ["K3PERF_STAND_IN"]).read_text())
    if os.environ.get("K3PERF_STAND_IN")
    else {}
)
LINES = (
    "INFO 01-01 00:00:00 [api_utils.py:286] non-default args: {}",
    "INFO 01-01 00:00:00 [cpu_model_runner.py:68] Starting to load model stand-in...",
    (
        "INFO 01-01 00:00:00 [core.py:402] init engine (profile, create kv cache, warmup model)"
        " took 0.10 s"
    ),
    "INFO 01-01 00:00:00 [launcher.py:186] Available routes are:",
    "INFO:     Application startup complete.",
)


def die(why="RuntimeError: the stand-in dies as told"):
    sys.stderr.write(f"(EngineCore pid=1) ERROR 01-01 00:00:00 [core.py:1] {why}\n")
    sys.stderr.flush()
    os._exit(13)


class State:
    def __init__(self, config):
        self.config = config
        self.slow_ratio = 0.0
        self.held = {"weights": 0, "host": 0, "device": 0}
        self.request_count = 0
        self.token_count = 0
        self.lock = threading.Lock()

    @property
    def engine_rank_count(self):
        return int(self.config.get("tensor-parallel-size", 1))

    @property
    def rank_count(self):
        return self.engine_rank_count * int(self.config.get("data-parallel-size", 1))

    def memory(self, rank):
        kv_bytes = 1 << 20 if self.config.get("kv-cache-dtype") == "fp8" else 2 << 20
        return {
            "rank": rank,
            "weights_bytes": (
                BEHAVIOUR.get("weights_bytes", 1 << 20)
                + rank * BEHAVIOUR.get("rank_step_bytes", 0)
                + self.held["weights"]
            ),
            "kv_cache_bytes": kv_bytes,
            "resident_bytes": (1 << 20) + sum(self.held.values()),
            "peak_resident_bytes": (1 << 20) + sum(self.held.values()),
            "absent": ["graph_pool_bytes"],
        }

    def call(self, method, arguments):
        """One answer a rank of the first engine; what changes the engine is done once."""
        if "call_log" in BEHAVIOUR:
            with Path(BEHAVIOUR["call_log"]).open("a") as log:
                log.write(f"{method}\n")
        if method == "k3perf_memory":
            return self.answers(arguments, [self.memory(rank) for rank in range(self.rank_count)])
        if method == "k3perf_identity":
            identity = {
                "vllm_version": "0.32.0",
                "torch_version": "2.13.0",
                "python_version": "3.11.7",
                "host": "here",
                "device_names": ["stand-in"],
                **BEHAVIOUR.get("identity", {}),
            }
            return self.answers(
                arguments, [{"rank": rank, **identity} for rank in range(self.rank_count)]
            )
        if method == "k3perf_new_compiled_files":
            nothing = {"new_folders": [], "new_count": 0, "problem": ""}
            return self.answers(
                arguments[2:], [{"rank": rank, **nothing} for rank in range(self.rank_count)]
            )
        if method == "k3perf_reset_peaks" and BEHAVIOUR.get("die_at_reset"):
            die()
        if method == "k3perf_slow_down":
            self.slow_ratio = float(arguments[0]) / 100
        if method == "k3perf_hold_bytes":
            self.held[arguments[0]] += int(arguments[1])
            self.ballast = bytearray(os.urandom(1)) * int(arguments[1])
        return [None] * self.engine_rank_count

    def answers(self, arguments, of_every_rank):
        """Left by every rank in the directory named, returned for the first engine."""
        for answer in of_every_rank:
            if answer["rank"] // self.engine_rank_count not in BEHAVIOUR.get("absent_engines", ()):
                (Path(arguments[0]) / f"{answer['rank']}.json").write_text(json.dumps(answer))
        return of_every_rank[: self.engine_rank_count]

    def server_info(self):
        info = json.loads(json.dumps(SERVER_INFO))
        info["vllm_config"]["cache_config"].update(BEHAVIOUR.get("cache_config", {}))
        for name, rule in BEHAVIOUR.get("tuned", {}).items():
            value = rule.get("forced", self.config.get(name, rule["default"]))
            info["vllm_config"][rule["section"]][name.replace("-", "_")] = value
        info["vllm_config"]["parallel_config"]["worker_extension_cls"] = self.extension
        return info

    def token_s(self):
        pace = 1.0
        for name, rule in BEHAVIOUR.get("tuned", {}).items():
            pace *= rule.get("pace", {}).get(str(self.config.get(name, rule["default"])), 1.0)
        return BEHAVIOUR.get("token_s", 0.01) * (1 + self.slow_ratio) * pace

    def metrics(self):
        return f"vllm:generation_tokens_total {self.token_count}\nvllm:num_preemptions_total 0\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, data, content_type="application/json"):
        body = data.encode() if isinstance(data, str) else json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        state = self.server.state
        path = self.path.partition("?")[0]
        if path == "/v1/models":
            self.reply({"data": [{"id": state.config["served_model_name"]}]})
        elif path == "/server_info":
            self.reply(state.server_info())
        elif path == "/metrics":
            self.reply(state.metrics(), "text/plain")
        elif path == "/stand_in":
            self.reply({"token_s": state.token_s()})
        else:
            self.reply("", "text/plain")

    def do_POST(self):
        state = self.server.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path == "/collective_rpc":
            self.reply({"results": state.call(body["method"], body.get("args", []))})
        elif self.path == "/v1/completions":
            self.stream(state, body)
        else:
            self.reply({})

    def stream(self, state, body):
        with state.lock:
            state.request_count += 1
            once = Path(BEHAVIOUR["die_once"]) if "die_once" in BEHAVIOUR else None
            if once is not None and state.request_count > 12 and not once.exists():
                once.touch()
                BEHAVIOUR["die_after_requests"] = 0
            if state.request_count > BEHAVIOUR.get("die_after_requests", 10**9):
                die()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        prompt_count = len(body["prompt"])
        for index in range(body["max_tokens"]):
            time.sleep(BEHAVIOUR.get("real_token_s", 0.0))
            usage = {
                "prompt_tokens": prompt_count,
                "completion_tokens": index + 1,
                "total_tokens": prompt_count + index + 1,
            }
            self.event(
                {
                    "choices": [{"index": 0, "text": "t", "token_ids": [5], "finish_reason": None}],
                    "usage": usage,
                }
            )
            with state.lock:
                state.token_count += 1
        self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data):
        self.chunk(b"data: " + json.dumps(data).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    request_queue_size = (
        # the default of 5 makes the sixth of eight simultaneous connections wait a
        # second
        64
    )


def main():
    parser = argparse.ArgumentParser()
    for name in (
        "-m",
        "--config",
        "--host",
        "--port",
        "--served-model-name",
        "--worker-extension-cls",
        "--load-format",
    ):
        parser.add_argument(name)
    options = parser.parse_args()
    config = yaml.safe_load(Path(options.config).read_text())
    config["served_model_name"] = options.served_model_name
    for name, rule in BEHAVIOUR.get("tuned", {}).items():
        if str(config.get(name)) in rule.get("no_memory", ()):
            die("ValueError: No available memory for the cache blocks")
    server = Server((options.host, int(options.port)), Handler)
    server.state = State(config)
    server.state.extension = options.worker_extension_cls or ""
    for line in LINES:
        sys.stdout.write(f"(APIServer pid={os.getpid()}) {line}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
