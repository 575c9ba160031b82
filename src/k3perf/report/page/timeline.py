"""When what happened in a run: engine stages, rounds, readings of host and devices.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from k3perf.records.samples import RoundKind, RoundRecord, SessionRecord
from k3perf.report.page.material import RunMaterial
from k3perf.report.page.shown import plain
from k3perf.units import ns_to_s

READINGS: Final = {
    "sm_clock_min_mhz": "SM clock, lowest (MHz)",
    "power_mean_w": "power, mean (W)",
    "temperature_max_c": "temperature, highest (C)",
    "engine_device_max_bytes": "device memory of the engine (GiB)",
    "engine_pss_bytes": "host memory of the engine (GiB)",
    "foreign_cpu_ratio": "CPU time of other processes (ratio)",
}
_GIB: Final = 1 << 30


def timeline(material: RunMaterial) -> dict[str, list[dict[str, Any]]]:
    """``spans`` and ``readings`` in seconds since the run's first event. Empty without
    samples.

    Rounds have one clock. Stages have lengths only: they are drawn so that they end at
    the session's first round.
    """
    sessions = [record for record in material.sessions.values() if record.rounds]
    if not sessions:
        return {"spans": [], "readings": []}
    zero_ns = min(_begin_ns(record) for record in sessions)
    spans: list[dict[str, Any]] = []
    readings: list[dict[str, Any]] = []
    for record in sorted(sessions, key=_begin_ns):
        lane = plain(f"{record.config} {record.workload} {record.arm} {record.session_id[-9:]}")
        spans += _stages(record, lane, zero_ns)
        for measured in record.rounds:
            spans.append(_round(measured, lane, zero_ns))
            readings += _readings(measured, zero_ns)
    return {"spans": spans, "readings": readings}


def _first_round_ns(record: SessionRecord) -> int:
    return min(measured.start_ns for measured in record.rounds)


def _begin_ns(record: SessionRecord) -> int:
    stages_s = sum(stage.duration_s for stage in record.stages)
    return _first_round_ns(record) - round(stages_s * 1e9)


def _stages(record: SessionRecord, lane: str, zero_ns: int) -> Iterable[dict[str, Any]]:
    begin_s = ns_to_s(_begin_ns(record) - zero_ns)
    for stage in record.stages:
        yield _span(lane, "engine start", plain(stage.stage), begin_s, stage.duration_s)
        begin_s += stage.duration_s


def _round(measured: RoundRecord, lane: str, zero_ns: int) -> dict[str, Any]:
    kind = "warm-up" if measured.kind is RoundKind.WARM_UP else "round"
    what = f"{kind} {measured.round_index}"
    if measured.invalid_reasons:
        kind, what = "invalid", f"{what}: {plain(measured.invalid_reasons[0].text)}"
    begin_s = ns_to_s(measured.start_ns - zero_ns)
    return _span(lane, kind, what, begin_s, ns_to_s(measured.end_ns - measured.start_ns))


def _span(lane: str, kind: str, what: str, begin_s: float, length_s: float) -> dict[str, Any]:
    return {
        "lane": lane,
        "kind": kind,
        "what": what,
        "from_s": begin_s,
        "to_s": begin_s + length_s,
        "length_s": length_s,
    }


def _readings(measured: RoundRecord, zero_ns: int) -> Iterable[dict[str, Any]]:
    at_s = ns_to_s((measured.start_ns + measured.end_ns) // 2 - zero_ns)
    for reading in measured.telemetry:
        if reading.name in READINGS and reading.value is not None:
            scale = _GIB if reading.name.endswith("_bytes") else 1
            yield {
                "at_s": at_s,
                "name": READINGS[reading.name],
                "value": reading.value / scale,
                "source": plain(reading.source),
            }
