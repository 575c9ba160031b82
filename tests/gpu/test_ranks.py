"""Per-rank spread: the worst rank, never hidden by a rank that says nothing; what a
cell's reader is told of its ranks and devices.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3perf.metrics.ranks import (
    clock_note,
    device_clocks,
    memory_note,
    rank_report,
    scaling_efficiency_ratio,
)
from k3perf.metrics.session_values import session_values
from k3perf.records.samples import (
    Arm,
    EngineIdentity,
    InvalidReason,
    RankMemory,
    RoundKind,
    RoundRecord,
    SessionRecord,
    TelemetryReading,
)

MIB = 1 << 20


def session(memory: tuple[RankMemory, ...]) -> SessionRecord:
    identity = EngineIdentity("0.33.0", "3.12", "2.11", "h200-x2", (), None, "vm")
    return SessionRecord(
        "s1",
        "t",
        "c",
        "w",
        "plan",
        Arm.CANDIDATE,
        "2026-11-29T00:00:00Z",
        identity,
        {},
        (),
        memory,
        (),
    )


def test_the_worst_rank_is_the_one_that_is_judged() -> None:
    memory = (
        RankMemory(0, weights_bytes=100, kv_cache_bytes=50),
        RankMemory(1, weights_bytes=120, kv_cache_bytes=40),
    )
    report = rank_report(memory)
    weights, kv = report.spreads["weights_bytes"], report.spreads["kv_cache_bytes"]
    assert (weights.worst_rank, weights.worst_bytes) == (1, 120)
    assert (kv.worst_rank, kv.worst_bytes) == (0, 50)
    assert weights.spread_ratio == pytest.approx(20 / 120)
    assert set(report.spreads) == {"weights_bytes", "kv_cache_bytes"}
    judged = session_values(session(memory))
    assert {name: judged[name].value for name in report.spreads} == {
        name: spread.worst_bytes for name, spread in report.spreads.items()
    }


def test_a_silent_rank_is_named_and_the_part_has_no_worst() -> None:
    report = rank_report(
        (RankMemory(0, weights_bytes=100), RankMemory(1), RankMemory(2, weights_bytes=90))
    )
    assert report.incomplete == {"weights_bytes": (1,)}
    assert report.spreads == {}


def test_zero_is_a_value_and_nothing_is_not() -> None:
    spread = rank_report(
        (RankMemory(0, non_torch_bytes=0), RankMemory(1, non_torch_bytes=0))
    ).spreads["non_torch_bytes"]
    assert (spread.worst_rank, spread.worst_bytes, spread.spread_ratio) == (0, 0, 0.0)
    assert rank_report(()).spreads == {}


@given(st.lists(st.integers(min_value=0, max_value=1 << 40), min_size=1, max_size=32))
def test_spread_is_within_bounds_and_order_does_not_matter(values: list[int]) -> None:
    ranks = tuple(RankMemory(rank, weights_bytes=value) for rank, value in enumerate(values))
    spread = rank_report(ranks).spreads["weights_bytes"]
    assert rank_report(ranks[::-1]).spreads["weights_bytes"] == spread
    assert 0 <= spread.spread_ratio <= 1
    assert spread.worst_bytes == max(values)
    assert values[spread.worst_rank] == max(values)


def test_the_note_names_equal_parts_and_the_worst_rank_of_the_session_that_spreads_most() -> None:
    near = (
        RankMemory(0, weights_bytes=8 * MIB, resident_bytes=100 * MIB),
        RankMemory(1, weights_bytes=8 * MIB, resident_bytes=101 * MIB),
    )
    far = (
        RankMemory(0, weights_bytes=8 * MIB, resident_bytes=120 * MIB),
        RankMemory(1, weights_bytes=8 * MIB, resident_bytes=90 * MIB),
    )
    told = (
        "equal in weights_bytes; worst resident_bytes 120.0 MiB on rank 0 (spread 30.0 MiB, 25.00%)"
    )
    assert memory_note([near, far, ()], 2) == f"memory of 2 ranks: {told}"


def test_the_note_names_ranks_that_do_not_tell_or_do_not_answer() -> None:
    one_silent = (RankMemory(0, weights_bytes=1), RankMemory(1))
    for sessions in ([one_silent], [one_silent, one_silent]):
        assert (
            memory_note(sessions, 2)
            == "memory of 2 ranks: weights_bytes not reported by rank 1, so no worst"
        )
    two_silent = (*one_silent, RankMemory(2))
    assert (
        memory_note([two_silent], 3)
        == "memory of 3 ranks: weights_bytes not reported by ranks 1, 2, so no worst"
    )
    first_engine_alone = (RankMemory(0, weights_bytes=1),)
    assert (
        memory_note([first_engine_alone], 2)
        == "memory of 1 of 2 ranks: the other ranks' readings are missing and are not judged"
    )
    half = (RankMemory(0, weights_bytes=1), RankMemory(1, weights_bytes=1))
    assert memory_note([(*half, RankMemory(2, weights_bytes=1)), half], 3).startswith(
        "memory of 2 of 3 ranks: equal in weights_bytes; the other ranks"
    )
    assert (
        memory_note([half], 4)
        == "memory of 2 of 4 ranks: equal in weights_bytes; the other ranks' readings are"
        " missing and are not judged"
    )
    assert (
        memory_note([(RankMemory(0), RankMemory(1))], 2) == "memory of 2 ranks: no rank reports any"
    )


def test_one_rank_or_nothing_read_is_no_note() -> None:
    assert memory_note([(RankMemory(0, weights_bytes=1),)], 1) == ""
    assert memory_note([(), ()], 2) == ""


def clocked(
    *readings: tuple[str, float | None], kind: RoundKind = RoundKind.MEASURED, valid: bool = True
) -> RoundRecord:
    telemetry = tuple(
        TelemetryReading("sm_clock_min_mhz", value, source) for source, value in readings
    )
    other = TelemetryReading("power_mean_w", 700.0, "NVML device 0")
    reasons = () if valid else (InvalidReason("throttled", "the device throttled"),)
    return RoundRecord(0, kind, 0, 1, (), telemetry=(*telemetry, other), invalid_reasons=reasons)


def test_clocks_are_the_lowest_of_valid_measured_rounds_and_the_slowest_device_comes_first() -> (
    None
):
    first = device_clocks(
        [
            clocked(("NVML device 0", 1500), ("NVML device 1", 1400)),
            clocked(("NVML device 0", 1450), ("NVML device 1", 1600)),
            clocked(("NVML device 0", 300), ("NVML device 1", 300), kind=RoundKind.WARM_UP),
            clocked(("NVML device 0", 200), ("NVML device 1", 200), valid=False),
        ]
    )
    assert first == {"NVML device 0": 1450, "NVML device 1": 1400}
    second = device_clocks([clocked(("NVML device 0", 1980), ("NVML device 1", 1245))])
    expected = (
        "lowest SM clock of each device, the slowest is judged: 1245 MHz on NVML device 1, 1450 MHz"
        " on NVML device 0"
    )
    assert clock_note([first, second]) == expected


def test_a_clock_that_was_lost_in_one_round_is_not_told_from_the_others() -> None:
    lost = ("NVML device 1: the driver is gone", None)
    clocks = device_clocks(
        [
            clocked(("NVML device 0", 1500), lost),
            clocked(("NVML device 0", 1500), ("NVML device 1", 1600)),
        ]
    )
    assert clocks == {"NVML device 0": 1500, "NVML device 1": None}
    assert clock_note([clocks]).endswith(
        "1500 MHz on NVML device 0, NVML device 1 not read in every round"
    )


def test_no_clock_and_one_device_are_no_note() -> None:
    assert device_clocks([clocked(("NVML device 0: not offered here", None))]) == {}
    assert clock_note([{"NVML device 0": 1500.0}]) == ""
    assert clock_note([]) == ""


def test_scaling_efficiency() -> None:
    assert scaling_efficiency_ratio(150, 2, 100) == 0.75
    with pytest.raises(ValueError, match="no efficiency"):
        scaling_efficiency_ratio(150, 2, 0)
