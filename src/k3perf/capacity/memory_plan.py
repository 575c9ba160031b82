"""``config.json`` and engine arguments -> the memory plan: weights, cache, capacity,
and whether it fits. Pure; no device is asked.

Exact: weights of the covered families, block size, bytes per token, state, and KV
tokens once the cache's size is given. Estimated, and said so in ``notes``: on a GPU,
what activations, graphs and libraries take (``reserve.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from k3perf.capacity.cache_layout import CacheLayout, CacheRequest, cache_layout
from k3perf.capacity.reserve import (
    context_tokens,
    largest_step,
    requested_bytes,
    reserve_parts,
    spread_over,
)
from k3perf.capacity.rules import PlatformRules
from k3perf.capacity.shape import ModelShape, Ranks, model_shape, stage_layers
from k3perf.capacity.weights import WeightContext, stage_weights
from k3perf.errors import UsageError
from k3perf.units import GIB


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What one rank will hold, worst stage first where stages differ.

    ``kv_budget_bytes`` None: neither the device's memory nor the cache's size is known,
    so tokens, concurrency and ``fits`` are unknown too. ``headroom_bytes`` is what is
    left after one request of the full context; negative: what is missing.
    ``reserve_bytes_by_part`` is what the rank holds beside weights and cache; empty
    where the cache's size is given outright.
    """

    weights_bytes: int
    weights_bytes_by_part: dict[str, int]
    weights_bytes_by_stage: tuple[int, ...]
    reserve_bytes_by_part: dict[str, int]
    kv_bytes_per_token: int
    state_bytes_per_sequence: int
    block_size_tokens: int
    requested_block_size_tokens: int | None
    page_bytes: int
    kv_budget_bytes: int | None
    kv_cache_bytes: int | None
    kv_block_count: int | None
    kv_tokens: int | None
    max_concurrency: float | None
    maximum_context_tokens: int
    fits: bool | None
    headroom_bytes: int | None
    notes: tuple[str, ...]


