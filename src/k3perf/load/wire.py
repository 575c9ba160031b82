"""Planned requests to the bytes of HTTP requests. Pure. Encoding happens before a
round's clock starts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import orjson

from k3perf.config.workload_spec import Sampling
from k3perf.errors import UsageError, shortened


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server's address, from a base URL such as ``http://127.0.0.1:8000``."""

    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, base_url: str) -> Endpoint:
        """Raises UsageError for anything but plain http with a host."""
        # a port that is not a number, an unclosed bracket
        with suppress(ValueError):
            parts = urlsplit(base_url)
            port = parts.port or 80
            if parts.scheme == "http" and parts.hostname:
                return cls(parts.hostname, port, parts.path.rstrip("/"))
        raise UsageError(
            f"cannot send load to {shortened(base_url)!r}: give a base URL such as http://127.0.0.1:8000"
        )


def completion_body(
    prompt_token_ids: tuple[int, ...],
    output_token_count: int,
    *,
    model_name: str,
    sampling: Sampling,
    seed: int,
) -> bytes:
    """A streaming ``/v1/completions`` body: token ids in, a fixed number of tokens out,
    ids and counts in every chunk.
    """
    body = {
        "model": model_name,
        "prompt": prompt_token_ids,
        "max_tokens": output_token_count,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "n": sampling.sequences,
    }
    if sampling.temperature > 0:
        body["seed"] = seed
    return orjson.dumps(body)


def http_request(endpoint: Endpoint, body: bytes) -> bytes:
    """The bytes of one POST on a kept-open connection."""
    head = (
        f"POST {endpoint.path}/v1/completions HTTP/1.1\r\n"
        f"Host: {endpoint.host}:{endpoint.port}\r\n"
        "Content-Type: application/json\r\n"
        "Accept: text/event-stream\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body
