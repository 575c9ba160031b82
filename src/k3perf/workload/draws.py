"""Seed and label to numbers that are the same on every machine and NumPy release.

Only the raw stream of the Philox bit generator is used, which NumPy promises to keep
(NEP 19). NumPy's distributions may change between releases, which would change every
plan's digest.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def raw_words(seed: int, label: str, count: int) -> NDArray[np.uint64]:
    """``count`` independent 64-bit words of the stream named by ``seed`` and ``label``,
    shape ``(count,)``.
    """
    from numpy.random import Philox

    key = int.from_bytes(hashlib.sha256(f"{seed}/{label}".encode()).digest()[:16], "little")
    words: NDArray[np.uint64] = Philox(key=key).random_raw(count)
    return words


def uniforms(seed: int, label: str, count: int) -> NDArray[np.float64]:
    """``count`` numbers strictly between 0 and 1, 53 bits each, shape ``(count,)``."""
    import numpy as np

    return ((raw_words(seed, label, count) >> np.uint64(11)).astype(np.float64) + 0.5) / float(
        1 << 53
    )


def permutation(seed: int, label: str, count: int) -> list[int]:
    """The numbers 0 .. count - 1 in an order that the seed decides."""
    import numpy as np

    return [int(index) for index in np.argsort(raw_words(seed, label, count), kind="stable")]
