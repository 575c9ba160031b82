"""Scaling efficiency of the declared two-GPU targets: the base's figure is the gate's
own, both sides are taken alike, and a lack is told.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3perf.baselines.scaling import RATE, ScalingBase, ScalingReading
from k3perf.baselines.target_policy import pool_noise
from k3perf.config.machine_spec import Hardware
from k3perf.config.models import TargetSpec, Tolerance
from k3perf.config.suite import Suite, load_suite
from k3perf.gate.compare import compare
from k3perf.records.baseline import Baseline, MetricBaseline
from k3perf.records.measurement import CellMeasurement, MetricValue, RoundMetrics, SessionMetrics
from k3perf.records.samples import Arm, InvalidReason

from .conftest import Build

SUITE = load_suite(Path(__file__).resolve().parents[3] / "perf_tests")
PLAN = "fedcba9876543210"


def recorded(config: str, level: float) -> Baseline:
    """Six sessions of twelve rounds of the one-GPU target."""
    build = Build()
    cell = build.cell(
        build.sessions(level, 6),
        target="h200-k3",
        config=config,
        workload="serve_1k",
        plan_digest=PLAN,
    )
    baseline = build.baseline(cell)
    return baseline.model_copy(
        update={"resolved_config": {**baseline.resolved_config, "version.vllm": "0.33.0"}}
    )


RECORDED = tuple(
    recorded(config, level)
    for config, level in (
        ("default", 3400.0),
        ("prefix_caching_on", 3300.0),
        ("fp8_weights", 4500.0),
    )
)
DEFAULT = RECORDED[0]


def sessions_of(baseline: Baseline, times: float) -> tuple[SessionMetrics, ...]:
    """The baseline's recorded sessions again, every round ``times`` as fast."""
    workload = baseline.workload("serve_1k")
    assert workload is not None
    entry = next(entry for entry in workload.metrics if entry.metric == RATE)
    return tuple(
        SessionMetrics(
            session.session_id,
            Arm.CANDIDATE,
            None,
            tuple(
                RoundMetrics(index, None, {RATE: MetricValue(times * value, 64)})
                for index, value in enumerate(session.round_values)
            ),
            {},
            dict(baseline.resolved_config),
        )
        for session in entry.sessions
    )


def measured(times: float = 1.5, baseline: Baseline = DEFAULT, **changes: Any) -> CellMeasurement:
    cell = CellMeasurement(
        "h200-k3-tp2",
        baseline.config,
        "serve_1k",
        "baseline",
        "h200-x2",
        PLAN,
        sessions_of(baseline, times),
    )
    return replace(cell, **changes)


def against(
    *baselines: Baseline,
    target: str = "h200-k3-tp2",
    suite: Suite = SUITE,
    base: TargetSpec | None = None,
    wide: TargetSpec | None = None,
) -> ScalingBase:
    return ScalingBase(
        suite, wide or suite.target(target), base or suite.target("h200-k3"), baselines
    )


def test_the_base_s_figure_is_the_one_that_its_own_candidates_are_compared_with(
    build: Build,
) -> None:
    wide = SUITE.target("h200-k3-tp2")  # its own plan has no say
    wide = wide.model_copy(
        update={
            "measurement": wide.measurement.model_copy(
                update={"minimum_rounds": 2, "maximum_rounds": 2}
            )
        }
    )
    reading = against(*RECORDED, wide=wide).of_measurement(measured(1.5))
    tolerances = {RATE: Tolerance(loss_ratio=0.1)}
    policy = build.policy(
        tolerances=tolerances,
        plan=SUITE.target("h200-k3").measurement,
        noise=pool_noise(RECORDED, tolerances),
        gated_metric_count=2,
    )
    own = compare(DEFAULT, replace(measured(1.0), target="h200-k3", hardware_class="h200"), policy)
    (metric,) = own.metrics
    assert reading.base_tokens_per_s == metric.baseline_value
    assert metric.baseline_value == pytest.approx(3400, rel=0.01)
    # the very sessions of the base, every round one and a half times as fast: taken
    # alike, nothing but that is left
    assert reading.efficiency_ratio == pytest.approx(0.75, abs=1e-12)


