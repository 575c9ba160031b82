"""Counts of a round in progress, shared by a client process and the one that shows
them.

The display redraws in another process than the one that reads tokens, so it never
delays a read.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

_LAYOUT: Final = struct.Struct("@qqqq")


@dataclass(frozen=True, slots=True)
class LiveCounts:
    """Requests sent, ended and failed so far, and pieces of replies read (about one
    for each token).
    """

    sent: int = 0
    ended: int = 0
    failed: int = 0
    read: int = 0

    def plus(self, other: LiveCounts) -> LiveCounts:
        """The sum of two processes' counts."""
        return LiveCounts(
            self.sent + other.sent,
            self.ended + other.ended,
            self.failed + other.failed,
            self.read + other.read,
        )


CountsListener = Callable[[LiveCounts], None]


class SharedCounts:
    """One process writes its counts, another reads them. A torn reading is harmless:
    it is only shown.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """A new shared page, or with ``descriptor`` the one that a parent made."""
        if descriptor is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this
            self._file.truncate(mmap.PAGESIZE)
            self.descriptor = self._file.fileno()
        else:
            self.descriptor = descriptor
        self._page = mmap.mmap(self.descriptor, mmap.PAGESIZE)

    def write(self, counts: LiveCounts) -> None:
        """Replace the counts."""
        _LAYOUT.pack_into(self._page, 0, counts.sent, counts.ended, counts.failed, counts.read)

    def read(self) -> LiveCounts:
        """The counts at this moment."""
        return LiveCounts(*_LAYOUT.unpack_from(self._page))

    def close(self) -> None:
        """Release the page."""
        self._page.close()
        if hasattr(self, "_file"):
            self._file.close()


def total_of(shared: Sequence[SharedCounts]) -> LiveCounts:
    """The sum over all client processes."""
    total = LiveCounts()
    for counts in shared:
        total = total.plus(counts.read())
    return total
