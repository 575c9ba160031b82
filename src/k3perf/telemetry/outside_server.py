"""What can be read of a server that k3perf did not start.

Three sources, each of which may be missing: ``/server_info`` (dev mode), the worker
extension of ``k3perf_probe``, and ``/metrics`` with ``/version`` and ``/v1/models``,
which every vLLM has. ``SeenServer.blind`` names what no source shows, with the reason.
A value that is not visible is absent here, never None or 0.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from k3perf.config.flags import arguments_of
from k3perf.errors import EngineError, UsageError, shortened
from k3perf.metrics import resolved
from k3perf.metrics.environment import read_environment
from k3perf.records.samples import RankMemory
from k3perf.telemetry.server import ServerProbe

_CACHE_INFO: Final = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\}\s", re.MULTILINE)
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_NO_LABELS: Final = frozenset({"engine", "model_name"})
DEV_MODE: Final = "start the server with VLLM_SERVER_DEV_MODE=1 to show it"
_LONGEST: Final = 160
_EXTENSION: Final = "k3perf_probe"
_DEFAULT_PORT: Final = 80

LOCK: Final = "lock"
"""The whole resolved configuration. Other parts of ``blind`` are single readings."""


@dataclass(frozen=True, slots=True)
class SeenServer:
    """One reading. ``resolved_config`` holds only keys that the server shows.

    ``served_name`` is what requests ask for, ``model`` what it serves. ``blind``: each
    part that is not visible, with the reason and the next step.
    """

    base_url: str
    served_name: str
    model: str
    resolved_config: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    kv_capacity_tokens: int | None = None
    kv_max_concurrency_ratio: float | None = None
    blind: dict[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of ``vllm serve`` that give the main values."""
        return arguments_of(self.resolved_config)


