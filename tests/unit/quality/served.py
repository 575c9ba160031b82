"""A server that answers completions as vLLM does, from known distributions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], tuple[int, Any]]


def entries(token: int, *, k: int, tilt: float = 0.0) -> dict[str, float]:
    """Log-probabilities of ``k`` tokens around ``token``, which is the least of them."""
    return {str(token + place): -0.7 - place * 0.3 - tilt for place in range(k)}


def vllm_like(body: dict[str, Any], *, tilt: float = 0.0) -> tuple[int, Any]:
    """The form of vLLM 0.32's answer."""
    forced = (body.get("vllm_xargs") or {}).get("k3perf_forced")
    ids = forced or [7] * body["max_tokens"]
    choice: dict[str, Any] = {"index": 0, "text": "", "token_ids": ids}
    if "prompt_logprobs" in body:
        choice["prompt_logprobs"] = [None] + [
            {
                name: {"logprob": x, "rank": 1}
                for name, x in entries(token, k=body["prompt_logprobs"], tilt=tilt).items()
            }
            for token in body["prompt"][1:]
        ]
    if "logprobs" in body:
        tops = [entries(token, k=body["logprobs"], tilt=tilt) for token in ids]
        choice["logprobs"] = {
            "top_logprobs": [{f"token_id:{name}": x for name, x in top.items()} for top in tops],
            "token_logprobs": [top[str(token)] for top, token in zip(tops, ids, strict=True)],
        }
    return 200, {"choices": [choice]}


@contextmanager
def server(reply: Reply) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Base URL and the bodies that came."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append(body)
            status, answer = reply(body)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}", seen
    finally:
        running.shutdown()
        thread.join()
        running.server_close()
