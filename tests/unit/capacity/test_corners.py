"""What the measured models do not show: packed FP8 latents, backends asked for by name,
forced blocks, dense and seeing models.
"""

from __future__ import annotations

from typing import Any

import pytest

from k3perf.capacity.cache_layout import CacheRequest, cache_layout, token_page_bytes
from k3perf.capacity.memory_plan import plan_memory
from k3perf.capacity.rules import platform_rules
from k3perf.capacity.shape import Ranks, model_shape
from tests.unit.capacity.proxies import k2_slice, k3_slice, shipped

ONE = Ranks()


def block(config: dict[str, Any], platform: str, **asked: Any) -> int:
    request = CacheRequest(maximum_context_tokens=1024, **asked)
    return cache_layout(
        model_shape(config), request, ONE, platform_rules(platform)
    ).block_size_tokens


def test_a_packed_fp8_latent_takes_656_bytes_a_token() -> None:
    """512 FP8 values, 4 scales of 4 bytes and 64 rotary values in BF16: 512 + 16 + 128."""
    shape = model_shape(k3_slice(4, 8))
    assert (
        token_page_bytes(shape, CacheRequest(cache_dtype="fp8_ds_mla"), ONE) == 512 + 4 * 4 + 64 * 2
    )
    assert token_page_bytes(shape, CacheRequest(cache_dtype="fp8"), ONE) == 576
    assert token_page_bytes(shape, CacheRequest(cache_dtype="auto"), ONE) == 1152


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("FLASHMLA", 64),
        ("cutlass_mla", 128),
        ("TRITON_MLA", 16),
        ("SOMETHING_ELSE", 16),
        (None, 16),
    ],
)
def test_a_backend_asked_for_by_name_brings_its_block(backend: str | None, expected: int) -> None:
    assert block(k2_slice(), "nvidia", attention_backend=backend) == expected


def test_a_backend_whose_kernel_does_not_divide_the_block_replaces_it() -> None:
    """An FP8 latent starts at blocks of 64, which a kernel of 128 does not fit into."""
    assert block(k2_slice(), "nvidia", cache_dtype="fp8") == 64
    assert block(k2_slice(), "nvidia", cache_dtype="fp8", attention_backend="CUTLASS_MLA") == 128


def test_the_cpu_backend_forces_the_block_of_a_latent_cache() -> None:
    assert block(k2_slice(), "cpu", block_size_tokens=64) == 16
    assert block(k2_slice(), "nvidia", block_size_tokens=64) == 64


def weights(config: dict[str, Any]) -> int:
    return plan_memory(
        config,
        {"max_model_len": 1024},
        parallelism=Ranks(),
        device_memory_bytes=None,
        rules=platform_rules("nvidia"),
    ).weights_bytes


def test_a_query_without_a_low_rank_projects_at_once() -> None:
    """hidden x heads x (128 + 64) instead of hidden x rank + rank x heads x 192, and no
    norm of the rank; BF16, in each latent layer.
    """
    low = k3_slice(4, 8)
    full = {**low, "q_lora_rank": None}
    hidden, out, rank = 7168, 12 * (128 + 64), 1536
    latent_layers = len(low["linear_attn_config"]["full_attn_layers"])
    assert weights(full) - weights(low) == 2 * latent_layers * (
        hidden * out - (hidden * rank + rank * out) - rank
    )


def test_a_model_without_experts_has_no_expert_weights() -> None:
    dense = {**shipped("cpu-gqa"), "num_experts": 0}
    assert model_shape(dense).experts is None
    assert weights(dense) < weights(shipped("cpu-gqa"))


def test_what_was_not_compared_or_not_counted_is_said() -> None:
    seeing = {**k3_slice(4, 8), "vision_config": {"depth": 2}}
    notes = plan_memory(
        seeing,
        {"max_model_len": 1024},
        parallelism=Ranks(),
        device_memory_bytes=None,
        rules=platform_rules("amd"),
    ).notes
    assert any("never compared with a device" in note for note in notes)
    assert any("vision tower" in note for note in notes)
