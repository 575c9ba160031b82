"""Which part of a lost cell is named, from parts whose sums are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from k3perf.metrics.arm_parts import PartValue, arm_parts
from k3perf.metrics.server_times import part_readings
from k3perf.records.attribution import Attribution, Cause
from k3perf.records.outcome import Outcome
from k3perf.records.samples import (
    ChunkRecord,
    RequestSample,
    RequestStatus,
    RoundKind,
    RoundRecord,
)
from k3perf.records.verdict import CellVerdict, ConfigDifference, MetricVerdict
from k3perf.report.attribution import attribute, attributed
from k3perf.report.attribution_lines import attribution_lines
from k3perf.store.baselines import read_baseline
from k3perf.store.measurements import read_measurement_file

LOST = MetricVerdict("ttft_mean_ms", "ms", Outcome.REGRESSED)
WAS = {
    "server_queue_mean_ms": 20.0,
    "server_prefill_mean_ms": 100.0,
    "server_decode_mean_ms": 400.0,
    "front_end_mean_ms": 10.0,
    "request_mean_ms": 530.0,
    "output_tokens_mean": 31.0,
    "itl_p50_ms": 10.0,
    "itl_p99_ms": 60.0,
    "prefix_hit_ratio": 0.5,
    "kv_capacity_tokens": 10_000.0,
    "server_preemptions_count": 0.0,
    "weights_bytes": 1e9,
}


def found(
    *differences: ConfigDifference,
    error: float = 0.0,
    lost: MetricVerdict = LOST,
    **changed: float | None,
) -> Attribution:
    """``changed``: parts of the candidate; None: it does not have the part."""
    now = {name: value for name, value in {**WAS, **changed}.items() if value is not None}
    if "request_mean_ms" not in changed:
        now["request_mean_ms"] = sum(
            now[name]
            for name in (
                "server_queue_mean_ms",
                "server_prefill_mean_ms",
                "server_decode_mean_ms",
                "front_end_mean_ms",
            )
        )
    parts = [{name: PartValue(value, error) for name, value in side.items()} for side in (WAS, now)]
    return attribute(*parts, lost=[lost], differences=differences)


def first(attribution: Attribution) -> tuple[Cause, float | None]:
    return attribution.causes[0].cause, attribution.causes[0].share_ratio


SEQS = ConfigDifference("scheduler_config.max_num_seqs", 32, 2)


@pytest.mark.parametrize(
    ("cause", "changed", "differences"),
    [
        (Cause.SLOW_PREFILL, {"server_prefill_mean_ms": 150.0, "server_decode_mean_ms": 440.0}, ()),
        # every decode step takes 20 % longer: 30 gaps of 2 ms
        (Cause.SLOW_DECODE, {"itl_p50_ms": 12.0, "server_decode_mean_ms": 460.0}, ()),
        # every step takes 20 % longer: prefill and what it inserts come with it
        (
            Cause.SLOW_DECODE,
            {
                "itl_p50_ms": 12.0,
                "server_decode_mean_ms": 480.0,
                "server_prefill_mean_ms": 120.0,
                "server_queue_mean_ms": 24.0,
            },
            (),
        ),
        (
            Cause.SMALLER_CACHE,
            {"kv_capacity_tokens": 4_000.0, "server_queue_mean_ms": 300.0},
            (ConfigDifference("cache_config.gpu_memory_utilization", 0.9, 0.5),),
        ),
        (
            Cause.SMALLER_CACHE,
            {"server_preemptions_count": 9.0, "server_decode_mean_ms": 700.0},
            (),
        ),
        (
            Cause.PREFIX_CACHE,
            {"prefix_hit_ratio": 0.0, "server_prefill_mean_ms": 190.0},
            (ConfigDifference("cache_config.enable_prefix_caching", True, False),),
        ),
        (Cause.PREFIX_CACHE, {"prefix_hit_ratio": None, "server_prefill_mean_ms": 190.0}, ()),
        (Cause.BATCH_LIMIT, {"server_queue_mean_ms": 300.0, "itl_p50_ms": 9.0}, (SEQS,)),
        (Cause.QUEUE, {"server_queue_mean_ms": 300.0}, ()),
        (Cause.FRONT_END, {"front_end_mean_ms": 90.0, "itl_p50_ms": 11.0}, ()),
    ],
)
def test_each_cause_is_named_first_with_its_share(
    cause: Cause, changed: dict[str, float | None], differences: tuple[ConfigDifference, ...]
) -> None:
    attribution = found(*differences, **changed)
    named, share = first(attribution)
    assert named is cause
    assert share is not None
    assert share > 0.9
    assert attribution.causes[0].evidence


def test_two_causes_share_the_slowdown() -> None:
    attribution = found(front_end_mean_ms=40.0, server_prefill_mean_ms=170.0)
    assert [one.cause for one in attribution.causes] == [Cause.SLOW_PREFILL, Cause.FRONT_END]
    assert [one.share_ratio for one in attribution.causes] == [
        pytest.approx(0.7),
        pytest.approx(0.3),
    ]
    assert attribution.unexplained_ratio == pytest.approx(0.0)


def test_what_no_part_explains_is_said() -> None:
    attribution = found(front_end_mean_ms=40.0, request_mean_ms=590.0)
    assert first(attribution) == (Cause.FRONT_END, pytest.approx(0.5))
    assert attribution.unexplained_ratio == pytest.approx(0.5)


def test_noise_is_no_cause() -> None:
    attribution = found(error=30.0, server_prefill_mean_ms=130.0, front_end_mean_ms=20.0)
    assert attribution.causes == ()


def test_memory_that_grew_is_named_where_a_memory_metric_lost() -> None:
    lost = MetricVerdict("weights_bytes", "bytes", Outcome.REGRESSED)
    attribution = found(lost=lost, weights_bytes=2e9)
    assert first(attribution) == (Cause.MEMORY, None)
    assert any("weights: was" in line for line in attribution.causes[0].evidence)
    lost = MetricVerdict("kv_capacity_tokens", "tokens", Outcome.REGRESSED)
    assert first(found(lost=lost, kv_capacity_tokens=9_000.0))[0] is Cause.SMALLER_CACHE


def test_a_recorded_slow_step_on_an_h200_is_slow_decode(repository: Path) -> None:
    """A real run whose steps took 5 % longer, against the committed baseline, which is
    older than the server's times."""
    checks = repository / "perf_tests" / "recordings" / "checks"
    file = read_measurement_file(checks / "h200-k3-check-slow-step-5-2026-11-30.json")
    cell = CellVerdict(
        "h200-k3",
        "default",
        "serve_1k",
        "baseline",
        (MetricVerdict("tpot_mean_ms", "ms", Outcome.REGRESSED),),
    )
    baseline = read_baseline(repository / "baselines", "h200-k3", "default")
    attribution = attributed(cell, file.cells[0], baseline)
    assert attribution is not None
    assert attribution.causes[0].cause is Cause.SLOW_DECODE
    assert any(line.startswith("TPOT: was 12.") for line in attribution.causes[0].evidence)
    lines = attribution_lines(replace(cell, attribution=attribution))
    assert lines[0] == "cause 1: Decode steps take longer"
    assert lines[-1].startswith("compared with the baseline")


