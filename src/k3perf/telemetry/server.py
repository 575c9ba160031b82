"""A running server's own readings over loopback HTTP: counters, resolved configuration,
memory of every rank, versions.

vLLM calls a method in every data-parallel engine (``call_utility_all_async``: so the
peaks restart and injected faults act in all of them), and answers when all are done,
but with the first engine's answers alone. What the ranks of the others read is
therefore left as files in a directory of that one call, and gathered from there
(``every_rank``).

Synchronous and used between rounds only, never inside a measured window. Needs the
server in dev mode and started with the worker extension of ``k3perf_probe``. Every
failure is an EngineError that names the route and what came back.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import fields
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from k3perf import http_answer
from k3perf.errors import EngineError
from k3perf.metrics import resolved
from k3perf.metrics.environment import read_environment
from k3perf.records.samples import RankMemory
from k3perf.telemetry.counters import CounterTextError, parse_counters
from k3perf.units import s_to_ns

_POLL_S = 0.02
# Of what is installed beside vLLM; drivers and CUDA may differ between hosts of one
# engine while they are upgraded in turn.
_SAME_ON_EVERY_RANK: Final = (
    "vllm_version",
    "torch_version",
    "triton_version",
    "flashinfer_version",
    "transformers_version",
)
_LARGEST_ANSWER_BYTES = 64 << 20  # /metrics of a large deployment has a few MiB
_MEMORY_FIELDS = tuple(
    field.name for field in fields(RankMemory) if field.name not in {"rank", "absent"}
)


class ServerProbe:
    """Readings of the server at ``base_url`` (``http://127.0.0.1:PORT``); each call
    opens and closes one connection.

    The directory of each gathered call is made in ``scratch``, which is the engine's
    (``Engine.scratch``): it goes with the engine, even when the harness is killed
    between the making and the removing. Without one it is made in the system's
    temporary directory.
    """

    def __init__(
        self, base_url: str, *, timeout_s: float = 30.0, scratch: Path | None = None
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise EngineError(
                f"base URL {base_url!r} is not http://HOST:PORT; pass the address that the engine"
                " listens on"
            )
        self._host = parts.hostname
        self._port = parts.port
        self._timeout_s = timeout_s
        self._scratch = scratch
        self._info: dict[str, Any] | None = None

    def counters(self) -> dict[str, float]:
        """The server's counters and gauges by name, summed over label sets."""
        text = self._request("GET", "/metrics")
        try:
            return parse_counters(text)
        except CounterTextError as problem:
            raise EngineError(f"GET /metrics of {self._host}:{self._port}: {problem}") from None

    def counters_after(
        self, before: Mapping[str, float], name: str, growth: float, *, timeout_s: float = 5.0
    ) -> dict[str, float]:
        """The counters once ``name`` has grown by ``growth`` since ``before``, else as
        they are after ``timeout_s``.

        The server answers a request before it counts it, so a reading right after the
        last answer can lack the last requests. A server that has no such counter gets a
        tenth of the time: it is not going to have one.
        """
        begin_ns = time.monotonic_ns()
        while True:
            counters = self.counters()
            patience_s = timeout_s if name in before or name in counters else timeout_s / 10
            if counters.get(name, 0.0) - before.get(
                name, 0.0
            ) >= growth or time.monotonic_ns() >= begin_ns + s_to_ns(patience_s):
                return counters
            time.sleep(_POLL_S)

    def server_info(self, *, refresh: bool = False) -> dict[str, Any]:
        """JSON of the server-info route. Fixed once the server is ready, so it is read
        once unless ``refresh``.
        """
        if self._info is None or refresh:
            self._info = self._json(
                "GET",
                "/server_info?config_format=json",
                hint="start the server with VLLM_SERVER_DEV_MODE=1",
            )
        return self._info

    def resolved_config(self) -> dict[str, Any]:
        """Flat dict of every value that decides speed or memory, with the worker's
        versions (``metrics.resolved``).
        """
        try:
            return resolved.resolved_config(self.server_info(), self.identity())
        except resolved.MissingSectionError as problem:
            raise EngineError(str(problem)) from None
        except (AttributeError, TypeError) as problem:
            raise EngineError(
                f"GET /server_info: a section is not of the form that this reader knows: {problem}"
            ) from None

    def environment(self) -> dict[str, str]:
        """What the machine brings, as every rank that answered sees it."""
        return read_environment(self.server_info(), self._identities())

    def rank_memory(self) -> tuple[RankMemory, ...]:
        """Memory parts of every rank that answered, in rank order. A part not offered
        is None and named in ``absent``.
        """
        return tuple(rank_memory(answer) for answer in self.every_rank("k3perf_memory"))

    def identity(self) -> dict[str, Any]:
        """Versions, device names and host of the first rank. EngineError when another
        rank's host has another release of what serves.
        """
        answers = self._identities()
        for name, other in itertools.product(_SAME_ON_EVERY_RANK, answers[1:]):
            if other.get(name) != answers[0].get(name):
                told = " and ".join(
                    f"{one.get(name)} on rank {one['rank']} (host {one.get('host')})"
                    for one in (answers[0], other)
                )
                raise EngineError(
                    f"one engine's ranks have different releases: {name} is {told}; install the"
                    " same on every host"
                )
        return answers[0]

    def _identities(self) -> list[dict[str, Any]]:
        answers = self.every_rank("k3perf_identity")
        if not answers:
            raise EngineError("no rank answered k3perf_identity")
        return answers

    def every_rank(self, method: str, *arguments: object) -> list[dict[str, Any]]:
        """Call a reading of the worker extension; the answers of all ranks of all
        data-parallel engines, in rank order.

        The extension gets the directory for its answer after ``arguments``.

        A rank that is neither in the first engine nor able to write into this machine's
        temporary directory (another host's) is missing from the list: how many answered
        is for the caller to compare with how many there are. No answer of an earlier
        call can be among them: the directory is new, and the ranks have written when
        the server answers.
        """
        try:
            with tempfile.TemporaryDirectory(
                prefix="answers-", dir=self._scratch, ignore_cleanup_errors=True
            ) as directory:
                returned = self.call(method, *arguments, directory)
                left = [path.read_text(encoding="utf-8") for path in Path(directory).glob("*.json")]
        except OSError as problem:
            raise EngineError(
                f"{method}: the ranks' answers cannot be gathered in"
                f" {self._scratch or tempfile.gettempdir()}: {problem}"
            ) from None
        answers = [
            _numbered(method, answer)
            for answer in (*(_parsed(text, method) for text in left), *returned)
        ]
        by_rank = {
            int(answer["rank"]): answer for answer in answers
        }  # the same answer comes both ways; what was returned counts
        return [by_rank[rank] for rank in sorted(by_rank)]

    def call(self, method: str, *arguments: object) -> list[Any]:
        """Call a method of the worker extension in every rank of every engine; one
        answer a rank of the first engine, in the executor's order.
        """
        body = {"method": method, "args": list(arguments), "timeout": self._timeout_s}
        answer = self._json(
            "POST",
            "/collective_rpc",
            body,
            hint="start the server with VLLM_SERVER_DEV_MODE=1 and the worker extension",
        )
        results = answer.get("results")
        if not isinstance(results, list):
            raise EngineError(
                f"collective_rpc {method!r} did not answer with a list of results:"
                f" {str(answer)[:200]}"
            )
        return results

    def reset_peaks(self) -> None:
        """Restart every rank's peaks: the next ``rank_memory`` counts from now."""
        self.call("k3perf_reset_peaks")

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache. EngineError while blocks are still held."""
        answer = self._request("POST", "/reset_prefix_cache")
        # Older releases answer with an empty body; since then the body says whether
        # blocks were still held.
        parsed = _parsed(answer, "POST /reset_prefix_cache") if answer.strip() else {}
        if isinstance(parsed, dict) and parsed.get("success") is False:
            raise EngineError(
                "the prefix cache was not reset: blocks are still held; wait until no request runs"
            )

    @property
    def kv_capacity_tokens(self) -> int | None:
        """Tokens that the KV cache holds, as the engine says. None if it does not."""
        return self._capacity_tokens("kv_capacity_tokens")

    @property
    def max_concurrency(self) -> float | None:
        """Requests of the full context length that fit at once, by the engine's own
        account; None if it gives none.
        """
        return resolved.capacity_values(self.server_info())["kv_max_concurrency_ratio"]

    @property
    def block_size_tokens(self) -> int | None:
        """The effective attention block size, which is not the requested one on a
        hybrid model; None if not given.
        """
        return self._capacity_tokens("block_size_tokens")

    def _capacity_tokens(self, name: str) -> int | None:
        value = resolved.capacity_values(self.server_info())[name]
        return None if value is None else _whole_number(value, f"{name} of /server_info")

    def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, hint: str = ""
    ) -> dict[str, Any]:
        text = self._request(method, path, body, hint=hint)
        answer = _parsed(text, f"{method} {path}")
        if not isinstance(answer, dict):
            raise EngineError(f"{method} {path}: the answer is not a JSON object: {text[:200]!r}")
        return answer

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, hint: str = ""
    ) -> str:
        payload = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} if payload else {}
        address = (self._host, self._port)
        try:
            status, answer = http_answer.answer(
                address,
                method,
                path,
                payload,
                headers,
                limit_s=self._timeout_s,
                largest_bytes=_LARGEST_ANSWER_BYTES,
            )
        except http_answer.FAILURES as problem:
            raise EngineError(
                f"{method} {path} of {self._host}:{self._port}: {type(problem).__name__}: {problem}"
            ) from None
        text = answer.decode("utf-8", errors="replace")
        if status != HTTPStatus.OK:
            advice = f"; {hint}" if hint else ""
            raise EngineError(f"{method} {path}: HTTP status {status}{advice}: {text[:400]}")
        return text


def rank_memory(answer: Mapping[str, Any]) -> RankMemory:
    """A ``k3perf_memory`` answer as a record. A missing field is None and absent."""
    values: dict[str, int | None] = {}
    for name in _MEMORY_FIELDS:
        value = answer.get(name)
        values[name] = None if value is None else _whole_number(value, f"{name} of k3perf_memory")
    absent = tuple(sorted(name for name, value in values.items() if value is None))
    return RankMemory(
        rank=_whole_number(answer["rank"], "rank of k3perf_memory"), absent=absent, **values
    )


def _numbered(method: str, answer: object) -> dict[str, Any]:
    if not isinstance(answer, dict) or not isinstance(answer.get("rank"), int):
        raise EngineError(
            f"{method} answered {str(answer)[:200]!r}, not one dict per rank with the rank's number"
        )
    if (
        answer["rank"] < 0
    ):  # several such ranks would be taken for one, and their files overwrite each other
        raise EngineError(
            f"{method} answered rank {answer['rank']}: this vLLM's workers do not report their"
            " rank; python -m k3perf_probe.contract in the engine's Python names what has"
            " moved"
        )
    return answer


def _whole_number(value: object, what: str) -> int:
    """A count or size of 0 or more. Anything else is an error, never a number."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < 0
    ):
        raise EngineError(f"{what} is {str(value)[:100]!r}, not a number of 0 or more")
    return int(value)


def _parsed(text: str, route: str) -> object:
    """JSON alone: Python's reader would take NaN and Infinity too."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not valid JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError:
        raise EngineError(f"{route}: the answer is not valid JSON: {text[:200]!r}") from None
