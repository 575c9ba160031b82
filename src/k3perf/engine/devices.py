"""NVML to plain data about each device: is it there, healthy, of which class, how much
memory is free and who holds the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from k3perf.engine.process_tree import command_of
from k3perf.errors import PreflightError
from k3perf.nvml import Nvml, NvmlError, Unread, offered
from k3perf.units import format_bytes

SHOWN_HOLDERS: Final = 5


@dataclass(frozen=True, slots=True)
class MemoryHolder:
    """A process with wanted memory. ``size_bytes`` None: the driver does not say."""

    pid: int
    command: str
    size_bytes: int | None

    @property
    def text(self) -> str:
        """``pid 12 (command) holds 3.0 GiB``."""
        size = "an unknown amount" if self.size_bytes is None else format_bytes(self.size_bytes)
        return f"pid {self.pid} ({self.command or 'command unknown'}) holds {size}"


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device as NVML reports it. None: not read, and ``unread`` has the reason.

    Keys of ``unread``: ``device`` (nothing else was read then), ``name``, ``memory``,
    ``driver``, ``processes``, ``ecc``.
    """

    index: int
    name: str
    total_bytes: int | None
    used_bytes: int | None
    driver_version: str
    holders: tuple[MemoryHolder, ...] | None
    uncorrected_ecc_count: int | None
    needs_reset: bool | None
    power_limit_w: float | None = None
    unread: Mapping[str, Unread] = field(default_factory=dict)

    @property
    def free_bytes(self) -> int | None:
        """Memory that a new engine could have; None where the device does not say."""
        return (
            None
            if self.total_bytes is None or self.used_bytes is None
            else self.total_bytes - self.used_bytes
        )

    @property
    def silent(self) -> Unread | None:
        """Why the device does not answer at all; None for one that does."""
        return self.unread.get("device")


DeviceReader = Callable[[], tuple[DeviceState, ...]]


def device_holders(states: Iterable[DeviceState]) -> tuple[MemoryHolder, ...]:
    """Everyone who holds memory of the devices, largest first."""
    found = [holder for state in states for holder in state.holders or ()]
    return tuple(sorted(found, key=lambda holder: holder.size_bytes or 0, reverse=True))


def holders_text(holders: tuple[MemoryHolder, ...]) -> str:
    """A sentence with the largest holders; it says so where none is known."""
    if not holders:
        return "No process is known to hold it; the driver or another container may."
    return "; ".join(holder.text for holder in holders[:SHOWN_HOLDERS]) + "."


def nvml_reader(indices: tuple[int, ...] = (), *, nvml: Any = None) -> DeviceReader:
    """A function that reads the devices (all of them without ``indices``). ``nvml`` is
    the pynvml module, another one in tests.

    The function raises PreflightError when NVML cannot be loaded. A device that does
    not answer is a state that says so.
    """

    def read() -> tuple[DeviceState, ...]:
        try:
            with Nvml(nvml) as opened:
                wanted = indices or tuple(range(opened.device_count()))
                driver_version = opened.driver_version()
                return tuple(_state(opened, index, driver_version) for index in wanted)
        except NvmlError as error:
            raise PreflightError(
                f"NVML is unavailable: {error}. Install the NVIDIA driver or choose a CPU target"
            ) from error

    return read


def _state(nvml: Nvml, index: int, driver_version: str | Unread) -> DeviceState:
    handle = nvml.handle(index)
    if isinstance(handle, Unread):
        return _silent(index, handle)
    name, memory, processes, ecc = (
        nvml.name(handle),
        nvml.memory(handle),
        nvml.process_bytes(handle),
        nvml.uncorrected_ecc_count(handle),
    )
    answers = {
        "name": name,
        "memory": memory,
        "driver": driver_version,
        "processes": processes,
        "ecc": ecc,
    }
    unread = {key: answer for key, answer in answers.items() if isinstance(answer, Unread)}
    if gone := next((answer for answer in unread.values() if answer.gone), None):
        return _silent(index, gone)
    return DeviceState(
        index=index,
        name=offered(name) or "",
        total_bytes=None if isinstance(memory, Unread) else memory.total_bytes,
        used_bytes=None if isinstance(memory, Unread) else memory.used_bytes,
        driver_version=offered(driver_version) or "",
        holders=None
        if isinstance(processes, Unread)
        else tuple(
            MemoryHolder(pid, command_of(pid), size_bytes) for pid, size_bytes in processes.items()
        ),
        uncorrected_ecc_count=offered(ecc),
        needs_reset=offered(nvml.look(lambda module: _rows_need_reset(module, handle))),
        power_limit_w=offered(
            nvml.look(lambda module: float(module.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1e3)
        ),
        unread=unread,
    )


def _silent(index: int, unread: Unread) -> DeviceState:
    return DeviceState(index, "", None, None, "", None, None, None, unread={"device": unread})


def _rows_need_reset(nvml: Any, handle: Any) -> bool:
    """A row remapping is pending or has failed: the device must be reset or replaced
    before its numbers mean anything.
    """
    _correctable, _uncorrectable, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return bool(pending or failed)
