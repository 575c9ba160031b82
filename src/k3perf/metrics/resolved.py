"""Server-info JSON -> a flat dict of the values that decide speed or memory (the lock),
and the readable difference of two such dicts.

The lock holds what a change can decide, each key with its reason: whole sections,
single keys of other sections, versions. The machine's part is the environment
(``metrics.environment``). Pure: reads no server and no file. A missing section is an
error of the reading, not an empty dict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from k3perf.records.verdict import ConfigDifference

# Sections of ``vllm_config`` in which every value counts unless it is in NOISE. A
# release's new keys are included automatically.
SECTIONS: Final[dict[str, str]] = {
    "cache_config": (
        "sizes, types and layout of the KV cache: how many tokens fit and how fast they are read"
    ),
    "scheduler_config": "which requests share a step, and how large a step is",
    "parallel_config": "how the model is split over ranks, and by what they exchange data",
    "compilation_config": "which graphs are compiled and captured",
    "attention_config": "the attention kernels",
    "kernel_config": "the other kernels, such as those of the experts",
    "mamba_config": "kernels and states of linear-attention layers",
    "offload_config": "what is moved to host memory",
    "speculative_config": "the drafting of tokens ahead",
    "lora_config": "adapters: memory for them, and work in each layer",
    "kv_transfer_config": "movement of the KV cache between engines",
}

# Sections from which single values count.
CHOSEN: Final[dict[str, dict[str, str]]] = {
    "model_config": {
        "dtype": "the width of weights and activations",
        "max_model_len": "the context length: the largest request and the size of its block table",
        "quantization": "the format of the weights and the kernels for it",
        "enforce_eager": "no compiled graphs at all",
        "logprobs_mode": "work after each step",
        "disable_sliding_window": "how much of the cache attention reads",
        "disable_cascade_attn": "whether shared prefixes are read once",
        "use_fp64_gumbel": "the precision of sampling",
        "model_impl": "vLLM's own model code or that of Transformers",
        "enable_sleep_mode": "another allocator for weights and cache",
        "enable_cumem_allocator": "another allocator for weights and cache",
        "generation_config": "default sampling parameters, which change the work of sampling",
    },
    "load_config": {"load_format": "dummy weights or those of a checkpoint"},
    "device_config": {"device": "the kind of device that computes"},
    "observability_config": {
        "jit_monitor_mode": "whether compiles in service are seen, and at what cost"
    },
}

TOP_LEVEL: Final[dict[str, str]] = {
    "optimization_level": "vLLM's preset for compilation",
    "performance_mode": "vLLM's preset for throughput or latency",
    "additional_config": "what a platform's plugin reads",
}

# Patterns (whole keys) of values that differ between starts or machines and decide
# nothing.
NOISE: Final[tuple[str, ...]] = (
    # ports, addresses, ids and ranks of this start
    r"parallel_config\.(.*_port|.*_port_list|.*_ip|master_addr|node_rank|rank|.*_rank|.*_rank_local|_api_process_.*|placement_group)",
    r"parallel_config\.(assigned_physical_gpu_ids|data_parallel_index|_.*)",
    r"kv_transfer_config\.(engine_id|.*_port|.*_ip|.*_rank)",
    # how the harness is attached
    r"parallel_config\.worker_extension_cls",
    # directories on this machine, and the results of compiling
    r"compilation_config\.(cache_dir|local_cache_dir|debug_dump_path|traced_files|compilation_time|encoder_compilation_time)",
    r"compilation_config\.(static_forward_context|static_all_moe_layers|enabled_custom_ops|disabled_custom_ops|bs_to_padded_graph_size)",
    # resolved twice under another name, or a private mark
    r"cache_config\._.*",
    # measured, not configured: gated as capacity metrics, with their own tolerance
    r"cache_config\.(num_gpu_blocks|num_cpu_blocks|kv_cache_size_tokens|kv_cache_max_concurrency)",
)

# Environment variables (``vllm_env``) that do not affect speed or memory.
ENVIRONMENT_NOISE: Final[tuple[str, ...]] = (
    r"VLLM_(ASSETS_CACHE|CACHE_ROOT|CONFIG_ROOT|MEDIA_CACHE|RPC_BASE_PATH|XLA_CACHE_PATH|DEBUG_DUMP_PATH|TUNED_CONFIG_FOLDER|PLUGINS)",
    r"VLLM_(HOST_IP|LOOPBACK_IP|PORT|NIXL_SIDE_CHANNEL_.*|EC_SIDE_CHANNEL_.*|MOONCAKE_BOOTSTRAP_PORT|P2P_SIDE_CHANNEL_PORT|DP_.*)",
    r"VLLM_(OBJECT_STORAGE_SHM_BUFFER_NAME|INSTANCE_ID|PROCESS_NAME_PREFIX|DIST_IDENT)",
    r"VLLM_(BUILD_.*|IMAGE_TAG|DOCKER_BUILD_CONTEXT|TARGET_DEVICE|TEST_.*|USE_PRECOMPILED.*|SKIP_PRECOMPILED_.*|SKIP_VERSION_SUFFIX)",
    r"VLLM_(LOGGING_.*|CONFIGURE_LOGGING|LOG_.*|DISABLE_LOG_LOGO|GC_DEBUG|TRACE_FUNCTION|USAGE_.*|NO_USAGE_STATS|DO_NOT_TRACK)",
    r"VLLM_(SERVER_DEV_MODE|ALLOW_INSECURE_SERIALIZATION|MEDIA_.*|IMAGE_.*|AUDIO_.*|VIDEO_.*|MAX_(AUDIO|IMAGE|EMBED|MEDIA)_.*)",
)

# Versions that an upgrade under test changes, from ``system_env`` and from the worker's
# identity.
LOCKED_VERSIONS: Final[dict[str, str]] = {
    "vllm": "the code that schedules and serves; its defaults are the configuration",
    "torch": "operators, allocator and compiler of the model's code",
    "triton": "compiles the kernels that vLLM writes in Triton",
    "flashinfer": "attention, sampling and expert kernels",
    "transformers": "model configuration and tokenizer; model code that vLLM lacks",
    "cuda": "the toolkit that torch was built with and carries: cuBLAS, cuDNN, NCCL",
}

_MEASURED: Final[dict[str, str]] = {
    "kv_capacity_tokens": "kv_cache_size_tokens",
    "kv_max_concurrency_ratio": "kv_cache_max_concurrency",
    "kv_block_count": "num_gpu_blocks",
    "block_size_tokens": "effective_attention_block_size",
}


class MissingSectionError(ValueError):
    """The server's answer lacks a required part. Its vLLM has another layout than this
    reader knows.
    """


ABSENT: Final = "(absent)"
"""Stands for a key that one side does not have; None is a value like any other."""


def resolved_config(
    server_info: Mapping[str, Any], identity: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Flat ``section.key`` -> value of everything that decides speed or memory, sorted
    by key.

    ``server_info`` is the JSON of ``/server_info?config_format=json``. ``identity`` has
    the worker's versions, which take precedence over the server's, and the backends
    that it chose where the configuration says "auto". Raises MissingSectionError if the
    cache or scheduler section is missing.
    """
    config = _config(server_info)
    flat: dict[str, Any] = {}
    for section in SECTIONS:
        _flatten(section, config.get(section), flat)
    for section, keys in CHOSEN.items():
        for key in keys:
            if key in (config.get(section) or {}):
                _flatten(f"{section}.{key}", config[section][key], flat)
    for key in TOP_LEVEL:
        if key in config:
            _flatten(key, config[key], flat)
    kept = {key: value for key, value in flat.items() if not _matches(key, NOISE)}
    # vLLM's own environment variables switch kernels, layouts and limits
    kept.update(_environment(server_info))
    kept.update(_versions(server_info, identity or {}))
    # the kernel that was chosen where the configuration says auto
    kept.update(
        {f"backend.{kind}": name for kind, name in ((identity or {}).get("backends") or {}).items()}
    )
    return dict(sorted(kept.items()))


