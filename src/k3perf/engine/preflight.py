"""Is this machine fit to start an engine? Readings against needs, every one shown, before anything is started.

``check`` only looks. ``require`` turns what failed into one PreflightError. ``wait_for_memory`` waits for memory that an earlier engine may
still be giving back, and past its deadline names who holds it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import psutil

from k3perf.config.models import Hardware
from k3perf.engine.devices import DeviceReader, DeviceState, MemoryHolder
from k3perf.engine.port import PortReservation
from k3perf.errors import PreflightError
from k3perf.units import GIB, format_bytes

_MEMORY_POLL_S: Final = 0.5
_BUSY_SAMPLE_S: Final = 0.1
_BUSY_LIMIT_RATIO: Final = 0.2
_TOTAL_MEMORY_SLACK_RATIO: Final = 0.95  # firmware keeps some of what the data sheet says
_POWER_LIMIT_SLACK_RATIO: Final = 0.02
_SHOWN_HOLDERS: Final = 5


class Level(StrEnum):
    """FAIL stops the start; WARN is shown and left to the round rules, which see what it does to the numbers."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was read, what was needed, and one sentence with the next step when it is not OK."""

    name: str
    level: Level
    reading: str
    needed: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the cells of a run need of the machine. None: not checked."""

    hardware: Hardware
    free_memory_bytes: int | None = None
    free_disk_bytes: int = 2 * GIB
    writable_directories: tuple[Path, ...] = ()
    engine_python: Path | None = None
    cpus: tuple[int, ...] = ()
    own_pids: frozenset[int] = frozenset()


def _read_governors() -> tuple[str, ...]:
    found = set()
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"):
        with suppress(OSError):
            found.add(path.read_text().strip())
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's own readings as functions, so that a test can put another machine here."""

    available_memory_bytes: Callable[[], int] = field(default=lambda: int(psutil.virtual_memory().available))
    free_disk_bytes: Callable[[Path], int] = field(default=lambda path: int(shutil.disk_usage(path).free))
    usable_cpus: Callable[[], tuple[int, ...]] = field(default=lambda: tuple(sorted(os.sched_getaffinity(0))))
    busy_ratio: Callable[[], float] = field(default=lambda: psutil.cpu_percent(interval=_BUSY_SAMPLE_S) / 100)
    governors: Callable[[], tuple[str, ...]] = field(default=_read_governors)
    used_swap_bytes: Callable[[], int] = field(default=lambda: int(psutil.swap_memory().used))


def check(needs: Needs, *, machine: Machine | None = None, devices: DeviceReader | None = None) -> tuple[Finding, ...]:
    """Every check that the hardware kind asks for. ``devices`` reads the accelerators; needed for ``nvidia``. Raises nothing."""
    machine = machine or Machine()
    findings = [_port(), *_directories(needs, machine)]
    if needs.engine_python is not None:
        findings.append(_engine_python(needs.engine_python))
    if needs.hardware.kind == "cpu":
        findings += _cpu(needs, machine)
    else:
        findings += _accelerators(needs, devices)
    return tuple(findings)


def require(findings: Iterable[Finding]) -> None:
    """Raise one PreflightError that lists every failed check."""
    failed = [finding for finding in findings if finding.level is Level.FAIL]
    if failed:
        problems = [f"{finding.name}: {finding.reading}, needed {finding.needed}. {finding.text}".rstrip() for finding in failed]
        raise PreflightError("this machine is not fit to start: " + "; ".join(problems))


