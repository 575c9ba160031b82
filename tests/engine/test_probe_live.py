"""The probe, the plan and the resolved configuration against real CPU engines.

Tests are in the order of the engines they need: every change of engine is a start of
about twenty seconds.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from k3perf.capacity.cache_layout import CacheLayout, cache_layout
from k3perf.capacity.memory_plan import cache_request, plan_memory
from k3perf.capacity.rules import platform_rules
from k3perf.capacity.shape import Ranks, model_shape
from k3perf.config.suite import load_suite
from k3perf.engine.process_tree import command_of
from k3perf.gate.metric_verdict import judge_exact
from k3perf.metrics.drift import config_differences
from k3perf.metrics.loss_scale import scale_for
from k3perf.metrics.resolved import describe, difference
from k3perf.records.metric_definitions import METRICS
from k3perf.records.outcome import Outcome
from k3perf.run.engine_environment import engine_python_path
from k3perf.telemetry.counters import counter_difference
from tests.engine.live_engine import CONTEXT_TOKENS, Live, StartLive

pytestmark = pytest.mark.engine

MIB = 1 << 20
CPU = platform_rules("cpu")


def model_config(repository: Path, target: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        (repository / "perf_tests" / "models" / target / "config.json").read_text(encoding="utf-8")
    )
    return loaded


def test_the_names_relied_on_are_where_they_were(engine_python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(engine_python), "-m", "k3perf_probe.contract"],
        check=False,
        env={
            "PYTHONPATH": engine_python_path(tmp_path),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.stdout, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["problems"] == [], (
        f"vLLM {answer['vllm_version']} moved names that the probe relies on"
    )


@pytest.fixture(
    scope="module",
    params=[("cpu-hybrid", "fp8"), ("cpu-hybrid", "auto"), ("cpu-gqa", "fp8"), ("cpu-gqa", "auto")],
    ids="-".join,
)
def planned(request: pytest.FixtureRequest, start_live: StartLive) -> Live:
    target, cache_dtype = request.param
    return start_live(target, kv_cache_dtype=cache_dtype)


def test_plan_and_measurement_agree(planned: Live, repository: Path) -> None:
    live = planned
    plan = plan_memory(
        model_config(repository, live.target),
        live.arguments,
        parallelism=Ranks(),
        device_memory_bytes=None,
        rules=CPU,
        environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    (memory,) = live.probe.rank_memory()
    assert memory.weights_bytes is not None
    assert memory.weights_bytes - plan.weights_bytes in (0, gate_padding_bytes(repository, live))
    assert memory.kv_cache_bytes == plan.kv_cache_bytes
    assert live.probe.block_size_tokens == plan.block_size_tokens
    assert live.probe.kv_capacity_tokens is not None
    assert plan.kv_tokens is not None
    assert abs(live.probe.kv_capacity_tokens - plan.kv_tokens) <= plan.block_size_tokens
    assert live.probe.max_concurrency == pytest.approx(plan.max_concurrency)


def gate_padding_bytes(repository: Path, live: Live) -> int:
    """What packing adds on a CPU with AMX: a second row of the shared expert's gate, which
    has one row of BF16, in every layer.
    """
    config = model_config(repository, live.target)
    if not config.get("shared_expert_intermediate_size"):
        return 0
    return int(config["num_hidden_layers"]) * int(config["hidden_size"]) * 2


def test_cache_use_grows_as_planned(planned: Live, repository: Path) -> None:
    live = planned
    shape = model_shape(model_config(repository, live.target))
    request = cache_request(shape, live.arguments)
    layout = cache_layout(shape, request, Ranks(), CPU)
    # One group holds the attending layers; every other one a state, in one block while
    # the sequence decodes.
    linear_groups = len(layout.group_layer_counts) - 1
    block = layout.block_size_tokens
    for whole in (0, 1, 3, 5):
        planned_blocks = whole + 1 + linear_groups  # a partly filled block counts whole
        assert abs(used_blocks(live, layout, whole * block + block // 2) - planned_blocks) <= 0.6


def used_blocks(live: Live, layout: CacheLayout, context_tokens: int) -> float:
    """Blocks that one sequence of ``context_tokens`` holds: the middle one of all
    readings taken while it was decoding.
    """
    cache = live.probe.server_info()["vllm_config"]["cache_config"]
    usable = cache["num_gpu_blocks"] - 1  # the null block is never given out
    prompt = [10 + index % 4000 for index in range(context_tokens)]
    readings: list[float] = []
    for _ in range(20):  # on a busy machine a short answer may end before it is read
        decoded_before = live.probe.counters()["vllm:generation_tokens_total"]
        sending = threading.Thread(
            target=live.complete, args=(prompt, min(40, layout.block_size_tokens // 2 - 1))
        )
        sending.start()
        while sending.is_alive():
            counters = live.probe.counters()
            if (
                counters["vllm:num_requests_running"]
                and counters["vllm:generation_tokens_total"] >= decoded_before + 2
            ):
                readings.append(counters["vllm:kv_cache_usage_perc"] * usable)
        sending.join()
        if readings:
            break
    assert readings, "no reading was taken while the sequence was decoding"
    return median(readings)


def test_a_cpu_rank_says_what_it_cannot_offer(start_live: StartLive) -> None:
    (memory,) = start_live("cpu-gqa", kv_cache_dtype="auto").probe.rank_memory()
    assert {"peak_allocated_bytes", "graph_pool_bytes", "device_used_bytes"} <= set(memory.absent)
    assert memory.peak_allocated_bytes is None
    assert memory.resident_bytes is not None
    assert memory.resident_bytes > memory.kv_cache_bytes  # type: ignore[operator]


def judged(
    repository: Path, target: str, metric: str, was: float | None, now: float | None
) -> Outcome:
    """The gate's outcome for an exact metric that was ``was`` in the baseline, under
    the shipped tolerances.
    """
    assert was is not None
    assert now is not None
    tolerance = load_suite(repository / "perf_tests").tolerances.for_target(target)[metric]
    scale = scale_for(METRICS[metric], tolerance, "baseline")
    return judge_exact(scale, [was], [now]).outcome


def test_one_mebibyte_more_weights_is_caught(start_live: StartLive, repository: Path) -> None:
    probe = start_live("cpu-gqa", kv_cache_dtype="auto").probe
    (before,) = probe.rank_memory()
    probe.call("k3perf_hold_bytes", "weights", MIB)
    (during,) = probe.rank_memory()
    probe.call("k3perf_hold_bytes", "weights", 0)
    (after,) = probe.rank_memory()
    assert before.weights_bytes is not None
    assert during.weights_bytes == before.weights_bytes + MIB
    assert after.weights_bytes == before.weights_bytes
    assert (
        judged(repository, "cpu-gqa", "weights_bytes", before.weights_bytes, during.weights_bytes)
        is Outcome.REGRESSED
    )
    assert (
        judged(repository, "cpu-gqa", "weights_bytes", before.weights_bytes, after.weights_bytes)
        is Outcome.PASS
    )


def test_held_host_memory_is_seen_in_the_peak(start_live: StartLive) -> None:
    probe = start_live("cpu-gqa", kv_cache_dtype="auto").probe
    probe.reset_peaks()
    (before,) = probe.rank_memory()
    probe.call("k3perf_hold_bytes", "host", 64 * MIB)
    (during,) = probe.rank_memory()
    probe.call("k3perf_hold_bytes", "host", 0)
    assert before.peak_resident_bytes is not None
    assert during.peak_resident_bytes is not None
    assert during.peak_resident_bytes - before.peak_resident_bytes >= 60 * MIB


def test_an_injected_slow_down_is_real(start_live: StartLive) -> None:
    """Twice the step's time, so that no noise of the machine can hide it or stand in
    for it.
    """
    live = start_live("cpu-gqa", kv_cache_dtype="auto")

    def seconds() -> float:
        began_s = time.perf_counter()
        live.complete(list(range(10, 74)), 24)
        return time.perf_counter() - began_s

    seconds()
    plain_s, slowed_s = [], []
    for _ in range(3):
        plain_s.append(seconds())
        live.probe.call("k3perf_slow_down", 100)
        slowed_s.append(seconds())
        live.probe.call("k3perf_slow_down", 0)
    assert 1.5 < median(slowed_s) / median(plain_s) < 2.7


def test_identity(start_live: StartLive) -> None:
    live = start_live("cpu-gqa", kv_cache_dtype="auto")
    seen = live.probe.identity()
    assert seen["vllm_version"]
    assert seen["torch_version"]
    resolved = live.probe.resolved_config()
    assert resolved["version.vllm"] == seen["vllm_version"]
    assert resolved["backend.attention"] == "CPU_ATTN"
    assert "MoE" in resolved["backend.moe"]
    assert resolved["backend.sampling"]
    assert any("vllm" in command_of(pid).lower() for pid in live.engine.pids())


def test_two_starts_of_one_configuration_resolve_equally(start_live: StartLive) -> None:
    first = start_live("cpu-gqa", kv_cache_dtype="auto").probe.resolved_config()
    second = start_live("cpu-gqa", again=True, kv_cache_dtype="auto").probe.resolved_config()
    assert describe(difference(first, second)) == ""


def test_one_block_fewer_and_one_changed_default_are_seen(start_live: StartLive) -> None:
    usual = start_live("cpu-gqa", kv_cache_dtype="auto")
    before, capacity = usual.probe.resolved_config(), usual.probe.kv_capacity_tokens
    blocks = usual.probe.server_info()["vllm_config"]["cache_config"]["num_gpu_blocks"]
    less = start_live(
        "cpu-gqa",
        kv_cache_dtype="auto",
        num_gpu_blocks_override=blocks - 1,
        max_num_batched_tokens=1024,
    )
    assert capacity is not None
    assert (
        less.probe.kv_capacity_tokens == capacity - 128
    )  # the least that this engine can lose is a block
    changed = {
        item.key: (item.was, item.now) for item in difference(before, less.probe.resolved_config())
    }
    assert changed["scheduler_config.max_num_batched_tokens"] == (2048, 1024)
    assert changed["cache_config.num_gpu_blocks_override"] == (None, blocks - 1)
    assert {item.key for item in config_differences(before, less.probe.resolved_config())} == set(
        changed
    )  # the gate sees the same
    assert all(
        "num_batched_tokens" in key
        or "blocks_override" in key
        or "encoder" in key
        or "compile" in key
        for key in changed
    ), changed


def test_one_kv_token_fewer_is_caught(start_live: StartLive, repository: Path) -> None:
    """With hardly more blocks than one request needs, a context shorter by a token
    makes the capacity smaller by a token: 33/32 of it.
    """
    # one block is the null block
    blocks, context = CONTEXT_TOKENS // 128 + 1, CONTEXT_TOKENS - 1
    capacities = []
    for tokens in (context, context - 1):
        live = start_live(
            "cpu-gqa", kv_cache_dtype="auto", num_gpu_blocks_override=blocks, max_model_len=tokens
        )
        # it serves
        assert live.complete(list(range(10, 90)), 4)["usage"]["completion_tokens"] == 4
        capacities.append(live.probe.kv_capacity_tokens)
    assert capacities == [4222, 4221]
    assert judged(repository, "cpu-gqa", "kv_capacity_tokens", *capacities) is Outcome.REGRESSED
    assert (
        judged(repository, "cpu-gqa", "kv_capacity_tokens", capacities[0], capacities[0])
        is Outcome.PASS
    )


def test_requests_held_before_the_first_preemption(start_live: StartLive, repository: Path) -> None:
    """Prompts fill one block each and grow into a second: as many as are planned to fit
    run through, more are preempted.
    """
    blocks, context = 25, 256
    live = start_live(
        "cpu-gqa",
        kv_cache_dtype="auto",
        max_model_len=context,
        num_gpu_blocks_override=blocks,
        enable_prefix_caching=False,
    )
    shape = model_shape(model_config(repository, "cpu-gqa"))
    layout = cache_layout(shape, cache_request(shape, live.arguments), Ranks(), CPU)
    held = (blocks - 1) // layout.blocks_per_request  # one block id is the null block
    assert held == 12
    assert preempted(live, held) == 0
    assert preempted(live, held + 4) > 0


def preempted(live: Live, requests: int) -> float:
    before = live.probe.counters()
    with ThreadPoolExecutor(max_workers=requests) as pool:
        list(
            pool.map(
                lambda start: live.complete(list(range(start, start + 120)), 100),
                range(10, 10 + requests),
            )
        )
    after = live.probe.counters_after(before, "vllm:generation_tokens_total", 100 * requests)
    return counter_difference(before, after).values["vllm:num_preemptions_total"]
