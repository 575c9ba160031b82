"""The quality pass on vLLM's own CPU engine with the trained models: schemes are told
apart, an equal engine shows nothing, every injected fault is caught.

A fault counts as caught when the gate's exact rule finds a metric beyond the suite's
committed tolerance.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from k3perf.config.quality_prompts import quality_prompts
from k3perf.config.suite import load_suite
from k3perf.gate.metric_verdict import judge_exact
from k3perf.metrics.loss_scale import scale_for
from k3perf.metrics.quality import control_values, quality_values
from k3perf.records.metric_definitions import METRICS, Family
from k3perf.records.outcome import Outcome
from k3perf.records.quality import QualityBook
from k3perf.run.quality_pass import BookMaker
from tests.engine.live_engine import Live, StartLive

pytestmark = pytest.mark.engine

SUITE = load_suite(Path(__file__).resolve().parents[2] / "perf_tests")
GQA, HYBRID = "cpu-quality-gqa", "cpu-quality-hybrid"

HELD_OUT_NATS = {GQA: 1.6644, HYBRID: 1.3771}
"""What PyTorch and transformers read on the same prompts after training."""


def book_of(live: Live) -> QualityBook:
    target = SUITE.target(live.target)
    size = SUITE.vocabulary_size(target)
    running = SimpleNamespace(
        engine=live.engine, probe=live.probe, or_its_death=contextlib.nullcontext
    )
    return BookMaker(
        target.quality, running, quality_prompts(target.quality, SUITE.root, size), size
    ).book()


def beyond(target: str, config: str, was: dict, now: dict) -> list[str]:
    """Metrics that the suite's tolerances call a loss."""
    tolerances = SUITE.tolerances.for_cell(target, config, "chat")
    return [
        name
        for name, tolerance in tolerances.items()
        if METRICS[name].family is Family.QUALITY
        and name in was
        and was[name].value is not None
        and now[name].value is not None
        and judge_exact(
            scale_for(METRICS[name], tolerance, "baseline"), [was[name].value], [now[name].value]
        ).outcome
        is Outcome.REGRESSED
    ]


@pytest.fixture(scope="module")
def references(start_live: StartLive) -> dict[str, QualityBook]:
    """The reference config's answers of both models."""
    return {target: book_of(start_live(target)) for target in (HYBRID, GQA)}


@pytest.mark.parametrize("target", [GQA, HYBRID])
def test_an_equal_engine_shows_nothing_beyond_its_own_noise(
    start_live: StartLive, references, target: str
):
    first = references[target]
    live = start_live(target, again=True)  # another process
    second, third = book_of(live), book_of(live)
    floor = control_values(second, third)
    values = quality_values(first, second)
    assert first.absent == second.absent == {}
    assert values["quality_nll_nats"].value == pytest.approx(HELD_OUT_NATS[target], abs=0.01)
    assert values["quality_decode_nll_nats"].n > 700
    assert floor["quality_floor_kl_nats"].value <= 1e-9
    assert values["quality_kl_mean_nats"].value <= 1e-9
    # decode shares batches, whose composition follows arrival times
    assert values["quality_decode_kl_mean_nats"].value < 5e-4
    assert values["quality_top1_ratio"].value == 1
    assert values["quality_decode_prefill_kl_nats"].value < 5e-4
    assert values["quality_cached_kl_nats"].value < 5e-4


def test_schemes_are_told_apart_in_every_bucket(start_live: StartLive, references):
    found = {
        config: quality_values(references[GQA], book_of(start_live(GQA, config=config, again=True)))
        for config in ("int8_checkpoint", "fp8_checkpoint", "fp8_kv")
    }
    for bucket in ("", "_quarter", "_half", "_full"):
        values = [found[config][f"quality_kl_mean{bucket}_nats"].value for config in found]
        assert 1e-5 < values[0] < values[1] < values[2], (bucket, values)
    clean = quality_values(references[GQA], references[GQA])
    for config, values in found.items():
        assert beyond(GQA, config, clean, values), config


GQA_FAULTS = [
    ("kv_scale_factor", 2),
    ("decode_kv_scale_factor", 2),
    ("skip_layer_number", 2),
    ("rope_offset_tokens", 1),
    ("wrong_block_number", 2),
]
HYBRID_FAULTS = [("zero_expert_number", 1), ("router_top_k", 1), ("skip_layer_number", 3)]


@pytest.mark.parametrize(
    ("target", "kind", "amount"),
    [(HYBRID, *fault) for fault in HYBRID_FAULTS] + [(GQA, *fault) for fault in GQA_FAULTS],
)
def test_an_injected_fault_is_caught(
    start_live: StartLive, references, target: str, kind: str, amount: float
):
    live = start_live(target)
    clean = quality_values(references[target], references[target])
    (answer,) = live.probe.call("k3perf_wrong_answers", kind, amount)
    try:
        values = quality_values(references[target], book_of(live))
    finally:
        live.probe.call("k3perf_wrong_answers", kind, 0)
    assert answer["changed_count"] > 0
    assert beyond(target, "default", clean, values)
    if kind == "decode_kv_scale_factor":  # what prefill alone cannot see
        assert values["quality_kl_mean_nats"].value <= 1e-9
        assert values["quality_decode_prefill_kl_nats"].value > 1e-3
    restored = quality_values(references[target], book_of(live))
    assert restored["quality_kl_mean_nats"].value <= 1e-9
