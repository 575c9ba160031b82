"""A baseline of one class of processors on another: ratios and the KV cache are
compared, what the instruction set decides is not.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.compare import compare
from k3perf.records.measurement import MetricValue
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict
from tests.unit.gate.conftest import RATE, Build

TOLERANCES = {
    RATE: Tolerance(loss_ratio=0.05),
    "weights_bytes": Tolerance(loss_absolute=0),
    "engine_peak_rss_bytes": Tolerance(loss_absolute=10),
    "kv_cache_bytes": Tolerance(loss_absolute=0),
    "kv_capacity_tokens": Tolerance(loss_absolute=0),
}
HELD = {
    "weights_bytes": 100.0,
    "engine_peak_rss_bytes": 500.0,
    "kv_cache_bytes": 1000.0,
    "kv_capacity_tokens": 4096.0,
}


def judged(
    build: Build, recorded: str, measured: str, mode: str = "reference", **changes: float
) -> CellVerdict:
    """Cells whose candidate holds ``changes`` of what was recorded."""
    policy = build.policy(tolerances=TOLERANCES, plan=MeasurementPlan(mode="reference"))

    def cell(hardware_class: str, held: dict[str, float], count: int) -> object:
        sessions = (
            build.pairs(1000.0, 1000.0, count)
            if mode == "reference"
            else build.sessions(1000.0, count)
        )
        values = {name: MetricValue(value, 1) for name, value in held.items()}
        return build.cell(
            [replace(session, values=values) for session in sessions],
            mode,
            hardware_class=hardware_class,
        )

    baseline = build.baseline(cell(recorded, HELD, 6), policy)  # type: ignore[arg-type]
    return compare(baseline, cell(measured, {**HELD, **changes}, 2), policy)  # type: ignore[arg-type]


def outcomes(verdict: CellVerdict) -> dict[str, Outcome]:
    return {metric.metric: metric.outcome for metric in verdict.metrics}


def test_an_engine_of_the_same_class_is_compared_in_everything(build: Build) -> None:
    assert outcomes(judged(build, "cpu-avx512", "cpu-avx512")) == dict.fromkeys(
        TOLERANCES, Outcome.PASS
    )


def test_an_older_processor_is_compared_in_what_it_does_not_decide(build: Build) -> None:
    verdict = judged(
        build, "cpu-avx512", "cpu-avx2", weights_bytes=90.0, engine_peak_rss_bytes=900.0
    )
    assert outcomes(verdict) == dict.fromkeys(
        (RATE, "kv_cache_bytes", "kv_capacity_tokens"), Outcome.PASS
    )
    assert {note for note in verdict.notes if "recorded on other hardware" in note} == {
        "weights_bytes: not judged, recorded on other hardware",
        "engine_peak_rss_bytes: not judged, recorded on other hardware",
    }


def test_a_lost_token_of_capacity_is_seen_on_every_processor(build: Build) -> None:
    found = outcomes(judged(build, "cpu-avx512", "cpu-avx2", kv_capacity_tokens=4095.0))
    assert found["kv_capacity_tokens"] is Outcome.REGRESSED


@pytest.mark.parametrize("classes", [("h200", "cpu-avx2"), ("h200", "h100"), ("cpu-avx2", "h200")])
def test_the_cache_of_another_kind_of_hardware_is_not_compared(
    build: Build, classes: tuple[str, str]
) -> None:
    assert set(outcomes(judged(build, *classes))) == {RATE}


def test_absolute_numbers_do_not_carry_over(build: Build) -> None:
    verdict = judged(build, "cpu-avx512", "cpu-avx2", "baseline")
    assert verdict.outcome is Outcome.NO_BASELINE
