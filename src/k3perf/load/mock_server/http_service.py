"""The mock server's HTTP: parse, route and answer one connection's requests."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import httptools
import orjson
from pydantic import ValidationError

from k3perf.load.clock import Clock
from k3perf.load.mock_server.behaviour import Behaviour
from k3perf.load.mock_server.player import Player, Playing
from k3perf.load.mock_server.prefix_cache import PrefixCache
from k3perf.load.mock_server.script import Asked, script
from k3perf.load.mock_server.truth import RequestTruth, Truth, prompt_crc32
from k3perf.units import NS_PER_MS


class Service:
    """State that all connections share: behaviour, truth, cache, player."""

    def __init__(self, behaviour: Behaviour, player: Player, clock: Clock) -> None:
        self.clock = clock
        self.player = player
        self.adopt(behaviour)

    def adopt(self, behaviour: Behaviour) -> None:
        """Use this behaviour from the next request on, with all state cleared."""
        self.behaviour = behaviour
        self.player.step_ns = round(behaviour.step_ms * NS_PER_MS)
        self.truth = Truth()
        self.generator = random.Random(behaviour.seed)  # noqa: S311 - delays, not secrets
        self.cache = PrefixCache(behaviour.block_tokens) if behaviour.block_tokens else None
        self._ordinal = 0

    def ask(
        self, body: dict[str, Any], *, chat: bool, received_ns: int
    ) -> tuple[Asked, RequestTruth]:
        """Number a request and record it in the truth."""
        prompt = _prompt_token_ids(body, chat=chat)
        cached = self.cache.look_up_and_add(prompt) if self.cache else 0
        options = body.get("stream_options") or {}
        asked = Asked(
            ordinal=self._ordinal,
            chat=chat,
            stream=bool(body.get("stream")),
            prompt_token_count=len(prompt),
            output_token_count=int(
                body.get("max_completion_tokens") or body.get("max_tokens") or 16
            ),
            sequence_count=int(body.get("n") or 1),
            include_usage=bool(options.get("include_usage")),
            continuous_usage=bool(options.get("continuous_usage_stats")),
            return_token_ids=bool(body.get("return_token_ids")),
            cached_token_count=cached if self.cache else None,
        )
        fault = self.behaviour.fault_for(self._ordinal)
        truth = RequestTruth(
            self._ordinal,
            prompt_crc32(prompt),
            len(prompt),
            cached,
            received_ns,
            fault.kind.value if fault else "",
        )
        self.truth.requests.append(truth)
        self._ordinal += 1
        return asked, truth


def _prompt_token_ids(body: dict[str, Any], *, chat: bool) -> list[int]:
    """Token ids as given. Text gets one made-up id for each word."""
    if chat:
        text = " ".join(str(message.get("content", "")) for message in body.get("messages", ()))
    else:
        prompt = body.get("prompt", "")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
            return prompt
        text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
    return [hash(word) & 0x7FFFFFFF for word in text.split()]


class HttpConnection(asyncio.Protocol):
    """One client connection. Requests are answered one at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's is one in all but its base class

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._received_ns = self._service.clock()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    # httptools' callbacks

    def on_url(self, url: bytes) -> None:
        """The path."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Route the request."""
        method = self._parser.get_method()
        path, body = self._url.split(b"?", 1)[0].decode("latin-1"), b"".join(self._body)
        self._url, self._body = b"", []
        if method == b"POST" and path in ("/v1/completions", "/v1/chat/completions"):
            self._generate(body, chat=path.endswith("/chat/completions"))
        else:
            self._answer(*_control(self._service, method, path, body))

    def _generate(self, body: bytes, *, chat: bool) -> None:
        try:
            parsed = orjson.loads(body)
            asked, truth = self._service.ask(parsed, chat=chat, received_ns=self._received_ns)
        except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError) as error:
            self._answer(
                "400 Bad Request",
                "application/json",
                orjson.dumps({"error": {"message": str(error), "code": 400}}),
            )
            return
        steps = script(self._service.behaviour, asked, self._service.generator)
        self._service.player.play(Playing(self._transport, steps, truth, lambda: None))

    def _answer(self, status: str, content_type: str, payload: bytes) -> None:
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length:"
            f" {len(payload)}\r\n\r\n"
        )
        self._transport.write(head.encode() + payload)


def _control(service: Service, method: bytes, path: str, body: bytes) -> tuple[str, str, bytes]:
    """Everything but generation: (status line, content type, body)."""
    if method == b"GET" and path in ("/health", "/ping"):
        return "200 OK", "text/plain", b""
    if method == b"GET" and path == "/v1/models":
        models = [{"id": service.behaviour.model_name, "object": "model", "max_model_len": 1 << 20}]
        return "200 OK", "application/json", orjson.dumps({"object": "list", "data": models})
    if method == b"GET" and path == "/metrics":
        return (
            "200 OK",
            "text/plain; version=0.0.4",
            service.truth.metrics_text(service.behaviour.model_name).encode(),
        )
    if method == b"GET" and path == "/truth":
        return "200 OK", "application/json", orjson.dumps(service.truth.as_json())
    if method == b"POST" and path == "/behaviour":
        try:
            service.adopt(Behaviour.model_validate_json(body))
        except ValidationError as error:
            return "400 Bad Request", "text/plain", str(error).encode()
        return "200 OK", "application/json", service.behaviour.model_dump_json().encode()
    return "404 Not Found", "text/plain", f"no route {method.decode('latin-1')} {path}\n".encode()
