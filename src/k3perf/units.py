"""Unit conversions used at the edges. Inside, times are int nanoseconds and sizes int
bytes.

Nothing else may convert units: a factor written anywhere else is a mistake waiting for
its reader.
"""

from __future__ import annotations

from typing import Final

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
MS_PER_S: Final = 1_000

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30


def ns_to_s(duration_ns: int) -> float:
    """Nanoseconds to seconds."""
    return duration_ns / NS_PER_S


def ns_to_ms(duration_ns: int) -> float:
    """Nanoseconds to milliseconds."""
    return duration_ns / NS_PER_MS


def s_to_ns(duration_s: float) -> int:
    """Seconds to whole nanoseconds, rounded to nearest."""
    return round(duration_s * NS_PER_S)


def format_bytes(size_bytes: float) -> str:
    """A size in the largest binary unit that keeps it at 1 or more: ``format_bytes(1 <<
    20) == "1.0 MiB"``.
    """
    sign, magnitude = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if magnitude >= factor:
            return f"{sign}{magnitude / factor:.1f} {unit}"
    return f"{sign}{magnitude:.0f} B"
