"""Segments to token ids: a prompt's content as a pure function of seed, round and
segment.

A prompt is a sequence of segments. Equal keys give equal tokens inside a round, so
prefixes are shared. Another round gives other tokens, so that no round hits what an
earlier one left in the prefix cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3perf.errors import UsageError
from k3perf.workload.draws import raw_words

CONTENT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Segment:
    """``token_count`` tokens named by ``key``. ``reply_to`` is set if the text is the
    reply to an earlier request of the plan.
    """

    key: str
    token_count: int
    reply_to: int | None = None


@dataclass(frozen=True, slots=True)
class TokenSource:
    """The source of token ids: drawn evenly from ``reserved_token_ids`` up to, not
    including, ``vocabulary_size``.
    """

    seed: int
    vocabulary_size: int
    reserved_token_ids: int
    round_index: int = 0

    def __post_init__(self) -> None:
        if self.vocabulary_size - self.reserved_token_ids < 2 or self.reserved_token_ids < 0:
            raise UsageError(
                f"a vocabulary of {self.vocabulary_size} with {self.reserved_token_ids} reserved"
                " ids leaves fewer than two tokens to draw prompts from; check the model's"
                " vocab_size"
            )

    def token_ids(self, segment: Segment) -> list[int]:
        """The segment's tokens. A shorter segment of the same key is a prefix of a
        longer one.
        """
        words = raw_words(
            self.seed, f"tokens/{self.round_index}/{segment.key}", segment.token_count
        )
        span = self.vocabulary_size - self.reserved_token_ids
        return [self.reserved_token_ids + int(word) for word in (words % span).tolist()]
