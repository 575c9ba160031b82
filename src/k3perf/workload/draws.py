"""A seed to what a plan draws: numbers, lengths and the token ids of prompts, the same
on every machine and NumPy release.

Only the raw stream of the Philox bit generator is used, which NumPy promises to keep
(NEP 19); its distributions may change between releases and would change every plan's
digest with them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k3perf.config.workload_spec import EmpiricalLength, FixedLength, LogNormalLength, UniformLength
from k3perf.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


CONTENT_VERSION = 1


def raw_words(seed: int, label: str, count: int) -> NDArray[np.uint64]:
    """``count`` independent 64-bit words of the stream named by ``seed`` and ``label``;
    shape ``(count,)``.
    """
    from numpy.random import Philox

    key = int.from_bytes(hashlib.sha256(f"{seed}/{label}".encode()).digest()[:16], "little")
    words: NDArray[np.uint64] = Philox(key=key).random_raw(count)
    return words


def uniforms(seed: int, label: str, count: int) -> NDArray[np.float64]:
    """``count`` numbers strictly between 0 and 1, 53 bits each; shape ``(count,)``."""
    import numpy as np

    return ((raw_words(seed, label, count) >> np.uint64(11)).astype(np.float64) + 0.5) / float(
        1 << 53
    )


def permutation(seed: int, label: str, count: int) -> list[int]:
    """The numbers 0 .. count - 1 in an order given by the seed."""
    import numpy as np

    return [int(index) for index in np.argsort(raw_words(seed, label, count), kind="stable")]


def draw_lengths(
    length: FixedLength | UniformLength | LogNormalLength | EmpiricalLength,
    *,
    seed: int,
    label: str,
    count: int,
) -> tuple[int, ...]:
    """``count`` token counts of one distribution; the same for the same seed and
    label.
    """
    if isinstance(length, FixedLength):
        return (length.tokens,) * count
    if isinstance(length, UniformLength):
        span = length.high - length.low + 1
        return tuple(length.low + int(u * span) for u in uniforms(seed, label, count))
    if isinstance(length, EmpiricalLength):
        return tuple(
            length.values[int(u * len(length.values))] for u in uniforms(seed, label, count)
        )
    return _draw_log_normal(length, seed=seed, label=label, count=count)


def _draw_log_normal(
    length: LogNormalLength, *, seed: int, label: str, count: int
) -> tuple[int, ...]:
    import numpy as np
    from scipy.special import ndtri

    values = length.median * np.exp(length.sigma * ndtri(uniforms(seed, label, count)))
    return tuple(int(value) for value in np.clip(np.rint(values), length.low, length.high))


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt: ``token_count`` tokens named by ``key``. ``reply_to`` is set
    where the text is the reply to an earlier request of the plan.
    """

    key: str
    token_count: int
    reply_to: int | None = None


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where token ids come from: drawn evenly from ``reserved_token_ids`` up to, not
    including, ``vocabulary_size``.

    Equal keys give equal tokens inside a round, which is how prefixes are shared.
    Another round gives other tokens, so that no round hits what an earlier one left in
    the prefix cache.
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
        """The segment's tokens; a shorter segment of the same key is a prefix of a
        longer one.
        """
        words = raw_words(
            self.seed, f"tokens/{self.round_index}/{segment.key}", segment.token_count
        )
        span = self.vocabulary_size - self.reserved_token_ids
        return [self.reserved_token_ids + int(word) for word in (words % span).tolist()]
