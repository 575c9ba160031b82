"""The format of a checkpoint's routed experts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k3perf.errors import UsageError


def expert_format(model_config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """``dense`` or ``mxfp4``. Raises UsageError for any other format."""
    quantization = text.get("quantization_config") or model_config.get("quantization_config")
    if not quantization:
        return "dense"
    described = str(quantization).lower()
    if "mxfp4" in described or (
        "float" in described and "'group_size': 32" in described and "'num_bits': 4" in described
    ):
        return "mxfp4"
    method = quantization.get("quant_method", quantization)
    raise UsageError(
        f"quantization_config {method!r} is not covered by the memory plan. Covered: none (BF16)"
        " and MXFP4 routed experts."
    )
