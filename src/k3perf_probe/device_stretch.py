"""A step's stream on a CUDA device, stretched on the device itself by the step's own
duration. Imported in a GPU worker only.

Two one-thread Triton kernels read the device's nanosecond clock: one marks the
beginning of a step, the other spins until the time since the mark has grown by the
ratio, and marks again. Stream order makes the time between them the device's time for
the work launched in between; the host neither waits nor reads anything back.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as device_clock

# the ratio is passed as an integer number of these parts: kernels compute in whole
# nanoseconds
_RATIO_SCALE = 10_000


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _mark(clock_ptr):  # type: ignore[no-untyped-def]
    tl.store(clock_ptr, device_clock.globaltimer())


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _stretch(clock_ptr, ratio_parts, scale: tl.constexpr):  # type: ignore[no-untyped-def]
    began = tl.load(clock_ptr)
    now = device_clock.globaltimer()
    until = now + (now - began) * ratio_parts // scale
    while now < until:
        now = device_clock.globaltimer()
    tl.store(clock_ptr, now)


class DeviceStretch:
    """Marks and stretches on the current stream of ``device``. Both kernels are
    compiled here, before anything is measured.
    """

    def __init__(self, device: Any, ratio: float) -> None:
        self._clock = torch.zeros(1, dtype=torch.int64, device=device)
        self._ratio_parts = round(ratio * _RATIO_SCALE)
        self.begin()
        self.stretch()
        torch.cuda.synchronize(device)

    def begin(self) -> None:
        """The step's device time starts here, once the work before it is done."""
        _mark[(1,)](self._clock, num_warps=1)

    def stretch(self) -> None:
        """Hold the stream for the ratio of the time since the mark, and mark again."""
        _stretch[(1,)](self._clock, self._ratio_parts, _RATIO_SCALE, num_warps=1)
