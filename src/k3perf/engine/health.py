"""Two questions to the server: is it healthy, and is it ours? Loopback only, short
timeouts, no connection kept.
"""

from __future__ import annotations

import json
from typing import Final

from k3perf import http_answer

_TIMEOUT_S: Final = 5.0
_LARGEST_BYTES: Final = 1 << 20


def _get(host: str, port: int, path: str) -> tuple[int, bytes] | None:
    try:
        return http_answer.answer(
            (host, port),
            "GET",
            path,
            headers={"Connection": "close"},
            limit_s=_TIMEOUT_S,
            largest_bytes=_LARGEST_BYTES,
        )
    except http_answer.FAILURES:
        return None


def is_healthy(host: str, port: int) -> bool:
    """``/health`` answers 200, to its end and in time."""
    answer = _get(host, port, "/health")
    return answer is not None and answer[0] == 200


def served_models(host: str, port: int) -> tuple[str, ...] | None:
    """Model names that ``/v1/models`` lists. None without such a list."""
    answer = _get(host, port, "/v1/models")
    if answer is None or answer[0] != 200:
        return None
    try:
        return tuple(str(entry["id"]) for entry in json.loads(answer[1])["data"])
    except (ValueError, KeyError, TypeError):
        return None