def disturbed(config: str, level: float) -> Baseline:
    """Six sessions of twelve rounds: half of a session's rounds are held up, in each
    session by another amount; the other half never is.
    """
    build = Build()
    sessions = [
        build.session(
            f"c{index}",
            [
                build.round(number, {RATE: level * (1 - number % 2 * 0.05 * index)})
                for number in range(12)
            ],
        )
        for index in range(6)
    ]
    return build.baseline(
        build.cell(sessions, target="h200-k3", config=config, workload="serve_1k", plan_digest=PLAN)
    )


def test_the_noise_of_all_the_base_s_cells_says_how_a_session_is_taken() -> None:
    """Five cells can tell that the lower quartile of the losses differs least between
    sessions; one cell alone cannot, and has the median.
    """
    several = [disturbed(config, 3400.0) for config in ("default", "a", "b", "c", "d")]
    pooled = against(*several).of_measurement(measured(1.5, several[0]))
    alone = against(several[0]).of_measurement(measured(1.5, several[0]))
    assert pooled.base_tokens_per_s == pytest.approx(3400)
    assert alone.base_tokens_per_s is not None
    assert alone.base_tokens_per_s < 0.96 * 3400
    assert [reading.efficiency_ratio for reading in (pooled, alone)] == pytest.approx(
        [0.75, 0.75], abs=1e-12
    )


def test_the_rate_is_found_among_other_metrics() -> None:
    workload = DEFAULT.workload("serve_1k")
    assert workload is not None
    (entry,) = workload.metrics
    other = MetricBaseline.model_validate(
        {
            **entry.model_dump(),
            "metric": "ttft_p50_ms",
            "sessions": entry.model_dump()["sessions"][:1],
        }
    )
    among = workload_changed(metrics=(other, entry))
    assert (
        against(among)
        .of_measurement(measured())
        .source.startswith("baselines/h200-k3/default.json: 6 sessions")
    )


def test_the_sentence_names_both_figures_and_where_the_base_s_came_from() -> None:
    expected = (
        "scaling efficiency 75.0%: 5,095 tokens/s on 2 devices against 2 x 3,397 tokens/s on 1"
        " device of h200-k3 (baselines/h200-k3/default.json: 6 sessions, vLLM 0.33.0, accepted"
        " 2026-01-01)"
    )
    assert against(*RECORDED).of_measurement(measured(1.5)).text == expected


def test_sessions_of_fewer_rounds_are_compared_with_as_many_of_the_base() -> None:
    short = measured(1.5)
    cut = tuple(replace(session, rounds=session.rounds[:2]) for session in short.sessions)
    reading = against(*RECORDED).of_measurement(replace(short, sessions=cut))
    assert reading.base_tokens_per_s != against(*RECORDED).of_measurement(short).base_tokens_per_s
    assert reading.efficiency_ratio == pytest.approx(0.75, abs=1e-12)


def test_only_valid_candidate_sessions_count_whatever_they_were_compared_with() -> None:
    good = measured(1.5)
    spoiled = tuple(
        replace(session, session_id="bad", invalid_reasons=(InvalidReason("x", "y"),))
        for session in sessions_of(DEFAULT, 9.0)
    )
    base_arm = {"arm": Arm.REFERENCE, "pair_id": "p", "resolved_config": {"version.vllm": "0.1"}}
    reference = tuple(replace(session, **base_arm) for session in sessions_of(DEFAULT, 9.0))
    for mode in ("baseline", "reference", "ab"):
        reading = against(*RECORDED).of_measurement(
            replace(good, mode=mode, sessions=(*reference, *spoiled, *good.sessions))
        )
        assert (reading.efficiency_ratio, reading.remark) == (pytest.approx(0.75, abs=1e-12), "")
    nothing = against(*RECORDED).of_measurement(replace(good, sessions=spoiled))
    assert nothing.efficiency_ratio is None
    assert nothing.base_tokens_per_s == pytest.approx(3400, rel=0.01)
    assert (
        nothing.text
        == "no scaling efficiency against h200-k3: no valid session of this cell has a throughput"
    )


def test_eight_devices_against_four() -> None:
    eight = SUITE.target("h200-k3-tp2").model_copy(
        update={"hardware": Hardware(kind="nvidia", hardware_class="h200-x8", device_count=8)}
    )
    four = SUITE.target("h200-k3").model_copy(
        update={"hardware": Hardware(kind="nvidia", hardware_class="h200", device_count=4)}
    )
    reading = against(*RECORDED, base=four, wide=eight).of_measurement(measured(1.5))
    assert reading.efficiency_ratio == pytest.approx(0.75, abs=1e-12)
    assert (
        "5,095 tokens/s on 8 devices against 2 x 3,397 tokens/s on 4 devices of h200-k3"
        in reading.text
    )


