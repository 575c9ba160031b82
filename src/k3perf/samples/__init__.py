"""The data of a run: what was seen, before anyone computes with it.

Frozen slots dataclasses; every time is an int of nanoseconds from one monotonic clock of the harness's process. ``None`` means
"not seen", which is never 0. Nothing here computes a metric or knows a baseline.
"""

from k3perf.samples.records import (
    Arm,
    ChunkRecord,
    EngineFailure,
    EngineIdentity,
    InvalidReason,
    RankMemory,
    RequestSample,
    RequestStatus,
    RoundKind,
    RoundRecord,
    SessionRecord,
    StageTiming,
    TelemetryReading,
)

__all__ = [
    "Arm",
    "ChunkRecord",
    "EngineFailure",
    "EngineIdentity",
    "InvalidReason",
    "RankMemory",
    "RequestSample",
    "RequestStatus",
    "RoundKind",
    "RoundRecord",
    "SessionRecord",
    "StageTiming",
    "TelemetryReading",
]
