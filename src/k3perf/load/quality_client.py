"""Ask a server for log-probabilities: of prompts, along given tokens, of greedy
answers.

Answers are whole, not streamed, and nothing is timed. A refused request (status 400)
is NotOffered with the server's words, so that one missing part does not end the pass.
"""

from __future__ import annotations

import http.client
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson

from k3perf import http_answer
from k3perf.errors import EngineError
from k3perf.load.wire import Endpoint
from k3perf.records.quality import ScoredTokens

FORCED_KEY: Final = "k3perf_forced"
"""The request argument that ``k3perf_probe.forced_decode`` reads."""

_LARGEST_ANSWER_BYTES: Final = 512 << 20
_ID_BEFORE: Final = "token_id:"
FLOOR_NATS: Final = -9999.0
"""vLLM's server reports this for -inf, NaN and every log-probability below it."""
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class NotOffered(Exception):
    """The server refused the question: this engine cannot answer it."""


class SenselessAnswer(Exception):
    """An answer that a working engine never gives: a log-probability that is not a
    number, above 0 or at the server's floor, fewer tokens than asked.
    """


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens ``start`` to ``end`` of a prompt, to be decoded after those before."""

    prompt_index: int
    prompt: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class QualityClient:
    """Questions to one server. ``at_once``: requests under way at a time."""

    base_url: str
    model_name: str
    top_k: int
    at_once: int = 16
    timeout_s: float = 300.0

    def score_prompts(self, prompts: Sequence[tuple[int, ...]]) -> tuple[ScoredTokens, ...]:
        """Log-probabilities of every prompt's tokens but the first, by prefill."""

        def ask(item: tuple[int, tuple[int, ...]]) -> ScoredTokens:
            index, prompt = item
            choice = self._ask(prompt, 1, prompt_logprobs=self.top_k)
            listed = choice.get("prompt_logprobs")
            if not isinstance(listed, list) or len(listed) != len(prompt):
                raise SenselessAnswer(f"prompt {index}: prompt_logprobs lacks tokens")
            return _scored(index, 1, prompt[1:], listed[1:], self.top_k)

        return self._all(ask, enumerate(prompts))

    def score_decode(
        self, stretches: Sequence[Stretch], *, at_once: int | None = None
    ) -> tuple[ScoredTokens, ...]:
        """Log-probabilities of the stretches' tokens, each decoded in a step.

        Raises NotOffered where the server does not decode along the given tokens.
        """
        return self._all(self._decode_one, stretches, at_once)

    def greedy(
        self, prompts: Sequence[tuple[int, ...]], tokens: int
    ) -> tuple[tuple[int, ...], ...]:
        """The most probable continuation of each prompt."""

        def ask(prompt: tuple[int, ...]) -> tuple[int, ...]:
            ids = self._ask(prompt, tokens).get("token_ids")
            if not isinstance(ids, list) or len(ids) != tokens:
                found = len(ids) if isinstance(ids, list) else "no"
                raise SenselessAnswer(f"a greedy answer has {found} tokens, {tokens} were asked")
            return tuple(ids)

        return self._all(ask, prompts)

    def _decode_one(self, stretch: Stretch) -> ScoredTokens:
        wanted = stretch.prompt[stretch.start : stretch.end]
        choice = self._ask(
            stretch.prompt[: stretch.start],
            len(wanted),
            logprobs=self.top_k,
            return_tokens_as_token_ids=True,
            vllm_xargs={FORCED_KEY: list(wanted)},
        )
        if tuple(choice.get("token_ids") or ()) != wanted:
            raise NotOffered("the server does not decode along given tokens")
        told = choice.get("logprobs") or {}
        tops, own = told.get("top_logprobs") or [], told.get("token_logprobs") or []
        if not len(tops) == len(own) == len(wanted):
            raise SenselessAnswer(f"prompt {stretch.prompt_index}: logprobs lacks tokens")
        listed = [
            {
                **{name.removeprefix(_ID_BEFORE): {"logprob": x} for name, x in top.items()},
                str(token): {"logprob": logprob},
            }
            for top, token, logprob in zip(tops, wanted, own, strict=True)
        ]
        return _scored(stretch.prompt_index, stretch.start, wanted, listed, self.top_k)

    def _all(
        self, ask: Callable[[Item], Answer], items: Iterable[Item], at_once: int | None = None
    ) -> tuple[Answer, ...]:
        with ThreadPoolExecutor(max_workers=at_once or self.at_once) as threads:
            return tuple(threads.map(ask, items))

    def _ask(self, prompt: Sequence[int], tokens: int, **more: Any) -> dict[str, Any]:
        """The only choice of one answer."""
        body = {
            "model": self.model_name,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **more,
        }
        endpoint = Endpoint.parse(self.base_url)
        path = f"{endpoint.path}/v1/completions"
        try:
            status, answer = http_answer.answer(
                (endpoint.host, endpoint.port),
                "POST",
                path,
                orjson.dumps(body).decode(),
                {"Content-Type": "application/json"},
                limit_s=self.timeout_s,
                largest_bytes=_LARGEST_ANSWER_BYTES,
            )
        except http_answer.FAILURES as problem:
            raise EngineError(f"POST {path}: {type(problem).__name__}: {problem}") from None
        if status == http.client.BAD_REQUEST:
            raise NotOffered(_words(answer))
        if status != http.client.OK:
            raise EngineError(f"POST {path}: HTTP status {status}: {_words(answer)}")
        return _choice(answer)


