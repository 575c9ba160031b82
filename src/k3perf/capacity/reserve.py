"""What a GPU rank holds beside its weights and its KV cache, part by part, from the
model's shape and the arguments. Pure.

vLLM sizes the cache as utilisation x the memory that CUDA offers, less the weights,
less these parts (``v1/worker/gpu_worker.py``, ``determine_available_memory``). The
workspace of the experts follows from the sources and was met to the byte; the constants
of the other parts (``rules.ReserveRules``) were read once, on an H200, and hold for
every model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from k3perf.capacity.rules import PlatformRules, dtype_bytes
from k3perf.capacity.shape import ModelShape, Ranks, stage_layers
from k3perf.capacity.weights import WeightContext, padded_expert_width
from k3perf.units import GIB

_DEFAULT_UTILISATION: Final = 0.92  # config/cache.py, gpu_memory_utilization
# engine/arg_utils.py, defaults of an API server by the device's memory: at least this
# many GiB, tokens of a step, sequences.
_STEP_DEFAULTS: Final = ((160, 16384, 1024), (70, 8192, 1024), (0, 2048, 256))
_LARGEST_CAPTURE: Final = (
    # config/vllm.py, _set_cudagraph_sizes; devices of capability 10 capture up to 1024
    512
)


@dataclass(frozen=True, slots=True)
class EngineStep:
    """The largest step that the engine profiles: tokens, and sequences that are sampled
    in it.
    """

    tokens: int
    sequences: int


def largest_step(
    given: Mapping[str, Any], device_memory_bytes: int | None, maximum_context_tokens: int
) -> EngineStep:
    """The step of the arguments; what is not given is vLLM's default for a device of
    this memory (unknown: the smallest device's).

    Without chunked prefill a step takes a whole prompt:
    ``_set_default_max_num_seqs_and_batched_tokens_args`` of ``engine/arg_utils.py``.
    """
    size_gib = (device_memory_bytes or 0) / GIB
    _, tokens, sequences = next(row for row in _STEP_DEFAULTS if size_gib >= row[0])
    doubled = 2 if given.get("performance_mode") == "throughput" else 1
    sequences = int(given.get("max_num_seqs") or doubled * sequences)
    if given.get("max_num_batched_tokens"):
        tokens = int(given["max_num_batched_tokens"])
    else:
        tokens *= doubled
        if given.get("enable_chunked_prefill") is False:
            tokens = max(tokens, maximum_context_tokens)
        tokens = min(tokens, sequences * maximum_context_tokens)
    return EngineStep(
        tokens, min(sequences, tokens)
    )  # vLLM refuses more sequences than tokens that were both asked for


def context_tokens(shape: ModelShape, given: Mapping[str, Any]) -> int:
    """The longest sequence that the engine takes: the argument's, else what the model
    allows.
    """
    return int(given.get("max_model_len") or shape.maximum_positions)


def reserve_parts(
    context: WeightContext, given: Mapping[str, Any], device_memory_bytes: int | None
) -> dict[str, int]:
    """Bytes by part of one rank; empty on a platform whose cache is not what is left
    over (the CPU).
    """
    rules = context.rules.reserve
    if rules is None:
        return {}
    step = largest_step(given, device_memory_bytes, context_tokens(context.shape, given))
    layers = max(
        len(stage)
        for stage in stage_layers(len(context.shape.layers), context.parallelism.pipeline)
    )
    captured = capture_count(given, step)
    return {
        "activations": (rules.live_hidden_states + residual_blocks(context.shape))
        * _hidden_state_bytes(context.shape, step),
        "expert_workspace": expert_workspace_bytes(context, step),
        "graphs": (rules.graph_base_bytes + captured * layers * rules.graph_layer_bytes)
        if captured
        else 0,
        "libraries": rules.library_bytes,
    }


def residual_blocks(shape: ModelShape) -> int:
    """Hidden states that residual attention keeps through the whole forward pass, one a
    block of layers (0 without it).

    ``num_attn_res_blocks`` of ``models/kimi_k3/nvidia/model.py``.
    """
    return -(-len(shape.layers) // shape.residual_block_layers) if shape.residual_attention else 0


def expert_workspace_bytes(context: WeightContext, step: EngineStep) -> int:
    """Both workspaces of the modular expert kernels, which stay allocated
    (``v1/worker/workspace.py``).

    tokens x experts a token x (max(columns, width) + max(2 x columns, width)) values of
    the activations' dtype: ``workspace_shapes`` of ``fused_moe/experts/triton_moe.py``;
    ``marlin_moe.py`` asks for the same.
    """
    experts = context.shape.experts
    if experts is None:
        return 0
    parallelism = context.parallelism
    columns = experts.intermediate
    if not parallelism.expert:
        columns = padded_expert_width(context, experts) // (parallelism.tensor * parallelism.data)
    values = max(columns, experts.hidden) + max(2 * columns, experts.hidden)
    return step.tokens * experts.active_count * values * context.width


def capture_count(given: Mapping[str, Any], step: EngineStep) -> int:
    """CUDA graphs that the engine captures by default: piecewise ones of every size,
    and whole ones of those that a decode step can have.

    Sizes 1, 2, 4, then every 8 up to 256 and every 16 beyond, up to twice the sequences
    (``config/vllm.py``, ``_set_cudagraph_sizes``). 0 when the arguments switch graphs
    off.
    """
    compilation = given.get("compilation_config")
    mode = compilation.get("cudagraph_mode") if isinstance(compilation, Mapping) else None
    if given.get("enforce_eager") or mode == "NONE":
        return 0
    largest = min(2 * step.sequences, _LARGEST_CAPTURE, step.tokens)
    grid: tuple[int, ...] = (
        1,
        2,
        4,
        *range(8, min(largest + 1, 256), 8),
        *range(256, largest + 1, 16),
    )
    sizes = [size for size in grid if size <= largest]
    return len(sizes) + sum(size <= step.sequences for size in sizes)


def requested_bytes(
    given: Mapping[str, Any], device_memory_bytes: int, rules: PlatformRules
) -> int:
    """What the engine asks for in all: its share of the memory that the device's
    runtime offers, rounded up (``request_memory``).
    """
    share = float(given.get("gpu_memory_utilization", _DEFAULT_UTILISATION))
    return math.ceil(share * (device_memory_bytes - rules.withheld_bytes))


def spread_over(parallelism: Ranks) -> bool:
    """Whether ranks talk to each other, which takes buffers that nothing here
    counts.
    """
    return parallelism.tensor * parallelism.pipeline * parallelism.data > 1


def _hidden_state_bytes(shape: ModelShape, step: EngineStep) -> int:
    return step.tokens * shape.hidden * dtype_bytes(shape.dtype)
