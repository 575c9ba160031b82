"""The HTTP routes of the fake engine. Standard library only; the API server alone imports
it, which takes longer than all else that a process of the fake engine does.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

SERVER_INFO = {
    "vllm_config": {
        "cache_config": {
            "block_size": 16,
            "num_gpu_blocks": 64,
            "kv_cache_size_tokens": 1024,
            "kv_cache_max_concurrency": 16.0,
            "effective_attention_block_size": 16,
        },
        "scheduler_config": {"max_num_seqs": 8},
        "device_config": {"device": "cpu"},
    },
    "vllm_env": {},
    "system_env": {"vllm_version": "0.0-fake"},
}
RPC = {
    "k3perf_identity": {
        "rank": 0,
        "vllm_version": "0.0-fake",
        "python_version": "3",
        "torch_version": "0",
        "device_names": [],
        "host": "fake",
    },
    "k3perf_memory": {"rank": 0, "weights_bytes": 1 << 20, "kv_cache_bytes": 1 << 20},
    "k3perf_new_compiled_files": {"rank": 0, "new_folders": [], "new_count": 0, "problem": ""},
}


def metrics_text(*, preempted: bool) -> str:
    values = {
        "vllm:generation_tokens_total": Handler.served,
        "vllm:num_preemptions_total": Handler.requests if preempted else 0,
        "vllm:time_to_first_token_seconds_sum": Handler.ttft_sum_s,
        "vllm:time_to_first_token_seconds_count": Handler.requests,
    }
    return "".join(
        f'{name}{{model_name="fake"}} {float(value)}\n' for name, value in values.items()
    )


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options: argparse.Namespace
    say: Callable[[str, str], None]
    served = 0
    requests = 0
    ttft_sum_s = 0.0
    lock = threading.Lock()

    def log_message(self, *_: object) -> None:
        return

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        faults = self.options.faults
        if self.path == "/health":
            self.answer(503 if faults.get("unhealthy") is not None else 200, b"")
        elif self.path == "/v1/models":
            name = faults.get("wrong_model") or self.options.model
            self.answer(200, json.dumps({"object": "list", "data": [{"id": name}]}).encode())
        elif self.path == "/metrics" and faults.get("endless_metrics") is not None:
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b"# HELP vllm:nothing " + b"x" * (1 << 16) + b"\n")
        elif self.path == "/metrics" and faults.get("no_counters") is not None:
            self.answer(200, b"", "text/plain")
        elif self.path == "/metrics":
            self.answer(
                200,
                metrics_text(preempted=faults.get("preempts") is not None).encode(),
                "text/plain",
            )
        elif self.path == "/stand_in":
            self.answer(200, b'{"token_s": 0.002}')
        elif self.path.startswith("/server_info"):
            self.answer(200, json.dumps(SERVER_INFO).encode())
        else:
            self.answer(404, b"{}")

    def wait_at_gate(self) -> None:
        faults = self.options.faults
        self.say("api", "serving a request")
        gate, wanted = faults.get("wait_for"), faults.get("wait_with")
        if wanted and wanted not in Path(self.options.config).read_text():
            return
        while gate and not Path(gate).exists():
            self.say("api", "waiting at the gate")
            time.sleep(0.02)

    def do_POST(self) -> None:
        faults = self.options.faults
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path != "/v1/completions":
            answer = RPC.get(body.get("method", ""))
            if (
                faults.get("leaves_kernels") is not None
                and body.get("method") == "k3perf_new_compiled_files"
            ):
                answer = {
                    **RPC["k3perf_new_compiled_files"],
                    "new_folders": ["/x/deep_gemm/cache/k"],
                    "new_count": 1,
                }
            self.answer(200, json.dumps({"results": [answer], "success": True}).encode())
            return
        if faults.get("no_completions") is not None:
            self.answer(500, b'{"error": {"message": "EngineDeadError"}}')
            return
        count = int(body.get("max_tokens", 4))
        prompt_count = len(body.get("prompt", ()))
        begin_s = time.monotonic()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wait_at_gate()
        for index in range(count):
            if faults.get("compile_in_service") is not None and index == 1:
                self.say(
                    "worker",
                    "WARNING [jit_monitor.py:140] Triton JIT compile during inference: kernel. This"
                    " causes a latency spike; consider",
                )
            if faults.get("die_mid_stream") is not None and index == count // 2:
                os._exit(9)
            if faults.get("stall_mid_stream") is not None and index == count // 2:
                time.sleep(3600)
            time.sleep(0.002)
            usage = {
                "prompt_tokens": prompt_count,
                "completion_tokens": index + 1,
                "total_tokens": prompt_count + index + 1,
            }
            reason = "length" if index + 1 == count else None
            if faults.get("answers_short") is not None and index + 1 == count:
                break
            chunk = {
                "choices": [{"index": 0, "text": "x", "token_ids": [1], "finish_reason": reason}],
                "usage": usage,
            }
            with Handler.lock:
                Handler.served += 1
                if index == 0:
                    Handler.requests += 1
                    Handler.ttft_sum_s += time.monotonic() - begin_s
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True
