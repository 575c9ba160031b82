from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from k3perf.metrics.resolved import (
    ABSENT,
    MissingSectionError,
    capacity_values,
    describe,
    difference,
    forced_by,
    resolved_config,
)

RECORDED = json.loads(
    (Path(__file__).parent / "server_info_0_32_0_cpu.json").read_text(encoding="utf-8")
)


@pytest.fixture
def info() -> dict[str, Any]:
    return copy.deepcopy(RECORDED)


@pytest.mark.parametrize(
    "key",
    [
        "cache_config.block_size",
        "cache_config.cache_dtype",
        "cache_config.kv_cache_layout",
        "cache_config.enable_prefix_caching",
        "cache_config.prefix_match_unit",
        "cache_config.gpu_memory_utilization",
        "scheduler_config.max_num_batched_tokens",
        "scheduler_config.max_num_seqs",
        "scheduler_config.enable_chunked_prefill",
        "scheduler_config.policy",
        "scheduler_config.async_scheduling",
        "compilation_config.mode",
        "compilation_config.cudagraph_capture_sizes",
        "attention_config.backend",
        "kernel_config.moe_backend",
        "parallel_config.tensor_parallel_size",
        "parallel_config.enable_expert_parallel",
        "model_config.dtype",
        "model_config.enforce_eager",
        "env.VLLM_USE_FLASHINFER_SAMPLER",
        "env.VLLM_CPU_KVCACHE_SPACE",
        "version.vllm",
        "version.torch",
    ],
)
def test_what_decides_speed_or_memory_is_in(info: dict[str, Any], key: str) -> None:
    assert key in resolved_config(info)


@pytest.mark.parametrize(
    "path",
    [
        ("vllm_config", "parallel_config", "data_parallel_master_port"),
        ("vllm_config", "parallel_config", "master_port"),
        ("vllm_config", "parallel_config", "data_parallel_rpc_port"),
        ("vllm_config", "parallel_config", "_data_parallel_master_port_list"),
        ("vllm_config", "parallel_config", "worker_extension_cls"),
        ("vllm_config", "compilation_config", "cache_dir"),
        ("vllm_config", "compilation_config", "compilation_time"),
        ("vllm_config", "instance_id"),
        ("vllm_config", "model_config", "model"),
        ("vllm_config", "model_config", "served_model_name"),
        ("vllm_config", "cache_config", "num_gpu_blocks"),
        ("vllm_env", "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME"),
        ("vllm_env", "VLLM_CACHE_ROOT"),
        ("vllm_env", "VLLM_DP_MASTER_PORT"),
        ("vllm_env", "VLLM_LOGGING_LEVEL"),
        ("system_env", "pip_packages"),
    ],
)
def test_noise_does_not_change_the_result(info: dict[str, Any], path: tuple[str, ...]) -> None:
    before = resolved_config(info)
    place = info
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = "something else"
    assert difference(before, resolved_config(info)) == ()


def test_one_changed_default_is_one_readable_difference(info: dict[str, Any]) -> None:
    before = resolved_config(info)
    info["vllm_config"]["scheduler_config"]["max_num_batched_tokens"] = 16384
    changed = difference(before, resolved_config(info))
    assert describe(changed) == "scheduler_config.max_num_batched_tokens: 2048 -> 16384"


def test_a_key_that_a_release_adds_or_drops_is_a_difference(info: dict[str, Any]) -> None:
    before = resolved_config(info)
    info["vllm_config"]["cache_config"]["shiny_new_default"] = True
    del info["vllm_config"]["scheduler_config"]["policy"]
    changed = difference(before, resolved_config(info))
    assert [(item.key, item.was, item.now) for item in changed] == [
        ("cache_config.shiny_new_default", ABSENT, True),
        ("scheduler_config.policy", "fcfs", ABSENT),
    ]


def test_the_workers_own_versions_win(info: dict[str, Any]) -> None:
    seen = resolved_config(
        info, {"vllm_version": "9.9", "flashinfer_version": "0.6", "torch_version": None}
    )
    assert seen["version.vllm"] == "9.9"
    assert seen["version.flashinfer"] == "0.6"
    assert seen["version.torch"] == "2.13.0+cpu"
    assert seen["version.triton"] is None


def test_capacity_is_the_engines_own_account(info: dict[str, Any]) -> None:
    assert capacity_values(info) == {
        "kv_capacity_tokens": 516096,
        "kv_max_concurrency_ratio": 126.0,
        "kv_block_count": 1638,
        "block_size_tokens": 640,
    }
    del info["vllm_config"]["cache_config"]["kv_cache_size_tokens"]
    assert capacity_values(info)["kv_capacity_tokens"] is None


@pytest.mark.parametrize(
    "broken", [{}, {"vllm_config": "text"}, {"vllm_config": {"cache_config": {}}}]
)
def test_another_layout_is_an_error_and_no_empty_result(broken: dict[str, Any]) -> None:
    with pytest.raises(MissingSectionError):
        resolved_config(broken)


def test_everything_is_plain_json(info: dict[str, Any]) -> None:
    seen = resolved_config(info)
    assert json.loads(json.dumps(seen)) == seen
    assert list(seen) == sorted(seen)


def test_chosen_backends_are_part_of_the_configuration(info: dict[str, Any]) -> None:
    before = resolved_config(info, {"backends": {"attention": "FLASHMLA"}})
    after = resolved_config(info, {"backends": {"attention": "TRITON_MLA"}})
    assert describe(difference(before, after)) == "backend.attention: 'FLASHMLA' -> 'TRITON_MLA'"


LOG = """\
(EngineCore pid=1) INFO 11-29 14:46:01 [interface.py:776] Setting kv cache block size to 64 for FLASHMLA backend(s).
(EngineCore pid=1) INFO 11-29 14:46:02 [interface.py:1108] Setting attention block size to 768 tokens to ensure that attention page size is >= mamba page size.
(EngineCore pid=1) INFO 11-29 14:46:03 [cuda.py:508] Using FLASHMLA attention backend out of potential backends: ['FLASHMLA', 'TRITON_MLA'].
(EngineCore pid=1) INFO 11-29 14:46:04 [kda.py:523] Using FlashKDA KDA prefill backend.
""".splitlines()


@pytest.mark.parametrize(
    ("key", "start"),
    [
        ("cache_config.block_size", "Setting attention block size to 768 tokens"),
        ("backend.attention", "Using FLASHMLA attention backend out of"),
        ("backend.kda_prefill", "Using FlashKDA KDA prefill backend."),
        ("cache_config.mamba_cache_mode", ""),
        ("scheduler_config.max_num_seqs", ""),
    ],
)
def test_who_forced_a_value_if_the_log_says(key: str, start: str) -> None:
    seen = forced_by(key, LOG)
    assert seen.startswith(start)
    assert bool(seen) == bool(start)


def test_keys_that_a_release_does_not_have_are_left_out(info: dict[str, Any]) -> None:
    config = info["vllm_config"]
    key = next(name for name in config if name == "optimization_level")
    del config[key]
    gone = next(name for name in ("load_format",) if name in config["load_config"])
    del config["load_config"][gone]
    found = resolved_config(info)
    assert "optimization_level" not in found
    assert "load_config.load_format" not in found
