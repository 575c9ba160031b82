"""Linux ``/proc`` -> one frozen sample of the machine and of the engine's processes.
Parsers are pure; ``HostReader`` opens the files.

Every part that cannot be read is None in the sample; nothing is guessed and nothing
raises. Processes come and go between samples: those that are gone are omitted, and
differences are taken over processes that both samples saw.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_STAT_FIELDS_BEFORE_UTIME = (
    11  # fields of /proc/PID/stat between the command's closing bracket and utime
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks since boot, over all CPUs (``/proc/stat``)."""

    busy: int
    steal: int
    total: int


@dataclass(frozen=True, slots=True)
class HostSample:
    """One sample. Times of ``process_ticks`` are user and system ticks by process id;
    pressures are microseconds since boot.
    """

    at_ns: int
    wall_ns: int
    cpu: CpuTimes | None
    psi_cpu_some_us: int | None
    psi_memory_some_us: int | None
    process_ticks: dict[int, int]
    resident_bytes: int | None
    swapped_bytes: int | None


def parse_cpu_times(text: str) -> CpuTimes | None:
    """First line of ``/proc/stat``; None when it is not the expected one. Guest time is
    part of user time already.
    """
    fields = text.split("\n", 1)[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = (int(value) for value in fields[1:9])
    busy = user + nice + system + irq + softirq
    return CpuTimes(busy=busy, steal=steal, total=busy + idle + iowait + steal)


def parse_pressure(text: str) -> int | None:
    """``some`` total of a ``/proc/pressure`` file, microseconds. None without."""
    for line in text.splitlines():
        if line.startswith("some "):
            for field in line.split():
                if field.startswith("total="):
                    return int(field.removeprefix("total="))
    return None


def parse_process_ticks(text: str) -> int | None:
    """User and system ticks of ``/proc/PID/stat``; the command may hold spaces and
    brackets, so count from its last bracket.
    """
    fields = text.rpartition(")")[2].split()
    if len(fields) < _STAT_FIELDS_BEFORE_UTIME + 2:
        return None
    return int(fields[_STAT_FIELDS_BEFORE_UTIME]) + int(fields[_STAT_FIELDS_BEFORE_UTIME + 1])


def parse_status_bytes(text: str, field: str) -> int | None:
    """One ``kB`` line of ``status`` or ``smaps_rollup`` in bytes. None without."""
    for line in text.splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def peak_resident_bytes(pids: Iterable[int]) -> int | None:
    """Sum of VmHWM over the processes: pages that several share are counted once each.
    None when none of them could be read.
    """
    texts = (_read_text(Path(f"/proc/{pid}/status")) for pid in pids)
    return _sum(None if text is None else parse_status_bytes(text, "VmHWM") for text in texts)


def _read_text(path: Path) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  (half the cost of Path.read_text)
            return file.read()
    except OSError:
        return None


class HostReader:
    """Reads samples. ``own_pids``: processes that belong to the measurement besides the
    engine's (the harness itself).
    """

    def __init__(
        self,
        pids_provider: Callable[[], Iterable[int]],
        *,
        own_pids: tuple[int, ...] | None = None,
        root: Path = Path("/proc"),
        now_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._pids_provider = pids_provider
        self._own_pids = (os.getpid(),) if own_pids is None else own_pids
        self._root = root
        self._now_ns = now_ns
        self._wall_ns = wall_ns

    def sample(self) -> HostSample:
        """Read everything once."""
        engine_pids = tuple(self._pids_provider())
        resident = [self._resident_bytes(pid) for pid in engine_pids]
        swapped = [self._swapped_bytes(pid) for pid in engine_pids]
        ticks = {
            pid: ticks
            for pid in (*engine_pids, *self._own_pids)
            if (ticks := self._ticks(pid)) is not None
        }
        stat = self._text("stat")
        return HostSample(
            at_ns=self._now_ns(),
            wall_ns=self._wall_ns(),
            cpu=None if stat is None else parse_cpu_times(stat),
            psi_cpu_some_us=self._pressure("cpu"),
            psi_memory_some_us=self._pressure("memory"),
            process_ticks=ticks,
            resident_bytes=_sum(resident),
            swapped_bytes=_sum(swapped),
        )

    def proportional_bytes(self) -> int | None:
        """Proportional set size of the engine's processes. Walks their page tables, so
        never read inside a measured window.
        """
        sizes = [
            None if text is None else parse_status_bytes(text, "Pss")
            for text in (self._text(f"{pid}/smaps_rollup") for pid in self._pids_provider())
        ]
        return _sum(sizes)

    def _ticks(self, pid: int) -> int | None:
        text = self._text(f"{pid}/stat")
        return None if text is None else parse_process_ticks(text)

    def _resident_bytes(self, pid: int) -> int | None:
        text = self._text(f"{pid}/statm")
        return None if text is None else int(text.split()[1]) * _PAGE_BYTES

    def _swapped_bytes(self, pid: int) -> int | None:
        text = self._text(f"{pid}/status")
        return None if text is None else parse_status_bytes(text, "VmSwap")

    def _pressure(self, kind: str) -> int | None:
        text = self._text(f"pressure/{kind}")
        return None if text is None else parse_pressure(text)

    def _text(self, name: str) -> str | None:
        return _read_text(self._root / name)


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None
