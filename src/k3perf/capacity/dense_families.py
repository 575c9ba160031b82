"""What sets the dense and grouped-query families apart: biases, norms, sinks, windows.
Pure.

Sources are vLLM's ``llama.py``, ``qwen2.py``, ``qwen3.py`` and ``gpt_oss.py`` of
``model_executor/models``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

QWEN3: Final = ("qwen3", "qwen3_moe")
DENSE: Final = ("llama", "mistral", "qwen2")
GPT_OSS: Final = "gpt_oss"
GROUPED: Final = (*QWEN3, *DENSE, GPT_OSS)


def normalises_query_and_key(family: str) -> bool:
    """Each head's query and key have a norm."""
    return family in (*QWEN3, "qwen3_next")


def has_query_bias(family: str, text: Mapping[str, Any]) -> bool:
    """The projections to query, key and value have a bias."""
    if family in ("qwen2", GPT_OSS):
        return True
    named = text.get("attention_bias") or text.get("qkv_bias")
    return family in ("llama", "mistral", *QWEN3) and bool(named)


def has_output_bias(family: str, text: Mapping[str, Any]) -> bool:
    """The attention's output projection has a bias."""
    if family in ("llama", "mistral"):
        return bool(text.get("attention_bias"))
    return family == GPT_OSS


def window_tokens(family: str, text: Mapping[str, Any], index: int) -> int:
    """Tokens that the layer ``index`` attends to, counted back. 0: all of them."""
    window = int(text.get("sliding_window") or 0)
    if family == GPT_OSS:
        return window if index % 2 == 0 else 0
    if family == "mistral":
        return window
    if family in ("qwen2", *QWEN3) and text.get("use_sliding_window"):
        kinds = text.get("layer_types")
        if kinds:
            return window if kinds[index] == "sliding_attention" else 0
        return window if index >= int(text.get("max_window_layers") or 0) else 0
    return 0
