"""The quality pass of a target: prompts, how deep they are scored, what is hidden in
them.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from k3perf.config.declared import Declared


class NeedleSpec(Declared):
    """A sequence of tokens hidden in a prompt, whose beginning is repeated at the end.

    A model that works finishes the repetition. Only real weights can.
    """

    tokens: int = Field(ge=4, default=32)
    """Tokens of a needle. The first half is the question, the second the answer."""
    context_tokens: int = Field(ge=32)
    """Tokens of a prompt with its needle."""
    depths: tuple[float, ...] = (0.1, 0.5, 0.9)
    """Where needles lie, as shares of the context."""
    seed: int = 1
    """Seed of the needles."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.context_tokens < 4 * self.tokens:
            raise ValueError("context_tokens must be at least 4 times tokens")
        if not self.depths or not all(0 <= depth <= 1 for depth in self.depths):
            raise ValueError("depths holds shares between 0 and 1, at least one")
        return self


class QualitySpec(Declared):
    """Fixed prompts, answered by every config and by the reference config."""

    prompts: str | None = None
    """File of prompts as token ids, relative to the suite: `{"schema_version": 1,
    "prompts": [[...], ...]}`. Without it prompts are random.
    """
    random_prompts: int = Field(ge=1, le=1024, default=16)
    """Number of random prompts. Enough for dummy weights, which know no text."""
    random_tokens: int = Field(ge=16, default=512)
    """Tokens of each random prompt."""
    seed: int = 1
    """Seed of the random prompts."""
    top_k: int = Field(ge=1, le=20, default=20)
    """Most probable tokens that the divergence is taken over. vLLM gives at most 20
    unless `max_logprobs` is raised.
    """
    decode_tokens: int = Field(ge=0, default=48)
    """Tokens decoded one by one along each prompt. 0: no decode is scored."""
    greedy_tokens: int = Field(ge=0, default=64)
    """Tokens of each free greedy answer. 0: none."""
    needle: NeedleSpec | None = None
    """Needles to be found again. For models with real weights."""
    spread_dummy_weights: bool = False
    """Scale the dummy weights for the time of the pass, so that log-probabilities
    spread like a real model's.
    """