def without(**changes: Any) -> Baseline:
    return DEFAULT.model_copy(update=changes)


def workload_changed(**changes: Any) -> Baseline:
    return without(workloads=tuple(entry.model_copy(update=changes) for entry in DEFAULT.workloads))


HOW = (
    "record it with `pytest perf_tests -k default --k3-target h200-k3 --k3-record`, then `k3perf"
    " baseline propose` and `k3perf baseline accept`"
)


@pytest.mark.parametrize(
    ("baselines", "reason"),
    [
        ((), f"baselines/h200-k3/default.json does not exist; {HOW}"),
        (
            (without(workloads=()),),
            f"the baseline of h200-k3/default has no workload serve_1k; {HOW}",
        ),
        (
            (workload_changed(plan_digest="0123456789abcdef"),),
            (
                f"recorded with other requests (plan digest {PLAN[:12]} here, 0123456789ab there);"
                f" {HOW}"
            ),
        ),
        (
            (without(hardware_class="h100"),),
            f"was recorded on hardware class h100, h200-k3 is h200; {HOW}",
        ),
        (
            (workload_changed(metrics=()),),
            "the baseline of h200-k3/default holds no output_tokens_per_s",
        ),
    ],
    ids=["no_file", "no_workload", "other_requests", "other_hardware", "no_rate"],
)
def test_a_base_without_the_cell_says_so_beside_the_measured_figure(
    baselines: tuple[Baseline, ...], reason: str
) -> None:
    reading = against(*baselines).of_measurement(measured(1.5))
    assert (reading.efficiency_ratio, reading.base_tokens_per_s) == (None, None)
    assert reason in reading.text
    assert reading.text.startswith("no scaling efficiency against h200-k3: ")
    assert reading.text.endswith(" tokens/s on 2 devices)")
    assert reading.tokens_per_s == pytest.approx(1.5 * 3400, rel=0.01)


@pytest.mark.parametrize(
    ("config", "workload", "reason"),
    [
        ("seqs_down", "serve_1k", "baselines/h200-k3/seqs_down.json does not exist"),
        ("block_size_16", "serve_1k", "resolves to the same engine as default"),
        ("fp8_kv", "serve_1k", "FP8"),
        ("default", "long_32k", "h200-k3 does not serve the workload long_32k"),
    ],
)
def test_what_the_base_does_not_take_is_told(config: str, workload: str, reason: str) -> None:
    reading = against(*RECORDED).of_measurement(measured(config=config, workload=workload))
    assert reason in reading.missing
    assert reading.efficiency_ratio is None


def test_a_config_that_the_base_does_not_declare() -> None:
    narrow = SUITE.target("h200-k3").model_copy(update={"configs": ("default",)})
    reading = against(*RECORDED, base=narrow).of_measurement(measured(config="seqs_down"))
    assert reading.missing == "h200-k3 does not declare seqs_down"


def test_another_release_and_a_rate_of_the_requests_own_are_remarked() -> None:
    other = without(resolved_config={**DEFAULT.resolved_config, "version.vllm": "0.32.0"})
    assert (
        against(other)
        .of_measurement(measured())
        .text.endswith(
            "default.json: 6 sessions, vLLM 0.32.0, accepted 2026-01-01); another release, vLLM"
            " 0.33.0, was measured here"
        )
    )
    unknown = tuple(replace(session, resolved_config={}) for session in sessions_of(DEFAULT, 1.5))
    assert (
        "another release, vLLM unknown, was measured here"
        in against(*RECORDED).of_measurement(measured(sessions=unknown)).text
    )
    undated = without(resolved_config={})
    assert (
        "vLLM unknown, accepted" in against(undated).of_measurement(measured(sessions=unknown)).text
    )


