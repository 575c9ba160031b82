"""Encode a plan's requests, each for its endpoint, before the clock starts. Only
prompts that quote a reply are encoded later.
"""

from __future__ import annotations

from collections.abc import Sequence

from k3perf.load.decode import reply_text, reply_token_ids
from k3perf.load.exchange import Exchange
from k3perf.load.request_form import RequestForm
from k3perf.load.wire import Endpoint
from k3perf.workload.request_plan import Plan
from k3perf.workload.text_prompts import Message


class EncodedRequests:
    """``bytes_of(position)`` is the whole HTTP request for ``plan.requests[position]``.

    ``follower_of[position]`` is the position of the conversation's next turn. Endpoints
    are used in turn. The turns of a conversation stay on one endpoint, since their
    prefix is cached there.
    """

    def __init__(
        self, plan: Plan, endpoints: Sequence[Endpoint], model_name: str, form: RequestForm
    ) -> None:
        self._plan = plan
        self._endpoints = endpoints
        self._model_name = model_name
        self._form = form
        position_of = {request.index: position for position, request in enumerate(plan.requests)}
        self.follower_of: dict[int, int] = {}
        self.endpoint_of: list[int] = []
        first_turns = 0
        for position, request in enumerate(plan.requests):
            if request.previous_index is None:
                self.endpoint_of.append(first_turns % len(endpoints))
                first_turns += 1
            else:
                previous = position_of[request.previous_index]
                self.follower_of[previous] = position
                self.endpoint_of.append(self.endpoint_of[previous])
        self._replies: dict[int, tuple[int, ...]] = {}
        # of text: each conversation so far, by its last position
        self._said: dict[int, tuple[Message, ...]] = {}
        self._encoded: list[bytes | None] = [
            self._encode(position) if request.previous_index is None else None
            for position, request in enumerate(plan.requests)
        ]

    def bytes_of(self, position: int) -> bytes:
        """The request's bytes. They are released once sent, so that a long round does
        not keep them.
        """
        encoded = self._encoded[position]
        self._encoded[position] = None
        return encoded if encoded is not None else self._encode(position)

    def take_reply(self, exchange: Exchange) -> None:
        """Note the reply to a turn and encode the next one with it. A reply of another
        length is replaced by the planned stand-in, unless prompts are text.
        """
        position = exchange.position
        follower = self.follower_of[position]
        if self._form.has_text:
            reply = Message("assistant", reply_text(exchange))
            self._said[follower] = (*self._said.pop(position, ()), reply)
        else:
            self._replies[self._plan.requests[position].index] = reply_token_ids(exchange)
        self._encoded[follower] = self._encode(follower)

    def _encode(self, position: int) -> bytes:
        request = self._plan.requests[position]
        return self._form.encode(
            self._endpoints[self.endpoint_of[position]],
            self._messages(position) if self._form.has_text else self._token_ids(position),
            request.output_token_count,
            model_name=self._model_name,
            sampling=self._plan.spec.sampling,
            seed=self._plan.spec.seed + request.index,
        )

    def _token_ids(self, position: int) -> tuple[int, ...]:
        return self._plan.requests[position].prompt_with_replies(self._replies)

    def _messages(self, position: int) -> tuple[Message, ...]:
        request = self._plan.requests[position]
        own_count = request.segments[-1].token_count if request.segments else 0
        said = (
            *self._said.get(position, ()),
            *self._form.own_messages(self._content_key(request.index), own_count),
        )
        if position in self.follower_of:
            self._said[position] = said
        return said

    def _content_key(self, request_index: int) -> int:
        """Texts belong to their request. Filler differs from round to round."""
        if self._form.texts:
            return request_index
        return (self._plan.round_index << 32) + (self._plan.spec.seed << 20) + request_index
