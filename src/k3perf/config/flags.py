"""A key of the resolved configuration to the flag of ``vllm serve`` that sets it, and
back. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from k3perf.config.arguments import shipped_table

_OTHER_NAMES: Final = {
    "cache_config.cache_dtype": "kv_cache_dtype",
    "cache_config.effective_attention_block_size": "block_size",
    "cache_config.swap_space_bytes": "swap_space",
    "scheduler_config.policy": "scheduling_policy",
    "attention_config.backend": "attention_backend",
    "backend.attention": "attention_backend",
    "parallel_config.backend": "data_parallel_backend",
    "load_config.load_format": "load_format",
}
_WHOLE: Final = ("speculative_config", "compilation_config", "kv_transfer_config")
"""Sections that one flag gives as a mapping."""

_READ_BACK: Final = (
    "cache_config.block_size",
    "cache_config.cache_dtype",
    "cache_config.enable_prefix_caching",
    "cache_config.gpu_memory_utilization",
    "model_config.dtype",
    "model_config.enforce_eager",
    "model_config.max_model_len",
    "model_config.quantization",
    "parallel_config.data_parallel_size",
    "parallel_config.enable_expert_parallel",
    "parallel_config.pipeline_parallel_size",
    "parallel_config.tensor_parallel_size",
    "scheduler_config.enable_chunked_prefill",
    "scheduler_config.max_num_batched_tokens",
    "scheduler_config.max_num_seqs",
)
"""Keys that are worth a flag when only a server's resolved configuration is known."""


def flag_of(key: str) -> str:
    """``--max-num-seqs`` for ``scheduler_config.max_num_seqs``. Empty where no flag
    sets the key.
    """
    section, _, rest = key.partition(".")
    if section in ("version", "env"):
        return ""
    leaf = rest.rpartition(".")[2] or section
    name = _OTHER_NAMES.get(key) or (leaf if leaf in shipped_table().arguments else "")
    if not name and section in _WHOLE:
        name = section
    return f"--{name.replace('_', '-')}" if name else ""


def arguments_of(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that give the main values of a resolved configuration. A value of None
    is a default and gives none.
    """
    found = {}
    for key in _READ_BACK:
        value = resolved.get(key)
        if value is not None:
            found[flag_of(key).removeprefix("--").replace("-", "_")] = (
                value.removeprefix("torch.") if isinstance(value, str) else value
            )
    return found