@pytest.mark.parametrize(
    ("like", "own_rate"), [("poisson", True), ("burst", False), ("serve_1k", False)]
)
def test_requests_that_come_at_a_rate_of_their_own_are_remarked(like: str, own_rate: bool) -> None:
    """Requests that are all there at once, or wait for each other, are held up by the
    engine alone.
    """
    alike = SUITE.workload("serve_1k").model_copy(update={"arrival": SUITE.workload(like).arrival})
    suite = replace(SUITE, workloads={**SUITE.workloads, "serve_1k": alike})
    remark = "requests come at their own rate, which the throughput cannot exceed"
    assert against(*RECORDED, suite=suite).of_measurement(measured()).remark == (
        remark if own_rate else ""
    )
    if own_rate:
        other = without(resolved_config={**DEFAULT.resolved_config, "version.vllm": "0.32.0"})
        both = against(other, suite=suite).of_measurement(measured()).text
        assert both.endswith(f"; another release, vLLM 0.33.0, was measured here; {remark}")


def test_from_committed_baselines_alone() -> None:
    workload = DEFAULT.workload("serve_1k")
    assert workload is not None
    wide = without(target="h200-k3-tp2", hardware_class="h200-x2")
    base = against(*RECORDED)
    reading = base.of_baseline(wide, "default", "serve_1k")
    assert (reading.efficiency_ratio, reading.remark) == (pytest.approx(0.5, abs=1e-12), "")
    older = wide.model_copy(update={"resolved_config": {"version.vllm": "0.32.0"}})
    assert (
        base.of_baseline(older, "default", "serve_1k").remark
        == "another release, vLLM 0.32.0, was measured here"
    )
    for nothing in (None, wide.model_copy(update={"workloads": ()})):
        reading = base.of_baseline(nothing, "default", "serve_1k")
        assert (
            reading.text
            == "no scaling efficiency against h200-k3: no baseline of h200-k3-tp2/default has the"
            " workload serve_1k"
        )
        assert (reading.tokens_per_s, reading.base_tokens_per_s) == (
            None,
            pytest.approx(3400, rel=0.01),
        )
        # of no release: there is nothing that was measured with one
        assert reading.remark == ""
    ratios = tuple(entry.model_copy(update={"basis": "ratio"}) for entry in workload.metrics)
    only_ratios = wide.model_copy(
        update={"workloads": (workload.model_copy(update={"metrics": ratios}),)}
    )
    assert (
        "h200-k3-tp2/default holds no output_tokens_per_s"
        in base.of_baseline(only_ratios, "default", "serve_1k").missing
    )


def test_a_config_that_is_apart_has_no_say_in_how_its_siblings_sessions_are_taken() -> None:
    slow = recorded("batched_tokens_down", 1400.0)
    workload = slow.workloads[0]
    slow_round = np.random.default_rng(1).random((18, 12)) < 0.2
    jumping = tuple(
        session.model_copy(
            update={
                "round_values": tuple(
                    value / (1 + late)
                    for value, late in zip(session.round_values, row, strict=True)
                )
            }
        )
        for session, row in zip(workload.metrics[0].sessions * 3, slow_round.tolist(), strict=True)
    )  # more sessions than all siblings have, and taken best by a quartile of many rounds
    entry = workload.metrics[0].model_copy(update={"sessions": jumping})
    loud = slow.model_copy(
        update={"workloads": (workload.model_copy(update={"metrics": (entry,)}),)}
    )
    plain: dict[str, Any] = {"memory_and_lock": {}}
    wide = {"h200-k3": {"batched_tokens_down": {RATE: Tolerance(loss_ratio=0.4)}}}
    together, apart = (
        replace(SUITE, tolerances=SUITE.tolerances.model_copy(update=plain | {"configs": own}))
        for own in ({}, wide)
    )
    alone = against(*RECORDED, suite=together).of_measurement(measured()).base_tokens_per_s
    assert (
        against(*RECORDED, loud, suite=apart).of_measurement(measured()).base_tokens_per_s == alone
    )
    assert (
        against(*RECORDED, loud, suite=together).of_measurement(measured()).base_tokens_per_s
        != alone
    )
    own = against(*RECORDED, loud, suite=apart).of_measurement(
        measured(baseline=loud, config="batched_tokens_down")
    )
    assert own.efficiency_ratio == pytest.approx(0.75, abs=1e-12)


def test_small_figures_keep_their_digits() -> None:
    reading = ScalingReading(
        "t", "c", "w", 2, "b", 1, tokens_per_s=12.3456, base_tokens_per_s=8.0, source="s"
    )
    assert (
        reading.text
        == "scaling efficiency 77.2%: 12.35 tokens/s on 2 devices against 2 x 8 tokens/s on 1"
        " device of b (s)"
    )