def _choice(answer: bytes) -> dict[str, Any]:
    try:
        (choice,) = orjson.loads(answer)["choices"]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        # NaN is not JSON, so a server that computed one ends here too
        raise SenselessAnswer(f"the answer is not a completion: {_words(answer)}") from None
    if not isinstance(choice, dict):
        raise SenselessAnswer(f"the answer is not a completion: {_words(answer)}")
    return choice


def _words(answer: bytes) -> str:
    return " ".join(answer[:300].decode("utf-8", "replace").split())


def _scored(
    prompt_index: int,
    first_position: int,
    tokens: tuple[int, ...],
    listed: Sequence[dict[str, dict[str, Any]] | None],
    top_k: int,
) -> ScoredTokens:
    """The server's mappings of id to log-probability, put into order. Each holds the
    token itself, which may lie below the most probable ones.
    """
    own, ids, logs = [], [], []
    for place, (token, entries) in enumerate(zip(tokens, listed, strict=True)):
        try:
            known = {int(name): float(entry["logprob"]) for name, entry in (entries or {}).items()}
            own.append(known[token])
        except (KeyError, TypeError, ValueError):
            raise SenselessAnswer(
                f"prompt {prompt_index}, position {first_position + place}: no log-probability"
                f" of token {token}"
            ) from None
        best = sorted(known.items(), key=lambda item: (-item[1], item[0]))[:top_k]
        if len(best) < top_k:
            raise SenselessAnswer(
                f"prompt {prompt_index}, position {first_position + place}: {len(best)} tokens"
                f" listed, {top_k} were asked"
            )
        worst = max(best[0][1], own[-1])
        if not all(math.isfinite(one) for _, one in best) or not worst <= 1e-4:
            raise SenselessAnswer(
                f"prompt {prompt_index}, position {first_position + place}: a log-probability"
                f" is {best[0][1]:g}"
            )
        if min(best[-1][1], own[-1]) <= FLOOR_NATS:
            raise SenselessAnswer(
                f"prompt {prompt_index}, position {first_position + place}: a log-probability"
                f" is at the server's floor, {FLOOR_NATS:g}, so its true value is unknown"
            )
        ids.append(tuple(one for one, _ in best))
        logs.append(tuple(one for _, one in best))
    return ScoredTokens(
        prompt_index, first_position, tuple(tokens), tuple(own), tuple(ids), tuple(logs)
    )
