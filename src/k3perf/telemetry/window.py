"""Samples over a window -> named readings (``TelemetryReading``). Pure.

Ratios (ticks, pressure) are differences between the samples nearest outside the window
over the time between them; gauges are extremes or means of the samples inside it and of
the two next to it; energy is the mean power between its nearest readings times the
window. A reading whose samples hold no value has value None and says why: not offered
here, NVML's own words, or a counter that fell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from statistics import fmean

from k3perf.metrics.round_readings import NOT_OFFERED
from k3perf.records.samples import TelemetryReading
from k3perf.telemetry.devices import DeviceSample
from k3perf.telemetry.host import HostSample
from k3perf.units import NS_PER_US, format_bytes, ns_to_ms

_PROC = "/proc"
_NVML = "NVML"
_SHOWN_COMMAND = 80
_FELL = "the counter fell; the driver was loaded again"

_JUDGED_HOST_READINGS = (
    "steal_ratio",
    "psi_cpu_some_ratio",
    "psi_memory_some_ratio",
    "foreign_cpu_ratio",
    "swap_used_bytes",
    "clock_jump_ms",
)
DEVICE_READINGS = (
    "device_used_max_bytes",
    "engine_device_max_bytes",
    "power_mean_w",
    "energy_j",
    "sm_clock_min_mhz",
    "sm_clock_mean_mhz",
    "memory_clock_min_mhz",
    "temperature_max_c",
    "throttle_reasons_bits",
    "ecc_errors_count",
    "foreign_device_processes_count",
)


def _command(pid: int) -> str:
    try:
        return (
            Path(f"{_PROC}/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()[:_SHOWN_COMMAND]
        )
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class DeviceOwnership:
    """Which processes on a device are the engine's. ``exists``: whether a process
    id is visible here (containers hide others), ``command`` what it runs (empty when
    that cannot be read). ``ranks_count``: how many ranks of the run's engines compute
    on one device.
    """

    engine_pids: frozenset[int]
    ranks_count: int = 1
    exists: Callable[[int], bool] = lambda pid: Path(f"{_PROC}/{pid}").exists()
    command: Callable[[int], str] = _command


def around(
    samples: Iterable[HostSample | DeviceSample], start_ns: int, end_ns: int
) -> tuple[int, int]:
    """First and one-past-last index of the samples in and next to the window."""
    times = [sample.at_ns for sample in samples]
    first = max((index for index, at_ns in enumerate(times) if at_ns <= start_ns), default=0)
    last = min(
        (index for index, at_ns in enumerate(times) if at_ns >= end_ns), default=len(times) - 1
    )
    return first, last + 1


def host_readings(samples: Sequence[HostSample]) -> tuple[TelemetryReading, ...]:
    """Readings of the machine from samples in order of time. Fewer than two samples
    give readings without a value.
    """
    if len(samples) < 2:
        why = f"{_PROC}: {len(samples)} samples in the window, 2 needed"
        return tuple(TelemetryReading(name, None, why) for name in _JUDGED_HOST_READINGS)
    first, last = samples[0], samples[-1]
    cpu_us = (first.psi_cpu_some_us, last.psi_cpu_some_us)
    memory_us = (first.psi_memory_some_us, last.psi_memory_some_us)
    values = {
        "steal_ratio": _steal_ratio(first, last),
        "psi_cpu_some_ratio": _pressure_ratio(*cpu_us, first, last),
        "psi_memory_some_ratio": _pressure_ratio(*memory_us, first, last),
        "foreign_cpu_ratio": _foreign_ratio(samples),
        "swap_used_bytes": _over(max, (sample.swapped_bytes for sample in samples)),
        "engine_rss_max_bytes": _over(max, (sample.resident_bytes for sample in samples)),
        "clock_jump_ms": _clock_jump_ms(samples),
    }
    return tuple(
        TelemetryReading(name, value, _PROC if value is not None else f"{_PROC}: {NOT_OFFERED}")
        for name, value in values.items()
    )


def device_readings(
    index: int, kept: Sequence[DeviceSample], start_ns: int, end_ns: int, ownership: DeviceOwnership
) -> tuple[TelemetryReading, ...]:
    """Readings of one device over the window from all its kept samples, in order of
    time; the source names the device.
    """
    first, last = around(kept, start_ns, end_ns)
    samples = kept[first:last]
    throttle = [sample.throttle_bits for sample in samples if sample.throttle_bits is not None]
    bits = reduce(or_, throttle, 0)
    listed = [sample.process_bytes for sample in samples if sample.process_bytes is not None]
    strangers = max(
        (_strangers(processes, ownership) for processes in listed),
        key=lambda found: found.count,
        default=_Strangers(),
    )
    place = f"{_NVML} device {index}"
    energy, energy_why = energy_j(kept, start_ns, end_ns)
    errors, errors_why = _growth([sample.uncorrected_ecc_count for sample in samples])

    def over(pick: Callable[[Iterable[float]], float], name: str) -> tuple[str, float | None]:
        return name, _over(pick, (getattr(sample, name) for sample in samples))

    values: dict[str, tuple[str, float | None]] = {
        "device_used_max_bytes": over(max, "used_bytes"),
        "engine_device_max_bytes": (
            "process_bytes",
            _over(max, (_engine_bytes(sample, ownership) for sample in samples)),
        ),
        "power_mean_w": over(fmean, "power_w"),
        "energy_j": ("energy_j", energy),
        "sm_clock_min_mhz": over(min, "sm_clock_mhz"),
        "sm_clock_mean_mhz": over(fmean, "sm_clock_mhz"),
        "memory_clock_min_mhz": over(min, "memory_clock_mhz"),
        "temperature_max_c": over(max, "temperature_c"),
        "throttle_reasons_bits": ("throttle_bits", float(bits) if throttle else None),
        "ecc_errors_count": ("uncorrected_ecc_count", errors),
        "foreign_device_processes_count": (
            "process_bytes",
            float(strangers.count) if listed else None,
        ),
    }
    why = {"energy_j": energy_why, "ecc_errors_count": errors_why}
    details = {"foreign_device_processes_count": strangers.text(ownership)}
    return tuple(
        TelemetryReading(name, value, f"{place}{details.get(name, '')}")
        if value is not None
        else TelemetryReading(
            name, None, f"{place}: {why.get(name) or _unread(samples, read_from)}"
        )
        for name, (read_from, value) in values.items()
    )


def _unread(samples: Sequence[DeviceSample], name: str) -> str:
    """Why no sample has a value of the field ``name``: NVML's words for the last
    failure, else that the device does not offer it.
    """
    return next(
        (sample.unread[name] for sample in reversed(samples) if name in sample.unread), NOT_OFFERED
    )


def energy_j(
    samples: Sequence[DeviceSample], start_ns: int, end_ns: int
) -> tuple[float | None, str]:
    """Energy of the window: mean power between the two energy readings nearest outside
    it (else inside it), times its length.

    None where there are no two readings, and, with the reason, where the counter fell
    between them.
    """
    points = [(sample.at_ns, sample.energy_j) for sample in samples if sample.energy_j is not None]
    before = [point for point in points if point[0] <= start_ns][-1:] or points[:1]
    after = [point for point in points if point[0] >= end_ns][:1] or points[-1:]
    if not points or after[0][0] <= before[0][0]:
        return None, ""
    used_j, why = _growth(
        [energy for at_ns, energy in points if before[0][0] <= at_ns <= after[0][0]]
    )
    return (
        (None, why)
        if used_j is None
        else (used_j / (after[0][0] - before[0][0]) * (end_ns - start_ns), "")
    )


def lost_devices(index: int | None, why: str) -> tuple[TelemetryReading, ...]:
    """The device readings of a device that was asked for and cannot be read."""
    where = _NVML if index is None else f"{_NVML} device {index}"
    return tuple(TelemetryReading(name, None, f"{where}: {why}") for name in DEVICE_READINGS)


def _steal_ratio(first: HostSample, last: HostSample) -> float | None:
    if first.cpu is None or last.cpu is None or last.cpu.total <= first.cpu.total:
        return None
    return (last.cpu.steal - first.cpu.steal) / (last.cpu.total - first.cpu.total)


def _foreign_ratio(samples: Sequence[HostSample]) -> float | None:
    """Share of all CPU time that processes other than the engine's and the
    harness's used.

    What a process used is taken between neighbouring samples that both saw it, so one
    that starts or ends in between loses at most one interval.
    """
    first, last = samples[0], samples[-1]
    if first.cpu is None or last.cpu is None or last.cpu.total <= first.cpu.total:
        return None
    ours = sum(
        ticks - before.process_ticks[pid]
        for before, after in pairwise(samples)
        for pid, ticks in after.process_ticks.items()
        if pid in before.process_ticks
    )
    return max(0, last.cpu.busy - first.cpu.busy - ours) / (last.cpu.total - first.cpu.total)


def _pressure_ratio(
    before_us: int | None, after_us: int | None, first: HostSample, last: HostSample
) -> float | None:
    elapsed_ns = last.at_ns - first.at_ns
    if before_us is None or after_us is None or elapsed_ns <= 0:
        return None
    return (after_us - before_us) * NS_PER_US / elapsed_ns


def _clock_jump_ms(samples: Sequence[HostSample]) -> float:
    """Largest disagreement of wall and monotonic clock between two samples."""
    return ns_to_ms(
        max(abs((b.wall_ns - a.wall_ns) - (b.at_ns - a.at_ns)) for a, b in pairwise(samples))
    )


def _engine_bytes(sample: DeviceSample, ownership: DeviceOwnership) -> int | None:
    known = [
        size
        for pid, size in (sample.process_bytes or {}).items()
        if pid in ownership.engine_pids and size is not None
    ]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class _Strangers:
    """Processes on a device that are not the engine's, with what they hold in bytes.

    ``hidden`` are ids that do not exist here: in a container NVML may give those of the
    host's namespace. ``ours_count`` of them may be the engine's, and nothing says
    which.
    """

    visible: Mapping[int, int | None] = field(default_factory=dict)
    hidden: Mapping[int, int | None] = field(default_factory=dict)
    ours_count: int = 0

    @property
    def count(self) -> int:
        """How many there are at least."""
        return len(self.visible) + max(0, len(self.hidden) - self.ours_count)

    def text(self, ownership: DeviceOwnership) -> str:
        """Pid, command and bytes of each, behind a colon. Empty without a stranger."""
        if not self.count:
            return ""
        shown = (
            self.visible if len(self.hidden) <= self.ours_count else {**self.visible, **self.hidden}
        )
        listed = _holders_text(shown, ownership)
        doubt = (
            f" ({self.ours_count} of those not visible here may be the engine's)"
            if len(shown) > self.count
            else ""
        )
        return f": {listed}{doubt}"


def _strangers(processes: Mapping[int, int | None], ownership: DeviceOwnership) -> _Strangers:
    """At most one hidden id for each rank that no visible process stands for is the
    engine's.

    API server, EngineCore and the resource tracker hold no device, so their number says
    nothing.
    """
    strangers = {pid: size for pid, size in processes.items() if pid not in ownership.engine_pids}
    hidden = {pid: size for pid, size in strangers.items() if not ownership.exists(pid)}
    seen_count = len(ownership.engine_pids & set(processes))
    visible = {pid: size for pid, size in strangers.items() if pid not in hidden}
    return _Strangers(visible, hidden, max(0, ownership.ranks_count - seen_count))


def _holders_text(holders: Mapping[int, int | None], ownership: DeviceOwnership) -> str:
    texts = []
    for pid, size in holders.items():
        held = "an unknown amount" if size is None else format_bytes(size)
        texts.append(f"pid {pid} ({ownership.command(pid) or 'command unknown'}) holds {held}")
    return ", ".join(texts)


def _growth(values: Sequence[float | None]) -> tuple[float | None, str]:
    """Last minus first of a counter's readings. None with fewer than two, and, with the
    reason, where it ever fell.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None, "one reading in the window, 2 needed" if known else ""
    if any(after < before for before, after in pairwise(known)):
        return None, _FELL
    return float(known[-1] - known[0]), ""


def _over(pick: Callable[[Iterable[float]], float], values: Iterable[float | None]) -> float | None:
    """``max``, ``min`` or ``fmean`` of the known values. None without one."""
    known = [value for value in values if value is not None]
    return float(pick(known)) if known else None
