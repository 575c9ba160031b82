"""An unbounded prefix cache of whole blocks. It hits like vLLM: from the prompt's
beginning, never its last token.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


class PrefixCache:
    """Store every whole block of every prompt by the hash of all tokens up
    to its end.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._known: set[bytes] = set()

    def look_up_and_add(self, prompt: Sequence[int]) -> int:
        """Return how many of the prompt's tokens were cached, and add all its whole
        blocks.
        """
        chain = hashlib.sha256()
        hit_tokens = 0
        all_known = True
        for start in range(0, len(prompt) - self._block_tokens + 1, self._block_tokens):
            end = start + self._block_tokens
            chain.update(array("q", prompt[start:end]).tobytes())
            key = chain.digest()
            all_known = all_known and key in self._known and end < len(prompt)
            if all_known:
                hit_tokens = end
            self._known.add(key)
        return hit_tokens
