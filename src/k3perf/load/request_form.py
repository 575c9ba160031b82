"""What a planned request looks like to the server: route, prompt of ids or of text,
headers, and the keys that only some servers accept. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from k3perf.config.workload_spec import Sampling
from k3perf.load.wire import Endpoint, http_request
from k3perf.workload.text_prompts import Message, PromptText
from k3perf.workload.word_prompts import words


class Route(StrEnum):
    """The two routes of an OpenAI-style server."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


class Dialect(StrEnum):
    """How much of vLLM's protocol the server knows.

    ``VLLM`` servers return token ids and counts in every chunk and obey ``ignore_eos``.
    ``OPENAI`` servers refuse unknown keys, so the usage at the end counts the tokens.
    """

    VLLM = "vllm"
    OPENAI = "openai"


@dataclass(frozen=True, slots=True)
class RequestForm:
    """How to write a plan's requests.

    ``texts``: a text for each planned request by its index, used in turn. Without texts
    a completion's prompt is the plan's token ids, and a chat's is as many words.
    ``exact_output``: make the server produce exactly the planned tokens.
    ``extra_body``: further keys of the body, as JSON, which win over the usual ones.
    ``expects_json``: a reply that is not valid JSON is an error.
    ``tls_ca_file``: certificates to trust instead of the system's. ``verify_tls``
    False accepts any certificate.
    """

    route: Route = Route.COMPLETIONS
    dialect: Dialect = Dialect.VLLM
    exact_output: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    texts: tuple[PromptText, ...] = ()
    prompt_template: str = ""
    extra_body: bytes = b"{}"
    expects_json: bool = False
    verify_tls: bool = True
    tls_ca_file: str = ""

    @property
    def has_text(self) -> bool:
        """Whether prompts are text, which only the server can count."""
        return self.route is Route.CHAT or bool(self.texts)

    def own_messages(self, request_index: int, prompt_token_count: int) -> tuple[Message, ...]:
        """What the request adds to its conversation."""
        if self.texts:
            return self.texts[request_index % len(self.texts)].messages
        return (Message("user", words(request_index, prompt_token_count)),)

    def encode(
        self,
        endpoint: Endpoint,
        prompt: tuple[int, ...] | tuple[Message, ...],
        output_token_count: int,
        *,
        model_name: str,
        sampling: Sampling,
        seed: int,
    ) -> bytes:
        """The whole HTTP request."""
        body: dict[str, Any] = {"model": model_name}
        if self.route is Route.CHAT:
            body["messages"] = [message_body(said) for said in prompt if isinstance(said, Message)]
        else:
            body["prompt"] = self._prompt_of(prompt)
        body |= self._limits(output_token_count) | self._counting()
        body |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        if sampling.sequences > 1 or self.dialect is Dialect.VLLM:
            body["n"] = sampling.sequences
        if sampling.temperature > 0:
            body["seed"] = seed
        body |= orjson.loads(self.extra_body)
        return http_request(endpoint, self.route.value, orjson.dumps(body), self.headers)

    def _prompt_of(self, prompt: tuple[Any, ...]) -> Any:
        if not prompt or not isinstance(prompt[0], Message):
            return prompt
        if not self.prompt_template:
            return "\n\n".join(message.content for message in prompt)
        return render_prompt(self.prompt_template, prompt)

    def _limits(self, output_token_count: int) -> dict[str, Any]:
        if self.dialect is Dialect.OPENAI:
            key = "max_completion_tokens" if self.route is Route.CHAT else "max_tokens"
            return {key: output_token_count}
        limits: dict[str, Any] = {"max_tokens": output_token_count}
        if self.exact_output:
            limits["ignore_eos"] = True
        return limits

    def _counting(self) -> dict[str, Any]:
        options: dict[str, Any] = {"include_usage": True}
        if self.dialect is Dialect.OPENAI:
            return {"stream": True, "stream_options": options}
        options["continuous_usage_stats"] = True
        return {"stream": True, "stream_options": options, "return_token_ids": True}


def message_body(message: Message) -> dict[str, str]:
    """The message as the chat route takes it."""
    return {"role": message.role, "content": message.content}


def render_prompt(template: str, messages: tuple[Message, ...]) -> str:
    """Render a Jinja template with ``messages`` and ``prompt``, the last one's text.
    Raises jinja2.TemplateError.
    """
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(keep_trailing_newline=True)
    return environment.from_string(template).render(
        messages=[message_body(message) for message in messages], prompt=messages[-1].content
    )
