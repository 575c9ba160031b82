"""What decides the form of an engine's log. The harness reads the log, so it sets all
of it for a measured engine.

A caller's shell must not hide a line or change how it begins. Nothing here changes how
a request is computed, and none of it is part of the resolved configuration.
"""

from __future__ import annotations

from typing import Final

FIXED: Final[dict[str, str | None]] = {
    # vLLM's own logger
    "VLLM_CONFIGURE_LOGGING": "1",
    # at a higher level neither the JIT monitor's greeting nor its warnings are written
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_LOGGING_PREFIX": None,
    "VLLM_LOGGING_STREAM": "ext://sys.stdout",
    "VLLM_LOGGING_CONFIG_PATH": None,
    "VLLM_LOGGING_COLOR": "0",
    "NO_COLOR": None,
    "FORCE_COLOR": None,
    "CLICOLOR_FORCE": None,
    "PY_COLORS": None,
    "PYTHONUNBUFFERED": "1",
    "VLLM_LOG_STATS_INTERVAL": None,
    "VLLM_LOG_BATCHSIZE_INTERVAL": None,
    "VLLM_LOG_MODEL_INSPECTION": None,
    "VLLM_DISABLE_LOG_LOGO": None,
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": None,
    "VLLM_TRACE_FUNCTION": None,
    # lines of the compilers themselves
    "TRITON_PRINT_AUTOTUNING": None,  # 0 would keep vLLM's monitor from printing them
    "TILELANG_PRINT_ON_COMPILATION": "1",
    "FLASHINFER_LOGGING_LEVEL": "INFO",
    "TORCH_LOGS": None,
    "TORCH_LOGS_OUT": None,
    "TORCH_LOGS_FORMAT": None,
    "TQDM_DISABLE": None,  # FlashInfer's autotuner shows itself by its bar alone
    # Ray joins equal lines of several workers, and delays them
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_LOG_TO_DRIVER": None,
}
"""Variable to its value in every measured engine; None: removed. A target must not set
them.
"""
