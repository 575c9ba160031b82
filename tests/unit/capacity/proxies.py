"""Model configurations whose memory was measured on real engines, and Kimi K3's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MODELS = Path(__file__).parents[3] / "perf_tests" / "models"


def shipped(name: str) -> dict[str, Any]:
    """``config.json`` of a model directory of the suite."""
    loaded: dict[str, Any] = json.loads((MODELS / name / "config.json").read_text(encoding="utf-8"))
    return loaded


def kimi_k3() -> dict[str, Any]:
    """Kimi K3 as published: 93 layers, 24 of them latent attention, MXFP4 routed
    experts.
    """
    return shipped("kimi-k3")


def k3_slice(layers: int, experts: int) -> dict[str, Any]:
    """A TP=8 rank's slice of Kimi K3 with fewer layers and experts, in BF16: the
    proxies measured on an H200.
    """
    return {
        "model_type": "kimi_linear",
        "torch_dtype": "bfloat16",
        "vocab_size": 20480,
        "hidden_size": 7168,
        "intermediate_size": 4224,
        "num_hidden_layers": layers,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "moe_intermediate_size": 384,
        "num_experts": experts,
        "num_experts_per_token": 8,
        "num_shared_experts": 2,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "attn_res_block_size": 4,
        "latent_moe_use_norm": True,
        "routed_expert_hidden_size": 3584,
        "max_position_embeddings": 131072,
        "linear_attn_config": {
            "kda_layers": [index for index in range(1, layers + 1) if index % 4],
            "full_attn_layers": [index for index in range(1, layers + 1) if index % 4 == 0],
            "head_dim": 128,
            "num_heads": 12,
            "short_conv_kernel_size": 4,
        },
    }


def k2_slice() -> dict[str, Any]:
    """The Kimi K2 lineage at a TP=8 slice: latent attention in every layer, rotary
    positions.
    """
    return {
        "model_type": "kimi_k2",
        "torch_dtype": "bfloat16",
        "vocab_size": 20480,
        "hidden_size": 7168,
        "intermediate_size": 2304,
        "moe_intermediate_size": 256,
        "num_hidden_layers": 8,
        "first_k_dense_replace": 1,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "moe_layer_freq": 1,
        "topk_method": "noaux_tc",
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "max_position_embeddings": 131072,
    }
