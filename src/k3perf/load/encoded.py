"""Encode a plan's requests, each for its endpoint, before the clock starts. Only
prompts that quote a reply are encoded later.
"""

from __future__ import annotations

from collections.abc import Sequence

from k3perf.load.wire import Endpoint, completion_body, http_request
from k3perf.workload.request_plan import Plan


class EncodedRequests:
    """``bytes_of(position)`` is the whole HTTP request for ``plan.requests[position]``.

    ``follower_of[position]`` is the position of the conversation's next turn. Endpoints
    are used in turn. The turns of a conversation stay on one endpoint, since their
    prefix is cached there.
    """

    def __init__(self, plan: Plan, endpoints: Sequence[Endpoint], model_name: str) -> None:
        self._plan = plan
        self._endpoints = endpoints
        self._model_name = model_name
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

    def take_reply(self, position: int, reply: tuple[int, ...]) -> None:
        """Note the reply to a turn and encode the next one with it. A reply of another
        length is replaced by the planned stand-in.
        """
        self._replies[self._plan.requests[position].index] = reply
        follower = self.follower_of[position]
        self._encoded[follower] = self._encode(follower)

    def _encode(self, position: int) -> bytes:
        request = self._plan.requests[position]
        body = completion_body(
            request.prompt_with_replies(self._replies),
            request.output_token_count,
            model_name=self._model_name,
            sampling=self._plan.spec.sampling,
            seed=self._plan.spec.seed + request.index,
        )
        return http_request(self._endpoints[self.endpoint_of[position]], body)
