"""A record of what the mock server did, to the nanosecond of the shared monotonic
clock, also as vLLM's metrics text.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final

from k3perf.units import NS_PER_S

_LATENCY_BOUNDS_S: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
    80.0,
)


def prompt_crc32(prompt_token_ids: Sequence[int]) -> int:
    """A prompt's checksum. It joins a client's sample with the server's record."""
    return zlib.crc32(",".join(map(str, prompt_token_ids)).encode())


@dataclass(slots=True)
class RequestTruth:
    """One request: when its last byte was read, when each token-bearing write reached
    the socket, and how many tokens it held.
    """

    ordinal: int
    prompt_crc32: int
    prompt_token_count: int
    cached_token_count: int
    received_ns: int
    fault: str = ""
    write_ns: list[int] = field(default_factory=list)
    write_tokens: list[int] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The record as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Truth:
    """All requests since the start or the last reset."""

    requests: list[RequestTruth] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """All records as plain data."""
        return {"requests": [request.as_json() for request in self.requests]}

    def metrics_text(self, model_name: str) -> str:
        """Counters and histograms under vLLM's names, in the Prometheus text form."""
        ttfts_ns = [
            request.write_ns[0] - request.received_ns
            for request in self.requests
            if request.write_ns
        ]
        itls_ns = [
            (after - before) / tokens
            for request in self.requests
            for (before, after), tokens in zip(
                pairwise(request.write_ns), request.write_tokens[1:], strict=True
            )
            for _ in range(tokens)
        ]
        label = f'{{engine="0",model_name="{model_name}"'
        counters = {
            "vllm:prompt_tokens_total": sum(
                request.prompt_token_count for request in self.requests
            ),
            "vllm:generation_tokens_total": sum(
                sum(request.write_tokens) for request in self.requests
            ),
            "vllm:prefix_cache_queries_total": sum(
                request.prompt_token_count for request in self.requests
            ),
            "vllm:prefix_cache_hits_total": sum(
                request.cached_token_count for request in self.requests
            ),
            "vllm:num_preemptions_total": 0,
        }
        lines = [
            line
            for name, value in counters.items()
            for line in (f"# TYPE {name} counter", f"{name}{label}}} {float(value)}")
        ]
        lines += _histogram("vllm:time_to_first_token_seconds", label, ttfts_ns)
        lines += _histogram("vllm:inter_token_latency_seconds", label, itls_ns)
        return "\n".join(lines) + "\n"


def _histogram(name: str, label: str, values_ns: Sequence[float]) -> list[str]:
    counts = [0] * (len(_LATENCY_BOUNDS_S) + 1)
    for value_ns in values_ns:
        counts[
            next(
                (
                    place
                    for place, bound_s in enumerate(_LATENCY_BOUNDS_S)
                    if value_ns <= bound_s * NS_PER_S
                ),
                -1,
            )
        ] += 1
    bounds = (*map(str, _LATENCY_BOUNDS_S), "+Inf")
    lines = [f"# TYPE {name} histogram"]
    lines += [
        f'{name}_bucket{label},le="{bound}"}} {float(total)}'
        for bound, total in zip(bounds, accumulate(counts), strict=True)
    ]
    lines.append(f"{name}_count{label}}} {float(len(values_ns))}")
    lines.append(f"{name}_sum{label}}} {sum(values_ns) / NS_PER_S!r}")
    return lines