def wait_for_memory(
    needed_bytes: int,
    *,
    free_bytes: Callable[[], int],
    holders: Callable[[], tuple[MemoryHolder, ...]],
    deadline_s: float,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait until ``needed_bytes`` are free; returns what is free then. At the deadline a PreflightError names the holders."""
    end_s = clock_s() + deadline_s
    while True:
        free = free_bytes()
        if free >= needed_bytes:
            return free
        if clock_s() >= end_s:
            raise PreflightError(
                f"{format_bytes(needed_bytes)} of memory are needed, {format_bytes(free)} are free after waiting {deadline_s:g} s. "
                + _holders_text(holders())
            )
        sleep(_MEMORY_POLL_S)


def host_memory_holders() -> tuple[MemoryHolder, ...]:
    """The processes with the most resident memory, this one left out."""
    found = []
    for process in psutil.process_iter(["pid", "memory_info", "cmdline", "name"]):
        info = process.info
        if info["pid"] != os.getpid() and info["memory_info"] is not None and info["memory_info"].rss:  # kernel threads hold none
            command = " ".join(info["cmdline"] or ()) or info["name"] or ""
            found.append(MemoryHolder(info["pid"], command[:120], int(info["memory_info"].rss)))
    found.sort(key=lambda holder: holder.size_bytes or 0, reverse=True)
    return tuple(found[:_SHOWN_HOLDERS])


def device_holders(states: Iterable[DeviceState]) -> tuple[MemoryHolder, ...]:
    """Everyone who holds memory of the devices, largest first."""
    found = [holder for state in states for holder in state.holders]
    return tuple(sorted(found, key=lambda holder: holder.size_bytes or 0, reverse=True))


def _holders_text(holders: tuple[MemoryHolder, ...]) -> str:
    if not holders:
        return "No process is known to hold it; the driver or another container may."
    return "; ".join(holder.text for holder in holders[:_SHOWN_HOLDERS]) + "."


def _port() -> Finding:
    try:
        reservation = PortReservation("127.0.0.1")
    except PreflightError as error:
        return Finding("port", Level.FAIL, "none", "a free loopback port", str(error))
    reservation.release()
    return Finding("port", Level.OK, str(reservation.port), "a free loopback port")


def _directories(needs: Needs, machine: Machine) -> list[Finding]:
    findings = []
    for path in needs.writable_directories:
        nearest = next((parent for parent in (path, *path.parents) if parent.exists()), Path("/"))
        if not nearest.is_dir() or not _can_write(nearest):
            findings.append(Finding("results", Level.FAIL, f"{path} is read-only", "a writable directory", "Name another one."))
            continue
        free = machine.free_disk_bytes(nearest)
        level = Level.OK if free >= needs.free_disk_bytes else Level.FAIL
        text = "" if level is Level.OK else f"Free some space at {nearest}."
        findings.append(Finding("disk", level, f"{format_bytes(free)} free at {nearest}", format_bytes(needs.free_disk_bytes), text))
    return findings


def _can_write(directory: Path) -> bool:
    """By trying: root passes every permission check, and a read-only mount shows only here."""
    probe = directory / f".k3perf-probe-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


def _engine_python(path: Path) -> Finding:
    usable = path.is_file() and os.access(path, os.X_OK)
    named = "--k3-engine-python (of k3perf: --engine-python) or K3PERF_ENGINE_PYTHON"  # a run asks this, k3perf doctor too
    text = "" if usable else f"Name the Python of an environment that has vLLM: {named}."
    return Finding("engine python", Level.OK if usable else Level.FAIL, str(path), "an executable file", text)


def _cpu(needs: Needs, machine: Machine) -> list[Finding]:
    usable = machine.usable_cpus()
    missing = tuple(cpu for cpu in needs.cpus if cpu not in usable)
    findings = [
        Finding(
            "processors",
            Level.FAIL if missing else Level.OK,
            f"{len(usable)} usable",
            ", ".join(map(str, needs.cpus)) or "any",
            f"Processors {missing} of the target's pinning are not to be had here." if missing else "",
        )
    ]
    governors = machine.governors()
    slow = tuple(name for name in governors if name != "performance")
    findings.append(
        Finding(
            "cpu governor",
            Level.WARN if slow else Level.OK,
            ", ".join(governors) or "none (a virtual machine has none)",
            "performance",
            "Clocks may move: `cpupower frequency-set -g performance`." if slow else "",
        )
    )
    busy = machine.busy_ratio()
    loud = busy > _BUSY_LIMIT_RATIO
    text = "Others use the processors; rounds that suffer from it will be INVALID." if loud else ""
    findings.append(Finding("cpu load", Level.WARN if loud else Level.OK, f"{busy:.0%} busy", f"at most {_BUSY_LIMIT_RATIO:.0%}", text))
    swap = machine.used_swap_bytes()
    findings.append(
        Finding(
            "swap",
            Level.WARN if swap else Level.OK,
            f"{format_bytes(swap)} used",
            "none used",
            "`swapoff -a` gives it back." if swap else "",
        )
    )
    if needs.free_memory_bytes is not None:
        available = machine.available_memory_bytes()
        enough = available >= needs.free_memory_bytes
        text = "" if enough else _holders_text(host_memory_holders())
        findings.append(
            Finding(
                "memory", Level.OK if enough else Level.FAIL, f"{format_bytes(available)} free", format_bytes(needs.free_memory_bytes), text
            )
        )
    return findings


def _accelerators(needs: Needs, devices: DeviceReader | None) -> list[Finding]:
    wanted = f"{_devices_per_host(needs)} x {needs.hardware.device_name or needs.hardware.hardware_class}"
    if devices is None:
        text = f"No device reader for {needs.hardware.kind}; class, health and memory stay unchecked."
        return [Finding("devices", Level.FAIL if needs.hardware.kind == "nvidia" else Level.WARN, "not read", wanted, text)]
    try:
        states = devices()
    except PreflightError as error:
        return [Finding("devices", Level.FAIL, "none", wanted, str(error))]
    return [_device_count(needs, states, wanted), *(finding for state in states for finding in _device(needs, state))]


def _devices_per_host(needs: Needs) -> int:
    return max(1, needs.hardware.device_count // needs.hardware.host_count)


def _device_count(needs: Needs, states: tuple[DeviceState, ...], wanted: str) -> Finding:
    enough = len(states) >= _devices_per_host(needs)
    return Finding(
        "devices", Level.OK if enough else Level.FAIL, f"{len(states)} found", wanted, "" if enough else "Choose another target."
    )


def _device(needs: Needs, state: DeviceState) -> list[Finding]:
    hardware = needs.hardware
    name = f"device {state.index}"
    right_name = hardware.device_name.lower() in state.name.lower()
    right_size = hardware.device_memory_bytes is None or state.total_bytes >= hardware.device_memory_bytes * _TOTAL_MEMORY_SLACK_RATIO
    size = "" if hardware.device_memory_bytes is None else f" with {format_bytes(hardware.device_memory_bytes)}"
    right = right_name and right_size
    findings = [
        Finding(
            f"{name} class",
            Level.OK if right else Level.FAIL,
            f"{state.name}, {format_bytes(state.total_bytes)}",
            f"{hardware.device_name or 'any'}{size}",
            "" if right else f"Baselines of {hardware.hardware_class} do not hold here; choose the target of this device.",
        ),
        _driver(name, hardware, state),
        _health(name, state),
    ]
    if hardware.power_limit_w is not None:
        findings.append(_power_limit(name, hardware.power_limit_w, state))
    if needs.free_memory_bytes is not None:
        enough = state.free_bytes >= needs.free_memory_bytes
        text = "" if enough else _holders_text(device_holders((state,)))
        findings.append(
            Finding(
                f"{name} memory",
                Level.OK if enough else Level.FAIL,
                f"{format_bytes(state.free_bytes)} free",
                format_bytes(needs.free_memory_bytes),
                text,
            )
        )
    strangers = _strangers(needs, state)
    if strangers:
        findings.append(Finding(f"{name} processes", Level.FAIL, str(len(strangers)), "none", _holders_text(strangers)))
    return findings


def _strangers(needs: Needs, state: DeviceState) -> tuple[MemoryHolder, ...]:
    """Who holds memory and is none of ours. Beside engines of ours, a pid that is not visible here (a container's) may be one of them."""
    return tuple(
        holder
        for holder in state.holders
        if holder.pid not in needs.own_pids and (not needs.own_pids or Path(f"/proc/{holder.pid}").exists())
    )


def _driver(name: str, hardware: Hardware, state: DeviceState) -> Finding:
    old = bool(hardware.minimum_driver) and _version(state.driver_version) < _version(hardware.minimum_driver)
    text = "Update the driver." if old else ""
    return Finding(f"{name} driver", Level.FAIL if old else Level.OK, state.driver_version, hardware.minimum_driver or "any", text)


def _power_limit(name: str, wanted_w: float, state: DeviceState) -> Finding:
    """Under another limit the device has other clocks under load: its numbers are of another class."""
    seen_w = state.power_limit_w
    right = seen_w is not None and abs(seen_w - wanted_w) <= _POWER_LIMIT_SLACK_RATIO * wanted_w
    reading = "unknown" if seen_w is None else f"{seen_w:g} W"
    text = "" if right else f"Set it with `nvidia-smi -pl {wanted_w:g}`, or give devices under this limit a target of their own."
    return Finding(f"{name} power limit", Level.OK if right else Level.FAIL, reading, f"{wanted_w:g} W", text)


def _health(name: str, state: DeviceState) -> Finding:
    sick = bool(state.uncorrected_ecc_count) or bool(state.needs_reset)
    reading = f"uncorrected ECC errors {'unknown' if state.uncorrected_ecc_count is None else state.uncorrected_ecc_count}"
    if state.needs_reset:
        reading += ", row remapping pending or failed"
    text = "Reset the device or take it out of service." if sick else ""
    return Finding(f"{name} health", Level.FAIL if sick else Level.OK, reading, "no uncorrected error", text)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