class OutsideServer(ServerProbe):
    """Readings of a server at ``base_url``. Raises UsageError for an address other than
    ``http://HOST:PORT``.
    """

    def __init__(self, base_url: str, *, timeout_s: float = 30.0) -> None:
        self.base_url = plain_address(base_url)
        super().__init__(self.base_url, timeout_s=timeout_s)
        self._seen: SeenServer | None = None
        self._extension_problem: str | None = None

    def seen(self) -> SeenServer:
        """Everything that is visible, read once. EngineError when no server answers."""
        if self._seen is None:
            self._seen = self._read()
        return self._seen

    def resolved_config(self) -> dict[str, Any]:
        """The visible part of the lock."""
        return self.seen().resolved_config

    def environment(self) -> dict[str, str]:
        """The visible part of what the machine brings."""
        return self.seen().environment

    def identity(self) -> dict[str, Any]:
        """Versions and devices that a rank or the server gives."""
        return self.seen().identity

    def rank_memory(self) -> tuple[RankMemory, ...]:
        """Memory of every rank. Empty without the worker extension."""
        return () if self.extension_problem else super().rank_memory()

    def reset_peaks(self) -> None:
        """Restart the peaks where the worker extension is there."""
        if not self.extension_problem:
            super().reset_peaks()

    @property
    def extension_problem(self) -> str:
        """Why the worker extension does not answer. Empty: it answers."""
        if self._extension_problem is None:
            try:
                self._identities()
                self._extension_problem = ""
            except EngineError as error:
                self._extension_problem = shortened(str(error))
        return self._extension_problem

    @property
    def kv_capacity_tokens(self) -> int | None:
        """Tokens that the KV cache holds, if the server shows it."""
        return self.seen().kv_capacity_tokens

    @property
    def max_concurrency(self) -> float | None:
        """Requests of the full context that fit at once, if the server shows it."""
        return self.seen().kv_max_concurrency_ratio

    def _read(self) -> SeenServer:
        models = self._json("GET", "/v1/models").get("data")
        if not isinstance(models, list) or not models or not isinstance(models[0], dict):
            raise EngineError(
                f"GET /v1/models of {self.base_url}: lists no model. Give the address of a server"
                " that answers OpenAI's routes."
            )
        entry = models[0]
        blind: dict[str, str] = {}
        info = self._server_info(blind)
        identity = self._worker_identity(info, blind)
        shown = resolved.resolved_config(info, identity)
        capacity = resolved.capacity_values(info)
        if capacity["kv_capacity_tokens"] is None:
            blind["kv_capacity_tokens"] = f"no source shows it; {DEV_MODE}"
        ratio = capacity["kv_max_concurrency_ratio"]
        tokens = capacity["kv_capacity_tokens"]
        return SeenServer(
            base_url=self.base_url,
            served_name=str(entry.get("id", "")),
            model=str(entry.get("root") or entry.get("id") or ""),
            resolved_config=_visible(shown, whole="vllm_env" in info),
            environment=read_environment(info, [identity] if identity else []),
            identity={
                "vllm_version": shown.get("version.vllm"),
                "torch_version": shown.get("version.torch"),
                **identity,
            },
            kv_capacity_tokens=None if tokens is None else int(tokens),
            kv_max_concurrency_ratio=None if ratio is None else float(ratio),
            blind=blind,
        )

    def _server_info(self, blind: dict[str, str]) -> dict[str, Any]:
        """``/server_info``, or what ``/metrics`` and ``/version`` show in its form."""
        try:
            info = self.server_info()
            resolved.capacity_values(info)
            return info
        except (EngineError, resolved.MissingSectionError) as error:
            why = f"{_first_line(error)}; {DEV_MODE}"
        cache = self._cache_labels()
        blind[LOCK] = (
            f"only the cache, the context length and the release are visible: {why}"
            if cache
            else f"/metrics has no vllm:cache_config_info, and {why}"
        )
        return {
            "vllm_config": {
                "cache_config": cache,
                "scheduler_config": {},
                "model_config": self._context_length(),
            },
            "system_env": {"vllm_version": self._release()},
        }

    def _worker_identity(self, info: Mapping[str, Any], blind: dict[str, str]) -> dict[str, Any]:
        if "vllm_env" not in info:
            self._extension_problem = f"the server is not in dev mode; {DEV_MODE}"
        elif _EXTENSION not in str(info["vllm_config"].get("parallel_config") or {}):
            # not asked: a worker without the method would log an error
            self._extension_problem = (
                "the server was started without --worker-extension-cls"
                " k3perf_probe.worker_extension.ProbeExtension"
            )
        if self.extension_problem:
            blind["workers"] = (
                "weights, peaks and the chosen kernels are not visible without the worker"
                f" extension: {self.extension_problem}"
            )
            return {}
        return ServerProbe.identity(self)

    def _cache_labels(self) -> dict[str, Any]:
        try:
            text = self._request("GET", "/metrics")
        except EngineError:
            return {}
        found: list[dict[str, Any]] = [
            {
                name: _value(value)
                for name, value in _LABEL.findall(match["labels"])
                if name not in _NO_LABELS
            }
            for match in _CACHE_INFO.finditer(text)
        ]
        return found[0] if found else {}

    def _context_length(self) -> dict[str, Any]:
        entry = self._json("GET", "/v1/models")["data"][0]
        length = entry.get("max_model_len")
        return {"max_model_len": length} if isinstance(length, int) else {}

    def _release(self) -> str | None:
        try:
            release = self._json("GET", "/version").get("version")
        except EngineError:
            return None
        return release if isinstance(release, str) else None


def plain_address(base_url: str) -> str:
    """``http://HOST:PORT`` without a path. Raises UsageError for anything else."""
    parts = urlsplit(base_url)
    try:
        port = parts.port or _DEFAULT_PORT
    except ValueError:
        port = 0
    if parts.scheme == "https":
        raise UsageError(
            f"{base_url}: the client speaks plain HTTP. Give the address behind the TLS proxy, or"
            " forward the port."
        )
    extra = parts.path.rstrip("/") or parts.query
    if parts.scheme != "http" or not parts.hostname or not port or extra:
        raise UsageError(f"{shortened(base_url)}: is not an address. Give http://HOST:PORT.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{host}:{port}"


def _visible(shown: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
    """Without versions that no source gave. Without ``whole`` only sections that the
    labels of ``/metrics`` fill.
    """
    return {
        key: value
        for key, value in shown.items()
        if not (key.startswith("version.") and value is None)
        and (whole or key.startswith(("cache_config.", "model_config.", "version.")))
    }


def _value(text: str) -> Any:
    """A label's text as the value that vLLM printed."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text.encode().decode("unicode_escape") if "\\" in text else text


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:_LONGEST]
