"""Is each device fit for the engines that a target starts? Pure: states in, findings
out, every device on its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from k3perf.config.machine_spec import Hardware
from k3perf.engine.devices import DeviceState, MemoryHolder, device_holders, holders_text
from k3perf.engine.findings import Finding, Level, judged
from k3perf.nvml import Cause, Unread
from k3perf.units import GIB, format_bytes

# firmware keeps some of what the data sheet says
_TOTAL_MEMORY_SLACK_RATIO: Final = 0.95
_POWER_LIMIT_SLACK_RATIO: Final = 0.02


@dataclass(frozen=True, slots=True)
class Needs:
    """What the cells of a run need of the machine. None: not checked.
    ``own_ranks_count``: ranks of this run that compute on each device already.
    """

    hardware: Hardware
    free_memory_bytes: int | None = None
    free_disk_bytes: int = 2 * GIB
    writable_directories: tuple[Path, ...] = ()
    engine_python: Path | None = None
    cpus: tuple[int, ...] = ()
    own_pids: frozenset[int] = frozenset()
    own_ranks_count: int = 0

    @property
    def devices_count(self) -> int:
        """Devices of this host."""
        return max(1, self.hardware.device_count // self.hardware.host_count)


def device_findings(needs: Needs, states: tuple[DeviceState, ...]) -> list[Finding]:
    """The number of devices, then every check of every device."""
    hardware = needs.hardware
    enough = len(states) >= needs.devices_count
    wanted = f"{needs.devices_count} x {hardware.device_name or hardware.hardware_class}"
    count = judged("devices", enough, f"{len(states)} found", wanted, "Choose another target.")
    return [count, *(finding for state in states for finding in _device(needs, state))]


def _silent(index: int, unread: Unread) -> Finding:
    """A device that does not answer NVML, or is refused."""
    if unread.cause is Cause.REFUSED:
        return Finding(
            f"device {index}",
            Level.FAIL,
            f"refused by NVML: {unread.words}",
            "an answer",
            unread.next_step,
        )
    text = f"{unread.next_step} To measure on the others, leave it out of CUDA_VISIBLE_DEVICES."
    return Finding(
        f"device {index}", Level.FAIL, f"does not answer NVML: {unread.words}", "an answer", text
    )


def _device(needs: Needs, state: DeviceState) -> list[Finding]:
    if state.silent is not None:
        return [_silent(state.index, state.silent)]
    memory = state.unread.get("memory")
    if memory is not None and memory.cause is Cause.LOST:
        return [_silent(state.index, memory)]
    if memory is not None and memory.cause is Cause.REFUSED:
        reading = f"{state.name or 'device'}, memory: {memory.words}"
        return [
            Finding(
                f"device {state.index} memory",
                Level.FAIL,
                reading,
                "a reading",
                memory.next_step,
            )
        ]
    findings = [_class(needs.hardware, state), _driver(needs.hardware, state), _health(state)]
    if needs.hardware.power_limit_w is not None:
        findings.append(_power_limit(needs.hardware.power_limit_w, state))
    if needs.free_memory_bytes is not None:
        findings.append(_free_memory(needs.free_memory_bytes, state))
    return [*findings, *_processes(needs, state)]


def _class(hardware: Hardware, state: DeviceState) -> Finding:
    wanted_bytes = hardware.device_memory_bytes
    size = _size_text(state)
    needed = f"{hardware.device_name or 'any'}{'' if wanted_bytes is None else f' with {format_bytes(wanted_bytes)}'}"  # noqa: E501
    name = f"device {state.index} class"
    reading = f"{state.name or _unknown(state, 'name')}, {size}"
    right_name = hardware.device_name.lower() in state.name.lower()
    if right_name and wanted_bytes is not None and state.total_bytes is None:
        text = (
            "The target declares device_memory_bytes, and this device does not report its memory"
            f" ({_words(state, 'memory')})."
        )
        return Finding(name, Level.FAIL, reading, needed, f"{text} Choose a target without it.")
    right_size = (
        wanted_bytes is None or (state.total_bytes or 0) >= wanted_bytes * _TOTAL_MEMORY_SLACK_RATIO
    )
    text = (
        f"Baselines of {hardware.hardware_class} do not apply here; choose the target of this"
        " device."
    )
    return judged(name, right_name and right_size, reading, needed, text)


def _driver(hardware: Hardware, state: DeviceState) -> Finding:
    old = bool(hardware.minimum_driver) and _version(state.driver_version) < _version(
        hardware.minimum_driver
    )
    reading = state.driver_version or _unknown(state, "driver")
    text = (
        "Update the driver." if state.driver_version else "The driver does not report its version."
    )
    name = f"device {state.index} driver"
    return judged(name, not old, reading, hardware.minimum_driver or "any", text)


def _health(state: DeviceState) -> Finding:
    """Errors that the device counts and hides would make every round INVALID."""
    name, unread = f"device {state.index} health", state.unread.get("ecc")
    if unread is not None and unread.cause is not Cause.NOT_OFFERED:
        return Finding(
            name,
            Level.FAIL,
            f"uncorrected ECC errors unknown ({unread.words})",
            "a reading",
            unread.next_step,
        )
    sick = bool(state.uncorrected_ecc_count) or bool(state.needs_reset)
    reading = (
        "uncorrected ECC errors"
        f" {_unknown(state, 'ecc') if state.uncorrected_ecc_count is None else state.uncorrected_ecc_count}"  # noqa: E501
    )
    if state.needs_reset:
        reading += ", row remapping pending or failed"
    text = "Reset the device or take it out of service."
    return judged(name, not sick, reading, "no uncorrected error", text)


def _power_limit(wanted_w: float, state: DeviceState) -> Finding:
    """Another limit means other clocks: the numbers are of another class."""
    seen_w = state.power_limit_w
    right = seen_w is not None and abs(seen_w - wanted_w) <= _POWER_LIMIT_SLACK_RATIO * wanted_w
    reading = "unknown" if seen_w is None else f"{seen_w:g} W"
    text = (
        f"Set it with `nvidia-smi -pl {wanted_w:g}`, or declare another target for devices under"
        " this limit."
    )
    return judged(f"device {state.index} power limit", right, reading, f"{wanted_w:g} W", text)


def _free_memory(needed_bytes: int, state: DeviceState) -> Finding:
    name, needed = f"device {state.index} memory", format_bytes(needed_bytes)
    if state.free_bytes is None:
        text = "This device does not report its free memory, which the target needs."
        return Finding(name, Level.FAIL, _unknown(state, "memory"), needed, text)
    enough = state.free_bytes >= needed_bytes
    text = holders_text(device_holders((state,)))
    return judged(name, enough, f"{format_bytes(state.free_bytes)} free", needed, text)


def _processes(needs: Needs, state: DeviceState) -> Iterable[Finding]:
    name, unread = f"device {state.index} processes", state.unread.get("processes")
    if unread is not None:
        if unread.cause is Cause.NOT_OFFERED:
            yield Finding(
                name,
                Level.WARN,
                f"unknown ({unread.words})",
                "none",
                "Other processes on this device cannot be seen.",
            )
        else:
            yield Finding(
                name, Level.FAIL, f"unknown ({unread.words})", "a reading", unread.next_step
            )
        return
    count, strangers = _strangers(needs, state.holders or ())
    if count:
        yield Finding(name, Level.FAIL, str(count), "none", holders_text(strangers))


def _strangers(
    needs: Needs, holders: tuple[MemoryHolder, ...]
) -> tuple[int, tuple[MemoryHolder, ...]]:
    """How many processes on the device are not ours, and which may be meant.

    A pid that is not visible here (of a container's host) may be one of our ranks, but
    no more of them than we have ranks on the device.
    """
    others = tuple(holder for holder in holders if holder.pid not in needs.own_pids)
    hidden = tuple(holder for holder in others if not Path(f"/proc/{holder.pid}").exists())
    ours_count = max(0, needs.own_ranks_count - (len(holders) - len(others)))
    if len(hidden) <= ours_count:
        others = tuple(holder for holder in others if holder not in hidden)
        return len(others), others
    return len(others) - ours_count, others


def _size_text(state: DeviceState) -> str:
    return (
        f"memory {_unknown(state, 'memory')}"
        if state.total_bytes is None
        else format_bytes(state.total_bytes)
    )


def _unknown(state: DeviceState, key: str) -> str:
    return f"unknown ({words})" if (words := _words(state, key)) else "unknown"


def _words(state: DeviceState, key: str) -> str:
    unread = state.unread.get(key)
    return unread.words if unread is not None else ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
