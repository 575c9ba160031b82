"""Injected slow-down: every step of this rank takes a given share of its duration
longer.

CPU engines: the host waits after each part of a step, for the share of what that part
took. CUDA engines: a kernel on the step's own stream reads the device's clock and spins
for the share of what the device spent since the step began (``device_stretch.py``).
With asynchronous scheduling the host runs ahead of the device, so the same share of the
host's own time is waited as well: whichever of the two bounds the step, the step is
longer by the share, and the waits overlap rather than add. Without it the host waits
for the device anyway, so the device's stretch alone is the whole slow-down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from k3perf_probe import memory
from k3perf_probe.answers import rank_of

STEP_METHODS = ("execute_model", "sample_tokens")
_SHORTEST_SLEEP_NS = (
    # a shorter sleep overshoots by its own length; it is carried to the next part
    # instead
    80_000
)


class HostDelay:
    """Waits a share of given durations, exact on average: what a sleep overshoots or
    what was too short to sleep is carried over.
    """

    def __init__(
        self,
        ratio: float,
        *,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self.ratio = ratio
        self.owed_ns = 0.0
        self.waited_ns = 0
        self._now_ns = now_ns
        self._sleep_s = sleep_s

    def after(self, duration_ns: int) -> None:
        """Wait for this part's share, give or take what is owed."""
        self.owed_ns += duration_ns * self.ratio
        if self.owed_ns < _SHORTEST_SLEEP_NS:
            return
        began_ns = self._now_ns()
        self._sleep_s(self.owed_ns / 1e9)
        waited_ns = self._now_ns() - began_ns
        self.owed_ns -= waited_ns
        self.waited_ns += waited_ns


class NoDeviceStretch:
    """Stands where a CPU rank, or a rank whose host waits for the device, has nothing
    to do on the device.
    """

    def begin(self) -> None:
        """Nothing to mark."""

    def stretch(self) -> None:
        """Nothing to stretch."""


def slow_down(worker: Any, percent: float) -> dict[str, Any]:
    """Slow this rank down by ``percent`` (0 ends it) and say how it is done."""
    if not 0 <= percent <= 1000:
        raise ValueError(f"percent is {percent}; it must lie between 0 and 1000")
    _restore(worker)
    how = "off"
    if percent > 0:
        how = _install(worker, percent / 100.0)
    return {"rank": rank_of(worker), "percent": percent, "how": how}


def _install(worker: Any, ratio: float) -> str:
    on_device = memory.is_cuda(worker)
    device: Any = NoDeviceStretch()
    if on_device:
        from k3perf_probe.device_stretch import DeviceStretch

        device = DeviceStretch(worker.device, ratio)
    host = HostDelay(ratio) if not on_device or _is_async(worker) else None
    for name in STEP_METHODS:
        if hasattr(worker, name):
            setattr(
                worker,
                name,
                _slowed(getattr(worker, name), host, device, opens_step=name == STEP_METHODS[0]),
            )
    worker.k3perf_host_delay = host
    return " and ".join(
        part for part in ("device" if on_device else "", "host" if host is not None else "") if part
    )


def _slowed(
    step: Callable[..., Any], host: HostDelay | None, device: Any, *, opens_step: bool
) -> Callable[..., Any]:
    def k3perf_slowed(*args: Any, **kwargs: Any) -> Any:
        began_ns = time.perf_counter_ns()
        if opens_step:
            device.begin()
        result = step(*args, **kwargs)
        device.stretch()
        if host is not None:
            host.after(time.perf_counter_ns() - began_ns)
        return result

    return k3perf_slowed


def _restore(worker: Any) -> None:
    # the wrappers are instance attributes over the class's methods
    for name in STEP_METHODS:
        if getattr(vars(worker).get(name), "__name__", "") == "k3perf_slowed":
            delattr(worker, name)


def _is_async(worker: Any) -> bool:
    return bool(
        getattr(
            getattr(getattr(worker, "vllm_config", None), "scheduler_config", None),
            "async_scheduling",
            False,
        )
    )