def capacity_values(server_info: Mapping[str, Any]) -> dict[str, float | None]:
    """KV capacity as the engine resolved it: tokens, concurrency, blocks, effective
    block size. None: not offered.
    """
    cache = _config(server_info)["cache_config"]
    return {name: cache.get(key) for name, key in _MEASURED.items()}


def difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[ConfigDifference, ...]:
    """Every key that differs or that only one side has, sorted. Equal numbers of
    another type are equal (1 and 1.0).
    """
    keys = sorted(set(was) | set(now))
    return tuple(
        ConfigDifference(key, was.get(key, ABSENT), now.get(key, ABSENT))
        for key in keys
        if was.get(key, ABSENT) != now.get(key, ABSENT)
    )


def describe(differences: tuple[ConfigDifference, ...]) -> str:
    """One line per difference: ``key: was -> now``. Empty without differences."""
    return "\n".join(f"{item.key}: {item.was!r} -> {item.now!r}" for item in differences)


# Log lines in which vLLM says that it set a value: key pattern, line pattern.
FORCING: Final[tuple[tuple[str, str], ...]] = (
    (
        r"cache_config\.(block_size|mamba_block_size|effective_attention_block_size)",
        r"Setting attention block size to|requires block_size=",
    ),
    (
        r"cache_config\.(block_size|effective_attention_block_size)",
        r"Setting kv cache block size to",
    ),
    (r"cache_config\.mamba_page_size_padded", r"Padding mamba page size"),
    (r"cache_config\.mamba_cache_mode", r"Mamba cache mode is set to"),
    (r"scheduler_config\.max_num_batched_tokens", r"max_num_batched_tokens"),
    (r"scheduler_config\.async_scheduling", r"[Aa]synchronous scheduling"),
    (r"backend\.attention", r"Using \S+ attention backend"),
    (r"backend\.mla_prefill", r"Using \S+ MLA prefill backend"),
    (r"backend\.kda_(prefill|decode)", r"Using .* KDA (prefill|decode) backend"),
    (r"env\.VLLM_SSM_CONV_STATE_LAYOUT", r"Setting SSM conv state layout"),
)


