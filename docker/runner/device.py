"""Is the device free? What nvidia-smi and /proc say, to findings: one line for each
thing that is in the way. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

IDLE_MEMORY_MIB = 1024
TIMEOUT_S = 30


def findings(kind: str) -> list[str]:
    """Empty when the device is clean. A device that cannot be read is not clean."""
    found = _leftovers(Path(os.environ.get("K3PERF_PROC", "/proc")))
    return found + (_nvidia() if kind == "nvidia" else [])


def driver_version(kind: str) -> str:
    """The GPU driver's version; the kernel's where there is no GPU."""
    if kind != "nvidia":
        return os.uname().release
    return _smi("--query-gpu=driver_version").splitlines()[0].strip()


def _nvidia() -> list[str]:
    limit_mib = float(os.environ.get("K3PERF_IDLE_MEMORY_MIB", IDLE_MEMORY_MIB))
    try:
        memory = _smi("--query-gpu=index,memory.used")
        processes = _smi("--query-compute-apps=pid,process_name,used_memory")
    except (OSError, subprocess.SubprocessError) as error:
        return [f"the device cannot be read: {error}"]
    if not memory.strip():
        return ["nvidia-smi names no device"]
    found = [
        f"process on the device: {line.strip()}" for line in processes.splitlines() if line.strip()
    ]
    for line in memory.splitlines():
        index, _, used = (part.strip() for part in line.partition(","))
        try:
            used_mib = float(used)
        except ValueError:
            found.append(f"device {index}: memory in use cannot be read ({used!r})")
            continue
        if used_mib > limit_mib:
            found.append(
                f"device {index}: {used_mib:.0f} MiB in use, {limit_mib:.0f} allowed when idle"
            )
    return found


def _smi(query: str) -> str:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    ).stdout


def _leftovers(proc: Path) -> list[str]:
    """Engine processes of this user that outlived their job; inside a container every
    process belongs to it.
    """
    found = []
    for entry in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            if entry.stat().st_uid != os.getuid():
                continue
            command = (
                (entry / "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode("utf-8", "replace")
                .strip()
            )
        except OSError:
            continue  # it ended while we looked
        if "vllm" in command.lower() and int(entry.name) != os.getpid():
            found.append(f"engine process left over: {entry.name} {command[:120]}")
    return found
