"""The memory plan of the dense families against real CPU engines: small models of each,
with dummy weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k3perf.capacity.memory_plan import plan_memory
from k3perf.capacity.rules import platform_rules
from k3perf.capacity.shape import Ranks
from k3perf.config.suite import load_suite
from k3perf.engine.model_directory import materialise
from k3perf.engine.render import measured_launch
from k3perf.engine.supervisor import start_engine
from k3perf.run.engine_environment import engine_python_path
from k3perf.telemetry.server import ServerProbe

pytestmark = pytest.mark.engine

COMMON: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "head_dim": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False},
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "tie_word_embeddings": False,
        "sliding_window": 512,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "gpt_oss": {
        "architectures": ["GptOssForCausalLM"],
        "tie_word_embeddings": False,
        "sliding_window": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 2.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    },
}
ARGUMENTS = {
    "dtype": "bfloat16",
    "enforce_eager": True,
    "max_model_len": 4096,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 1024,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_plan_and_measurement_agree(
    family: str, repository: Path, engine_python: Path, tmp_path: Path
) -> None:
    config = {**COMMON, "model_type": family, **FAMILIES[family]}
    source = tmp_path / family
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    spec = load_suite(repository / "perf_tests").target("cpu-gqa")
    spec = spec.model_copy(update={"model": replace_directory(spec.model, str(source))})
    launch = measured_launch(
        spec,
        ARGUMENTS,
        model=str(materialise(source, tmp_path / "models")),
        engine_python=engine_python,
        python_path=engine_python_path(tmp_path),
        cache_directory=tmp_path,
    )
    engine = start_engine(launch, work_directory=tmp_path / "engine")
    try:
        probe = ServerProbe(engine.base_url, timeout_s=60)
        (memory,) = probe.rank_memory()
        block, tokens = probe.block_size_tokens, probe.kv_capacity_tokens
        concurrency = probe.max_concurrency
    finally:
        engine.stop()
    plan = plan_memory(
        config,
        ARGUMENTS,
        parallelism=Ranks(),
        device_memory_bytes=None,
        rules=platform_rules("cpu"),
        environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    seen = {
        "weights": memory.weights_bytes,
        "cache": memory.kv_cache_bytes,
        # a model without full attention reports no effective block size
        "block": plan.block_size_tokens if block is None else block,
        "tokens": tokens,
    }
    planned = {
        "weights": plan.weights_bytes,
        "cache": plan.kv_cache_bytes,
        "block": plan.block_size_tokens,
        "tokens": plan.kv_tokens,
    }
    assert planned == seen
    assert concurrency == pytest.approx(plan.max_concurrency)


def replace_directory(model: Any, directory: str) -> Any:
    return model.model_copy(update={"directory": directory})
