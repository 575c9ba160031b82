"""Is this machine fit to start an engine? Readings against needs, every one shown,
before anything is started.

``check`` only looks. ``require`` turns what failed into one PreflightError.
``wait_for_memory`` waits for memory that an earlier engine may still be giving back,
and past its deadline names who holds it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from k3perf.engine.device_checks import Needs, device_findings
from k3perf.engine.devices import SHOWN_HOLDERS, DeviceReader, MemoryHolder, holders_text
from k3perf.engine.findings import Finding, Level, judged
from k3perf.engine.installed_vllm import installed_vllm
from k3perf.engine.port import PortReservation
from k3perf.errors import PreflightError
from k3perf.units import format_bytes

_MEMORY_POLL_S: Final = 0.5
_BUSY_SAMPLE_S: Final = 0.1
_BUSY_LIMIT_RATIO: Final = 0.2


def _read_governors() -> tuple[str, ...]:
    found = set()
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"):
        with suppress(OSError):
            found.add(path.read_text().strip())
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's own readings as functions: tests put another machine here."""

    available_memory_bytes: Callable[[], int] = field(
        default=lambda: int(psutil.virtual_memory().available)
    )
    free_disk_bytes: Callable[[Path], int] = field(
        default=lambda path: int(shutil.disk_usage(path).free)
    )
    usable_cpus: Callable[[], tuple[int, ...]] = field(
        default=lambda: tuple(sorted(os.sched_getaffinity(0)))
    )
    busy_ratio: Callable[[], float] = field(
        default=lambda: psutil.cpu_percent(interval=_BUSY_SAMPLE_S) / 100
    )
    governors: Callable[[], tuple[str, ...]] = field(default=_read_governors)
    used_swap_bytes: Callable[[], int] = field(default=lambda: int(psutil.swap_memory().used))


def check(
    needs: Needs, *, machine: Machine | None = None, devices: DeviceReader | None = None
) -> tuple[Finding, ...]:
    """Every check that the hardware kind asks for. ``devices`` reads the accelerators;
    needed for ``nvidia``. Raises nothing.
    """
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
        problems = [
            f"{finding.name}: {finding.reading}, needed {finding.needed}. {finding.text}".rstrip()
            for finding in failed
        ]
        raise PreflightError("this machine is not ready to start: " + "; ".join(problems))


def wait_for_memory(
    needed_bytes: int,
    *,
    free_bytes: Callable[[], int],
    holders: Callable[[], tuple[MemoryHolder, ...]],
    deadline_s: float,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait until ``needed_bytes`` are free; returns what is free then. At the deadline
    a PreflightError names the holders.
    """
    end_s = clock_s() + deadline_s
    while True:
        free = free_bytes()
        if free >= needed_bytes:
            return free
        if clock_s() >= end_s:
            raise PreflightError(
                f"{format_bytes(needed_bytes)} of memory are needed, {format_bytes(free)} are free"
                f" after waiting {deadline_s:g} s. " + holders_text(holders())
            )
        sleep(_MEMORY_POLL_S)


def host_memory_holders() -> tuple[MemoryHolder, ...]:
    """The processes with the most resident memory, without this one."""
    found = []
    for process in psutil.process_iter(["pid", "memory_info", "cmdline", "name"]):
        info = process.info
        if (
            info["pid"] != os.getpid()
            and info["memory_info"] is not None
            and info["memory_info"].rss
        ):  # kernel threads hold none
            command = " ".join(info["cmdline"] or ()) or info["name"] or ""
            found.append(MemoryHolder(info["pid"], command[:120], int(info["memory_info"].rss)))
    found.sort(key=lambda holder: holder.size_bytes or 0, reverse=True)
    return tuple(found[:SHOWN_HOLDERS])


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
            findings.append(
                Finding(
                    "results",
                    Level.FAIL,
                    f"{path} is read-only",
                    "a writable directory",
                    "Name another one.",
                )
            )
            continue
        free = machine.free_disk_bytes(nearest)
        findings.append(
            judged(
                "disk",
                free >= needs.free_disk_bytes,
                f"{format_bytes(free)} free at {nearest}",
                format_bytes(needs.free_disk_bytes),
                f"Free some space at {nearest}.",
            )
        )
    return findings


def _can_write(directory: Path) -> bool:
    """By trying: root passes every check, and only this shows a read-only mount."""
    probe = directory / f".k3perf-probe-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


def _engine_python(path: Path) -> Finding:
    # a run asks this, k3perf doctor too
    named = "--k3-engine-python (of k3perf: --engine-python) or K3PERF_ENGINE_PYTHON"
    text = f"Name the Python of an environment that has vLLM: {named}."
    if not (path.is_file() and os.access(path, os.X_OK)):
        return Finding("engine python", Level.FAIL, str(path), "an executable file", text)
    needed, found = "a Python that runs", installed_vllm(path)
    if not found.runs:
        return Finding("engine python", Level.FAIL, f"{path}: {found.problem}", needed, text)
    return Finding("engine python", Level.OK, str(path), needed)


def _cpu(needs: Needs, machine: Machine) -> list[Finding]:
    usable = machine.usable_cpus()
    missing = tuple(cpu for cpu in needs.cpus if cpu not in usable)
    governors = machine.governors()
    busy = machine.busy_ratio()
    swap = machine.used_swap_bytes()
    findings = [
        judged(
            "cpus",
            not missing,
            f"{len(usable)} usable",
            ", ".join(map(str, needs.cpus)) or "any",
            f"CPU {', '.join(map(str, missing))} (from the target's `pinning`) cannot be used on"
            " this machine.",
        ),
        judged(
            "cpu governor",
            set(governors) <= {"performance"},
            ", ".join(governors) or "none (a virtual machine has none)",
            "performance",
            "Clocks may move: `cpupower frequency-set -g performance`.",
            otherwise=Level.WARN,
        ),
        judged(
            "cpu load",
            busy <= _BUSY_LIMIT_RATIO,
            f"{busy:.0%} busy",
            f"at most {_BUSY_LIMIT_RATIO:.0%}",
            "Other processes use the CPUs. Affected rounds will be INVALID.",
            otherwise=Level.WARN,
        ),
        judged(
            "swap",
            not swap,
            f"{format_bytes(swap)} used",
            "none used",
            "`swapoff -a` frees it.",
            otherwise=Level.WARN,
        ),
    ]
    if needs.free_memory_bytes is not None:
        available = machine.available_memory_bytes()
        enough = available >= needs.free_memory_bytes
        text = "" if enough else holders_text(host_memory_holders())
        needed = format_bytes(needs.free_memory_bytes)
        findings.append(judged("memory", enough, f"{format_bytes(available)} free", needed, text))
    return findings


def _accelerators(needs: Needs, devices: DeviceReader | None) -> list[Finding]:
    hardware = needs.hardware
    wanted = f"{needs.devices_count} x {hardware.device_name or hardware.hardware_class}"
    if devices is None:
        text = f"No device reader for {hardware.kind}; class, health and memory stay unchecked."
        return [
            Finding(
                "devices",
                Level.FAIL if hardware.kind == "nvidia" else Level.WARN,
                "not read",
                wanted,
                text,
            )
        ]
    try:
        states = devices()
    except PreflightError as error:
        return [Finding("devices", Level.FAIL, "none", wanted, str(error))]
    return device_findings(needs, states)
