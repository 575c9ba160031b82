"""Background sampling of devices and machine; a round's window of it as readings.

One thread, one sample every ``interval_s``. It runs beside measured windows, so a
sample must stay far below 1 % of one core (``benchmarks/sampler_cost.py``); what costs
more is read in ``window``, which callers use between rounds.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType

from k3perf.errors import MeasurementInvalid
from k3perf.records.samples import TelemetryReading
from k3perf.telemetry.devices import DeviceSample, DevicesLost, DeviceSource, NvmlSource
from k3perf.telemetry.host import HostReader, HostSample
from k3perf.telemetry.window import (
    DeviceOwnership,
    around,
    device_readings,
    host_readings,
    lost_devices,
)
from k3perf.units import ns_to_s, s_to_ns

# then one device's energy is read, the devices in turn: it costs ten times the rest of
# a sample
_ENERGY_EVERY_SAMPLES = 4
_PIDS_EVERY_NS = s_to_ns(
    5.0
)  # walking a process tree costs milliseconds, so its processes are asked for seldom
_PROPORTIONAL_EVERY_NS = s_to_ns(
    300.0
)  # the kernel walks every page table of the engine for it: a tenth of a second
_KEPT_SAMPLES = (
    # nearly three hours at the default interval; older windows cannot be asked for any
    # more
    20_000
)


class Sampler:
    """Context manager. ``pids_provider`` gives the engine's processes; asked every five
    seconds and for every window.

    ``ranks_count`` gives how many ranks of the engines compute on one device: as many
    processes there may be theirs without being visible. ``devices``: None samples every
    device that NVML has, and none where there is no NVML (a reading ``devices_count``
    of 0 says so); indices are asked for, and a missing one is a reading without a
    value. Empty: no device, and NVML is left alone.
    """

    def __init__(
        self,
        pids_provider: Callable[[], Iterable[int]],
        devices: tuple[int, ...] | None = None,
        *,
        ranks_count: Callable[[], int] = lambda: 1,
        interval_s: float = 0.5,
        open_source: Callable[[], DeviceSource] = NvmlSource,
        now_ns: Callable[[], int] = time.monotonic_ns,
        reader: HostReader | None = None,
    ) -> None:
        self._pids_provider = pids_provider
        self._ranks_count = ranks_count
        self._asked = devices
        self._interval_s = interval_s
        self._open_source = open_source
        self._now_ns = now_ns
        self._pids: tuple[int, ...] = ()
        self._pids_asked_ns = 0
        self._reader = reader or HostReader(lambda: self._pids, now_ns=now_ns)
        self._host: deque[HostSample] = deque(maxlen=_KEPT_SAMPLES)
        self._devices: dict[int, deque[DeviceSample]] = {}
        self._lost: dict[int, str] = {}
        self._source: DeviceSource | None = None
        self._no_source = ""
        self.failure = ""  # what ended the sampling
        self._taken_count = 0
        self._proportional: tuple[tuple[int, ...], int, TelemetryReading] | None = (
            None  # of which processes, when read, and what
        )
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="k3perf-sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._open()
        self.sample(thorough=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._source is not None:
            self._source.close()

    def sample(self, *, thorough: bool = False) -> None:
        """Take one sample now. The thread does this; ``window`` does, with what costs
        more: every device's energy, fresh processes.
        """
        with self._lock:
            if thorough or self._now_ns() - self._pids_asked_ns >= _PIDS_EVERY_NS:
                self._pids = tuple(self._pids_provider())
                self._pids_asked_ns = self._now_ns()
            self._host.append(self._reader.sample())
            turn, rest = divmod(self._taken_count, _ENERGY_EVERY_SAMPLES)
            self._taken_count += 1
            for position, index in enumerate(self._devices):
                in_turn = rest == 0 and turn % len(self._devices) == position
                self._sample_device(index, with_energy=thorough or in_turn)

    def _sample_device(self, index: int, *, with_energy: bool) -> None:
        if index in self._lost or self._source is None:
            return
        try:
            self._devices[index].append(
                self._source.sample(index, self._now_ns(), with_energy=with_energy)
            )
        except DevicesLost as lost:
            self._lost[index] = str(lost)

    def window(
        self, start_ns: int, end_ns: int, *, devices: tuple[int, ...] | None = None
    ) -> tuple[TelemetryReading, ...]:
        """Readings over the window, which has ended: samples once more, with energy,
        which costs more.

        ``devices``: those that this window is about, of the sampled ones; None for all.
        Another target's lost device is not its concern.

        Raises MeasurementInvalid when sampling has ended by itself: a window that
        no one watched looks like one in which nothing happened. ``engine_pss_bytes`` is
        read once in five minutes, of whatever engines run then; its source says how old
        it is. It is read for no other engine: reading it for each would be the largest
        part of what watching costs.
        """
        if self.failure:
            raise MeasurementInvalid(f"telemetry stopped: {self.failure}")
        self.sample(thorough=True)
        with self._lock:
            host = list(self._host)
            kept_samples = {
                index: list(kept)
                for index, kept in self._devices.items()
                if devices is None or index in devices
            }
        first, last = around(host, start_ns, end_ns)
        readings = list(host_readings(host[first:last]))
        readings.append(self._proportional_memory())
        readings.extend(self._device_window(kept_samples, start_ns, end_ns))
        return tuple(readings)

    def _proportional_memory(self) -> TelemetryReading:
        now_ns = self._now_ns()
        if self._proportional is not None:
            pids, at_ns, known = self._proportional
            if now_ns - at_ns < _PROPORTIONAL_EVERY_NS:
                if pids == self._pids:
                    return dataclasses.replace(
                        known, source=f"{known.source}, read {ns_to_s(now_ns - at_ns):.0f} s ago"
                    )
                return TelemetryReading(
                    "engine_pss_bytes",
                    None,
                    f"/proc: not read, the last reading ({ns_to_s(now_ns - at_ns):.0f} s ago) was"
                    " of other processes",
                )
        size_bytes = self._reader.proportional_bytes()
        if size_bytes is None:
            return TelemetryReading("engine_pss_bytes", None, "/proc: smaps_rollup cannot be read")
        reading = TelemetryReading("engine_pss_bytes", float(size_bytes), "/proc")
        self._proportional = (self._pids, now_ns, reading)
        return reading

    def _device_window(
        self, devices: dict[int, list[DeviceSample]], start_ns: int, end_ns: int
    ) -> list[TelemetryReading]:
        if self._no_source:
            readings = [TelemetryReading("devices_count", 0.0, f"NVML: {self._no_source}")]
            return readings + [
                reading for index in devices for reading in lost_devices(index, self._no_source)
            ]
        answering_count = sum(index not in self._lost for index in devices)
        readings = [
            TelemetryReading(
                "devices_count", float(answering_count), "NVML" if devices else "NVML: no device"
            )
        ]
        ownership = DeviceOwnership(frozenset(self._pids), self._ranks_count())
        for index, samples in devices.items():
            if index in self._lost:
                readings.extend(lost_devices(index, self._lost[index]))
            else:
                readings.extend(device_readings(index, samples, start_ns, end_ns, ownership))
        return readings

    def _open(self) -> None:
        self._devices = {index: deque(maxlen=_KEPT_SAMPLES) for index in self._asked or ()}
        if self._asked == ():
            return
        try:
            self._source = self._open_source()
            found = self._source.indices()
        except DevicesLost as lost:
            self._no_source = str(lost)
            return
        for index in found if self._asked is None else self._asked:
            self._devices[index] = deque(maxlen=_KEPT_SAMPLES)
            if index not in found:
                self._lost[index] = f"there is no device {index}; NVML has {len(found)}"

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._interval_s):
                self.sample()
        except (
            Exception
        ) as error:  # whatever it is, from now on no one looks: the next window has to say so
            self.failure = f"{type(error).__name__}: {error}"
