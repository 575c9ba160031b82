"""Are two recorded commits the same one? Runners write what they know: a full hash, a
short one (K3PERF_COMMIT), or that it is unknown. Pure.

Ancestry is no concern of this: it asks no repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

UNKNOWN: Final = "unknown"

_DIRTY: Final = "-dirty"
_HASH: Final = re.compile("[0-9a-f]{7,}")
"""Git shortens a hash to seven digits. Fewer digits do not name a commit."""


def same_commit(first: str, second: str) -> bool:
    """Equal texts, or one hash the beginning of the other, with tracked files changed
    (``-dirty``) in both or in neither.

    An empty text is an unknown commit, which is the same as an unknown one alone.
    """
    if (first or UNKNOWN) == (second or UNKNOWN):
        return True
    if first.endswith(_DIRTY) != second.endswith(_DIRTY):
        return False
    short, long = sorted((first.removesuffix(_DIRTY), second.removesuffix(_DIRTY)), key=len)
    return (
        _HASH.fullmatch(short) is not None
        and _HASH.fullmatch(long) is not None
        and long.startswith(short)
    )


def distinct_commits(commits: Iterable[str]) -> tuple[str, ...]:
    """Each commit once, in the order given, as the longest text that names it. An empty
    one is ``unknown``.
    """
    given = tuple(dict.fromkeys(commit or UNKNOWN for commit in commits))
    return tuple(
        one
        for one in given
        if not any(len(other) > len(one) and same_commit(one, other) for other in given)
    )
