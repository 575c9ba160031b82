"""Two questions to the server: is it healthy, and is it ours? Loopback only, short timeouts, no connection kept."""

from __future__ import annotations

import http.client
import json
import time
from typing import Final

_TIMEOUT_S: Final = 5.0
_LARGEST_BYTES: Final = 1 << 20


def _whole(response: http.client.HTTPResponse) -> bytes:
    """The body if it ends in time and is of a sane size; a socket's time-out alone starts anew with every byte."""
    end_s = time.monotonic() + _TIMEOUT_S
    parts: list[bytes] = []
    while part := response.read1(_LARGEST_BYTES):
        parts.append(part)
        if time.monotonic() >= end_s or sum(map(len, parts)) > _LARGEST_BYTES:
            raise OSError("the answer does not end")
    return b"".join(parts)


def _get(host: str, port: int, path: str) -> tuple[int, bytes] | None:
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read1(_LARGEST_BYTES) if path == "/health" else _whole(response)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def is_healthy(host: str, port: int) -> bool:
    """``/health`` answers 200."""
    answer = _get(host, port, "/health")
    return answer is not None and answer[0] == 200


def served_models(host: str, port: int) -> tuple[str, ...] | None:
    """Model names that ``/v1/models`` lists; None when it does not answer with such a list."""
    answer = _get(host, port, "/v1/models")
    if answer is None or answer[0] != 200:
        return None
    try:
        return tuple(str(entry["id"]) for entry in json.loads(answer[1])["data"])
    except (ValueError, KeyError, TypeError):
        return None