def forced_by(key: str, log_lines: Iterable[str]) -> str:
    """The message of the last line of the engine's log that says why ``key`` has its
    value, or an empty string.
    """
    patterns = [line for pattern, line in FORCING if re.fullmatch(pattern, key)]
    found = ""
    for text in log_lines:
        if any(re.search(pattern, text) for pattern in patterns):
            found = text.rpartition("] ")[2].strip() if "] " in text else text.strip()
    return found


def _config(server_info: Mapping[str, Any]) -> Mapping[str, Any]:
    config = server_info.get("vllm_config")
    if not isinstance(config, Mapping):
        raise MissingSectionError(
            "server info has no JSON 'vllm_config'; ask the route with config_format=json, in dev"
            " mode"
        )
    for section in ("cache_config", "scheduler_config"):
        if not isinstance(config.get(section), Mapping):
            raise MissingSectionError(
                f"server info has no {section!r}; this vLLM release lays its configuration out"
                " differently"
            )
    return config


def _flatten(prefix: str, value: Any, into: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for key, part in value.items():
            _flatten(f"{prefix}.{key}", part, into)
    else:
        into[prefix] = value


def _environment(server_info: Mapping[str, Any]) -> dict[str, Any]:
    environment = server_info.get("vllm_env") or {}
    return {
        f"env.{key}": value
        for key, value in environment.items()
        if not _matches(key, ENVIRONMENT_NOISE)
    }


def _versions(server_info: Mapping[str, Any], identity: Mapping[str, Any]) -> dict[str, Any]:
    system = server_info.get("system_env") or {}
    found = {
        "vllm_version": system.get("vllm_version"),
        "torch_version": system.get("torch_version"),
        "cuda_version": system.get("cuda_compiled_version"),
    }
    found.update({key: value for key, value in identity.items() if value is not None})
    return {f"version.{name}": found.get(f"{name}_version") for name in LOCKED_VERSIONS}


def _matches(key: str, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, key) for pattern in patterns)
