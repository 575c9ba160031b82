"""The load layer's clock and its precise timer.

Every time of a round is an int of nanoseconds from ``monotonic_ns``. On Linux all
processes of a machine share that clock. So the times of several client processes, and
of the mock server, can be compared directly.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Final

from k3perf.units import NS_PER_S

Clock = Callable[[], int]
monotonic_ns: Final[Clock] = time.monotonic_ns

_TFD_TIMER_ABSTIME: Final = 1
_TFD_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class PreciseTimer:
    """One re-armable alarm on an event loop: ``callback()`` at or just after an
    absolute ``due_ns``.

    Event loops round their timers to whole milliseconds (asyncio's epoll and libuv both
    do), which would show as schedule lag. On Linux this waits on a timerfd, which wakes
    the loop as a readable socket does. Elsewhere it falls back to ``loop.call_later``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[[], None],
        clock: Clock = monotonic_ns,
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._fd = _open_timerfd()
        if self._fd is not None:
            loop.add_reader(self._fd, self._on_readable)

    def arm(self, due_ns: int) -> None:
        """Set the alarm to ``due_ns``. A time in the past fires at once."""
        if self._fd is not None:
            _set_timerfd(self._fd, max(due_ns, 1))
            return
        self.disarm()
        delay_s = max(due_ns - self._clock(), 0) / NS_PER_S
        self._handle = self._loop.call_later(delay_s, self._callback)

    def disarm(self) -> None:
        """Cancel the alarm."""
        if self._fd is not None:
            _set_timerfd(self._fd, 0)
        elif self._handle is not None:
            self._handle.cancel()

    def close(self) -> None:
        """Close the descriptor. The timer never fires again."""
        self.disarm()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _on_readable(self) -> None:
        assert self._fd is not None  # noqa: S101 - the reader is removed before the descriptor is closed
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # re-armed between the wake-up and here
        self._callback()


# Opened once: looking it up again for every alarm costs more than the alarm.
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _open_timerfd() -> int | None:
    if _LIBC is None:
        return None
    fd = _LIBC.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
    return None if fd < 0 else int(fd)


def _set_timerfd(fd: int, due_ns: int) -> None:
    """``due_ns`` 0 disarms (timerfd_settime(2))."""
    assert _LIBC is not None  # noqa: S101 - there is a descriptor
    seconds, nanoseconds = divmod(due_ns, NS_PER_S)
    specification = struct.pack("@qqqq", 0, 0, seconds, nanoseconds)
    if _LIBC.timerfd_settime(fd, _TFD_TIMER_ABSTIME, specification, None) != 0:
        raise OSError(ctypes.get_errno(), "timerfd_settime failed")
