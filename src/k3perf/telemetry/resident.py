"""Peak resident memory of processes, from /proc. Reads, computes nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from k3perf.units import KIB


def peak_resident_bytes(pids: Iterable[int]) -> int | None:
    """Sum of VmHWM over the processes: pages that several share are counted once each.
    None when none of them could be read.
    """
    peaks = [peak for pid in pids if (peak := _peak_bytes(pid)) is not None]
    return sum(peaks) if peaks else None


def _peak_bytes(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None  # it ended meanwhile; the others still tell
    match = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(match.group(1)) * KIB if match else None
