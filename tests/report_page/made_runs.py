"""Results directories of runs that never ran, with every kind of outcome, for tests of what
is made of results."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from k3perf.metrics.compute import session_metrics
from k3perf.records.measurement import CellMeasurement, MeasurementFile
from k3perf.records.outcome import Outcome
from k3perf.records.samples import (
    Arm,
    ChunkRecord,
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
from k3perf.records.verdict import CellVerdict, ConfigDifference, MetricVerdict, VerdictDocument
from k3perf.report.attribution import attributed
from k3perf.store.measurements import write_measurement_file
from k3perf.store.results import ResultWriter

HOSTILE = "</script><img src=x onerror=alert(1)>{{7*7}}\u202e'\"`${alert(1)}"
GOOD = Outcome.PASS


def made_run(
    folder: Path,
    *,
    cell_count: int = 2,
    session_count: int = 2,
    round_count: int = 4,
    mode: str = "reference",
    hostile: bool = False,
    slower: float = 1.3,
) -> Path:
    """The first cell is REGRESSED, the second INVALID, the third drifts, others pass."""
    name = HOSTILE if hostile else "made"
    dice = random.Random(7)
    measurements, verdicts, sessions = [], [], []
    for number in range(cell_count):
        config = f"{name}_{number}"
        factor = slower if number == 0 else 1.0
        records = [
            _session(config, index, arm, mode, round_count, factor, name, dice)
            for index in range(session_count)
            for arm in ((Arm.CANDIDATE,) if mode == "baseline" else (Arm.REFERENCE, Arm.CANDIDATE))
        ]
        sessions += records
        measurement = CellMeasurement(
            target="tiny",
            config=config,
            workload="quick",
            mode=mode,
            hardware_class="any-cpu",
            plan_digest="d" * 64,
            sessions=tuple(session_metrics(record) for record in records),
        )
        measurements.append(measurement)
        verdict = _verdict(config, number, mode, name, dice)
        verdicts.append(replace(verdict, attribution=attributed(verdict, measurement, None)))
    folder.mkdir(parents=True, exist_ok=True)
    with ResultWriter(
        folder / "results.jsonl",
        run_id="run-1",
        experiment={"commit": "0123abc-dirty", "injected": "slow_step_percent=30.0", "ab_base": ""},
    ) as writer:
        for record in sessions:
            writer.session(record)
            for measured in record.rounds:
                writer.round(record.session_id, measured)
            writer.session_end(record.session_id, record.invalid_reasons)
    write_measurement_file(
        folder / "measurements.json",
        MeasurementFile(
            run_id="run-1",
            commit="0123abc-dirty",
            created_at_utc="2026-12-01T00:00:00Z",
            identity={"vllm": "0.33.0", "devices": name, "driver": "absent"},
            cells=tuple(measurements),
        ),
    )
    document = VerdictDocument(
        schema_version=1,
        run_id="run-1",
        commit="0123abc-dirty",
        created_at_utc="2026-12-01T00:00:00Z",
        vllm_version="0.33.0",
        false_alarm_budget=0.01,
        gated_metric_count=3 * cell_count,
        cells=tuple(verdicts),
    )
    (folder / "verdict.json").write_text(document.to_json(), encoding="utf-8")
    return folder


def _verdict(config: str, number: int, mode: str, name: str, dice: random.Random) -> CellVerdict:
    lost = number == 0
    unit = "ms" if mode == "baseline" else "ratio"
    loss = 0.2987654 if lost else dice.uniform(-0.02, 0.02)
    reasons = (
        (InvalidReason("foreign_cpu", f"{name} used the CPUs", 0.91, 0.5),) if number == 1 else ()
    )
    drift = (ConfigDifference("cache_config.block_size", 16, f"{name} 32"),) if number == 2 else ()

    def metric(metric_name: str, outcome: Outcome, loss_ratio: float) -> MetricVerdict:
        return MetricVerdict(
            metric=metric_name,
            unit=unit,
            outcome=outcome,
            baseline_value=1.0123456,
            now_value=1.0123456 * (1 + loss_ratio),
            loss_ratio=loss_ratio,
            loss_lower_bound_ratio=loss_ratio - 0.0312345,
            loss_upper_bound_ratio=loss_ratio + 0.0412345,
            tolerance_ratio=0.05,
            smallest_detectable_loss_ratio=0.0367,
            session_count=2,
            round_count=8,
            alpha=0.001,
            reason=f"why {name}",
        )

    return CellVerdict(
        "tiny",
        config,
        "quick",
        mode,
        (
            metric("tpot_mean_ms", Outcome.REGRESSED if lost else GOOD, loss),
            metric("ttft_mean_ms", GOOD, dice.uniform(-0.01, 0.01)),
            MetricVerdict(
                "weights_bytes",
                "bytes",
                GOOD,
                baseline_value=float(55 << 30),
                now_value=float(55 << 30),
                loss_ratio=0.0,
                tolerance_absolute=0.0,
            ),
        ),
        differences=drift,
        invalid_reasons=reasons,
        notes=(f"a note of {name}",),
    )


def _session(
    config: str,
    number: int,
    arm: Arm,
    mode: str,
    round_count: int,
    slower: float,
    name: str,
    dice: random.Random,
) -> SessionRecord:
    factor = slower if arm is Arm.CANDIDATE else 1.0
    begin_ns = 10**12 + 40 * 10**9 * number + (10**8 if arm is Arm.CANDIDATE else 0)
    return SessionRecord(
        session_id=f"{config}-{arm}-{number}",
        target="tiny",
        config=config,
        workload="quick",
        plan_digest="d" * 64,
        arm=arm,
        started_at_utc=f"2026-12-01T00:{number:02}:00Z",
        identity=EngineIdentity("0.33.0", "3.12", "2.13", "any-cpu", (name,), None, name),
        resolved_config={"cache_config.block_size": 16, "version.vllm": "0.33.0"},
        stages=(StageTiming("import", 3.25), StageTiming("load", 1.5)),
        memory=(
            RankMemory(
                0,
                weights_bytes=55 << 30,
                kv_cache_bytes=76 << 30,
                peak_activation_bytes=(1 << 30) + number,
                non_torch_bytes=900 << 20,
            ),
        ),
        rounds=tuple(
            _round(index, begin_ns + index * 2 * 10**9, factor, name, dice)
            for index in range(round_count)
        ),
        kv_capacity_tokens=4096,
        pair_id=None if mode == "baseline" else f"{config}-{number}",
        environment={"driver": name},
    )


def _round(index: int, start_ns: int, factor: float, name: str, dice: random.Random) -> RoundRecord:
    samples = []
    queue_s, prefill_s, decode_s = 0.0, 0.0, 0.0
    for request in range(10):
        first_ns = int(dice.uniform(0.9, 1.1) * 40e6 * (1 + request / 20))
        step_ns = int(dice.uniform(0.97, 1.03) * 10e6 * factor)
        chunks = tuple(ChunkRecord(start_ns + first_ns + token * step_ns, 1) for token in range(16))
        end_ns = chunks[-1].at_ns
        queue_s += 0.002
        prefill_s += first_ns / 1e9 - 0.005
        decode_s += (chunks[-1].at_ns - chunks[0].at_ns) / 1e9
        samples.append(
            RequestSample(
                request,
                RequestStatus.OK,
                start_ns,
                start_ns,
                end_ns,
                chunks,
                80 + 40 * request,
                16,
                16,
            )
        )
    end_ns = max(sample.end_ns for sample in samples)
    invalid = (InvalidReason("steal", f"another machine: {name}"),) if index == 2 else ()
    counters = {"vllm:generation_tokens_total": 160.0, "vllm:num_preemptions_total": 0.0}
    for kind, total_s in (("queue", queue_s), ("prefill", prefill_s), ("decode", decode_s)):
        counters[f"vllm:request_{kind}_time_seconds_sum"] = total_s
        counters[f"vllm:request_{kind}_time_seconds_count"] = 10.0
    return RoundRecord(
        index,
        RoundKind.MEASURED,
        start_ns,
        end_ns,
        tuple(samples),
        pair_index=index,
        counters=counters,
        telemetry=(
            TelemetryReading("sm_clock_min_mhz", 1500.0 + index, f"NVML {name}"),
            TelemetryReading("power_mean_w", 600.0 + index, "NVML device 0"),
        ),
        invalid_reasons=invalid,
    )