def test_a_cell_that_passes_has_no_attribution(repository: Path) -> None:
    checks = repository / "perf_tests" / "recordings" / "checks"
    file = read_measurement_file(checks / "h200-k3-check-slow-step-5-2026-11-30.json")
    cell = CellVerdict("h200-k3", "default", "serve_1k", "baseline", ())
    assert attributed(cell, file.cells[0], None) is None


def _sample(index: int, *, prompt: int, first_ns: int, tokens: int = 5) -> RequestSample:
    start_ns = 10**9 * index
    chunks = tuple(ChunkRecord(start_ns + first_ns + 10**7 * number, 1) for number in range(tokens))
    return RequestSample(
        index,
        RequestStatus.OK,
        start_ns,
        start_ns,
        chunks[-1].at_ns,
        chunks,
        prompt,
        tokens,
        tokens,
    )


def _record(samples: list[RequestSample], **counters: float) -> RoundRecord:
    return RoundRecord(0, RoundKind.MEASURED, 0, 10**10, tuple(samples), counters=counters)


def server_counters(
    count: int, queue_s: float, prefill_s: float, decode_s: float
) -> dict[str, float]:
    return {
        f"vllm:request_{name}_time_seconds_{kind}": value
        for name, total_s in (("queue", queue_s), ("prefill", prefill_s), ("decode", decode_s))
        for kind, value in (("sum", total_s), ("count", float(count)))
    }


def readings(record: RoundRecord) -> dict[str, float | None]:
    return {reading.name: reading.value for reading in part_readings(record)}


def test_readings_of_a_round_add_up_to_the_clients_time() -> None:
    samples = [_sample(n, prompt=100 * (n + 1), first_ns=10**7 * (n + 3)) for n in range(10)]
    seen = readings(_record(samples, **server_counters(10, 0.02, 0.5, 0.3)))
    mean_ms = sum(10 * (n + 3) + 40 for n in range(10)) / 10
    assert seen["request_mean_ms"] == pytest.approx(mean_ms)
    assert seen["front_end_mean_ms"] == pytest.approx(mean_ms - 2 - 50 - 30)
    # TTFT: 20 ms and 10 ms more for each 100 tokens
    assert seen["ttft_per_1000_tokens_ms"] == pytest.approx(100.0)
    assert seen["ttft_at_no_prompt_ms"] == pytest.approx(20.0)
    assert seen["token_gap_alone_p50_ms"] == pytest.approx(10.0)
    assert "token_gap_loaded_p50_ms" not in seen


def test_what_cannot_be_read_is_missing_never_zero() -> None:
    samples = [_sample(n, prompt=100, first_ns=10**7) for n in range(10)]
    assert "server_queue_mean_ms" not in readings(_record(samples))
    other_client = readings(_record(samples, **server_counters(11, 0.02, 0.5, 0.3)))
    assert "front_end_mean_ms" not in other_client
    assert "ttft_per_1000_tokens_ms" not in other_client  # one length has no slope
    assert readings(_record([])) == {}


def test_invalid_rounds_are_no_part_of_an_arm(repository: Path) -> None:
    checks = repository / "perf_tests" / "recordings" / "checks"
    file = read_measurement_file(checks / "h200-k3-check-slow-step-5-2026-11-30.json")
    session = file.cells[0].sessions[0]
    reasons = session.rounds[0].invalid_reasons or ()
    kept = arm_parts([session])
    assert kept["tpot_mean_ms"].error > 0
    spoiled = replace(session, invalid_reasons=reasons or ("made",))  # type: ignore[arg-type]
    assert arm_parts([spoiled]) == {}