def plan_memory(
    model_config: Mapping[str, Any],
    arguments: Mapping[str, Any],
    *,
    parallelism: Ranks,
    device_memory_bytes: int | None,
    rules: PlatformRules,
    environment: Mapping[str, str] | None = None,
    reserve_bytes: int | None = None,
) -> MemoryPlan:
    """Predict one rank's memory.

    ``arguments``: by name, with dashes or underscores. ``environment``: the engine's,
    for ``VLLM_CPU_KVCACHE_SPACE``. ``reserve_bytes`` replaces the estimated reserve.
    Raises UsageError for a model, dtype or split that is not covered.
    """
    given = {str(key).replace("-", "_"): value for key, value in arguments.items()}
    refuse_unknown_arguments(given)
    shape = _with_dtype(model_shape(model_config), given)
    one_step_at_once = rules.name == "cpu" or given.get("async_scheduling") is False
    request = cache_request(shape, given, device_memory_bytes, one_step_at_once=one_step_at_once)
    layout = cache_layout(shape, request, parallelism, rules)
    context = WeightContext(shape, parallelism, rules)
    stages = _stage_parts(context)
    totals = tuple(sum(parts.values()) for parts in stages)
    budget = given_cache_bytes(given, environment or {})
    reserve: dict[str, int] = {}
    if budget is None:
        reserve = _reserve_of(context, given, device_memory_bytes, reserve_bytes)
    if budget is None and device_memory_bytes is not None:
        held = max(totals) + sum(reserve.values())
        budget = requested_bytes(given, device_memory_bytes, rules) - held
    blocks = None if budget is None else max(0, budget // layout.block_bytes)
    tokens, concurrency = (None, None) if blocks is None else layout.tokens(blocks)
    headroom = None if budget is None else budget - layout.needed_bytes
    notes = _cache_notes(shape, request, layout)
    notes += _reserve_notes(context, reserve, known=budget is not None)
    return MemoryPlan(
        weights_bytes=max(totals),
        weights_bytes_by_part=_worst_stage(stages),
        weights_bytes_by_stage=totals,
        reserve_bytes_by_part=reserve,
        kv_bytes_per_token=layout.bytes_per_token,
        state_bytes_per_sequence=layout.state_bytes_per_sequence,
        block_size_tokens=layout.block_size_tokens,
        requested_block_size_tokens=layout.requested_block_size_tokens,
        page_bytes=layout.page_bytes,
        kv_budget_bytes=budget,
        kv_cache_bytes=None if blocks is None else blocks * layout.block_bytes,
        kv_block_count=blocks,
        kv_tokens=tokens,
        max_concurrency=concurrency,
        maximum_context_tokens=request.maximum_context_tokens,
        fits=None if headroom is None else headroom >= 0,
        headroom_bytes=headroom,
        notes=tuple(notes),
    )


def cache_request(
    shape: ModelShape,
    given: Mapping[str, Any],
    device_memory_bytes: int | None = None,
    *,
    one_step_at_once: bool = False,
) -> CacheRequest:
    """The cache's part of the engine arguments. Prefix caching is on unless switched
    off (config/cache.py).

    ``one_step_at_once``: the engine schedules no step while another runs. Else a layer
    with a window keeps the tokens of two (``VllmConfig.max_in_flight_tokens``).
    """
    attention = given.get("attention_config") or {}
    speculative = given.get("speculative_config") or {}
    block = given.get("block_size")
    context = context_tokens(shape, given)
    return CacheRequest(
        cache_dtype=str(given.get("kv_cache_dtype") or "auto"),
        block_size_tokens=None if block is None else int(block),
        prefix_caching=bool(given.get("enable_prefix_caching", True)),
        maximum_context_tokens=context,
        attention_backend=given.get("attention_backend") or attention.get("backend"),
        state_dtype=str(given.get("mamba_ssm_cache_dtype") or "auto"),
        speculative_tokens=int(speculative.get("num_speculative_tokens") or 0),
        in_flight_tokens=(1 if one_step_at_once else 2)
        * largest_step(given, device_memory_bytes, context).tokens,
    )


def given_cache_bytes(given: Mapping[str, Any], environment: Mapping[str, str]) -> int | None:
    """The cache's size where it is given outright, as an argument or by
    ``VLLM_CPU_KVCACHE_SPACE`` in GiB; None: it is what is left over.
    """
    explicit = given.get("kv_cache_memory_bytes")
    if explicit is not None:
        return int(explicit)
    space = environment.get("VLLM_CPU_KVCACHE_SPACE")
    return None if space is None else int(float(space) * GIB)


def _with_dtype(shape: ModelShape, given: Mapping[str, Any]) -> ModelShape:
    asked = given.get("dtype")
    if asked in (None, "auto"):
        return shape
    return replace(shape, dtype=str(asked))


def _reserve_of(
    context: WeightContext,
    given: Mapping[str, Any],
    device_memory_bytes: int | None,
    reserve_bytes: int | None,
) -> dict[str, int]:
    """The reserve by part: the given one, else the estimate."""
    if reserve_bytes is not None:
        return {"given": reserve_bytes}
    return reserve_parts(context, given, device_memory_bytes)


def _worst_stage(stages: list[dict[str, int]]) -> dict[str, int]:
    """The parts of the first of the largest stages, without empty ones."""
    worst = max(stages, key=lambda parts: sum(parts.values()))
    return dict(sorted((name, size) for name, size in worst.items() if size))


def _stage_parts(context: WeightContext) -> list[dict[str, int]]:
    stages = stage_layers(len(context.shape.layers), context.parallelism.pipeline)
    last = len(stages) - 1
    return [
        dict(stage_weights(context, layers, first=index == 0, last=index == last))
        for index, layers in enumerate(stages)
    ]


def _cache_notes(shape: ModelShape, request: CacheRequest, layout: CacheLayout) -> list[str]:
    notes = []
    asked = request.block_size_tokens
    if asked is not None and asked != layout.block_size_tokens:
        notes.append(
            f"block size {asked} was requested; the engine will use {layout.block_size_tokens}"
        )
    if shape.is_hybrid:
        padding = layout.page_bytes - layout.state_page_bytes
        notes.append(
            f"one page must hold one state: {padding} of {layout.page_bytes} bytes of a state's"
            " page are padding"
        )
    return notes


def _reserve_notes(context: WeightContext, reserve: Mapping[str, int], *, known: bool) -> list[str]:
    notes = []
    if not known:
        notes.append(
            "the device's memory is not known: KV tokens, concurrency and fit are not predicted"
        )
    elif reserve and "given" not in reserve:
        size = sum(reserve.values())
        notes.append(
            f"{size} bytes next to weights and cache are estimated; give the measured figure with"
            " --reserve-bytes to be exact"
        )
        if spread_over(context.parallelism):
            notes.append("buffers for the exchange between ranks are not counted")
    if not context.rules.measured:
        notes.append(
            f"the rules of {context.rules.name} are read from vLLM's sources and were never"
            " compared with a device"
        )
    if context.shape.has_vision:
        notes.append("the vision tower's weights are not counted")
    return notes


def refuse_unknown_arguments(given: Mapping[str, Any]) -> None:
    """Arguments that change memory and that the plan cannot follow are refused instead
    of being ignored, and so are values of another kind.
    """
    for key in ("enable_chunked_prefill", "enable_prefix_caching", "enforce_eager"):
        if given.get(key) is not None and not isinstance(given[key], bool):
            raise UsageError(
                f"{key} {given[key]!r} is neither true nor false; write for example --set"
                f" {key}=false."
            )
    for key in (
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "block_size",
        "kv_cache_memory_bytes",
    ):
        size = given.get(key)
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise UsageError(
                f"{key} {size!r} is not a number of 1 or more; the plan needs the size itself, not"
                " what the engine would choose."
            )
    share = given.get("gpu_memory_utilization")
    if share is not None and (
        isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1
    ):
        raise UsageError(f"gpu_memory_utilization {share!r} is not a share above 0 and up to 1.")
    for key in (
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
        "num_gpu_blocks_override",
        "cpu_offload_gb",
    ):
        value = given.get(key)
        if value not in (None, 0, 1):
            raise UsageError(
                f"{key} {value!r} is not covered by the memory plan; leave it out to plan"
                " without it."
            )
    if given.get("quantization") is not None:
        raise UsageError(
            f"quantization {given['quantization']!r} at load time is not covered by the memory"
            " plan; plan the checkpoint's own format."
        )
