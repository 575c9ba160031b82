"""Model shape, arguments and parallelism -> how vLLM lays the KV cache out: forced
block size, page, groups, tokens. Pure.

Follows vLLM's ``platforms/interface.py`` (``_align_hybrid_block_size``),
``v1/kv_cache_interface.py`` (page sizes), ``v1/core/kv_cache_planning.py`` (groups,
bytes a block) and ``v1/core/kv_cache_utils.py`` (capacity).
"""

from __future__ import annotations

from dataclasses import dataclass

from k3perf.capacity.rules import BACKEND_BLOCK_TOKENS, PlatformRules, dtype_bytes
from k3perf.capacity.shape import (
    LINEAR,
    Attention,
    ModelShape,
    Ranks,
    kv_heads,
    split,
    stage_layers,
)

# the recurrent state is float32 unless mamba_ssm_cache_dtype says otherwise
_STATE_BYTES = 4
_FEW_MORE = (
    # vLLM takes the larger bucket as group size when it is less than half again as
    # large
    1.5
)


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """The arguments that decide the cache, in vLLM's own words, already resolved to
    values.
    """

    cache_dtype: str = "auto"
    block_size_tokens: int | None = None
    prefix_caching: bool = True
    maximum_context_tokens: int = 0
    attention_backend: str | None = None
    state_dtype: str = "auto"
    speculative_tokens: int = 0
    in_flight_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The layout of one rank.

    ``bytes_per_token`` counts every attending layer of the rank;
    ``state_bytes_per_sequence`` every linear layer's state, unpadded; ``page_bytes`` is
    one layer's block; ``block_bytes`` what one block id costs in the fullest stage;
    ``blocks_per_request`` what one request of the full context holds.
    """

    block_size_tokens: int
    requested_block_size_tokens: int | None
    maximum_context_tokens: int
    page_bytes: int
    state_page_bytes: int
    bytes_per_token: int
    state_bytes_per_sequence: int
    group_layer_counts: tuple[int, ...]
    block_bytes: int
    blocks_per_request: int

    @property
    def needed_bytes(self) -> int:
        """The cache of one request of the full context. One block id is the null block
        (``v1/core/block_pool.py``).
        """
        return (self.blocks_per_request + 1) * self.block_bytes

    def tokens(self, block_count: int) -> tuple[int, float]:
        """Capacity in tokens and concurrency at full context of ``block_count`` blocks
        (``get_kv_cache_capacity``).
        """
        concurrency = block_count / self.blocks_per_request
        return int(concurrency * self.maximum_context_tokens), concurrency


def cache_layout(
    shape: ModelShape, request: CacheRequest, parallelism: Ranks, rules: PlatformRules
) -> CacheLayout:
    """Lay the cache of one rank out. Raises UsageError when heads do not divide or a
    dtype is unknown.
    """
    token_bytes = token_page_bytes(shape, request, parallelism)
    state_bytes = state_page_bytes(shape, request, parallelism)
    block = block_size_tokens(shape, request, rules, token_bytes, state_bytes)
    groups = group_layers(shape)
    stages = stage_layers(len(shape.layers), parallelism.pipeline)
    fullest = max(len(set(group) & set(stage)) for group in groups for stage in stages)
    attending = [
        sum(shape.layers[index].attention not in LINEAR for index in stage) for stage in stages
    ]
    linear = [len(stage) - count for stage, count in zip(stages, attending, strict=True)]
    page = block * token_bytes
    attending_blocks = sum(
        _attending_blocks(request, block, shape.layers[group[0]].window_tokens)
        for group in groups
        if shape.layers[group[0]].attention not in LINEAR
    )
    return CacheLayout(
        block_size_tokens=block,
        requested_block_size_tokens=request.block_size_tokens,
        maximum_context_tokens=request.maximum_context_tokens,
        page_bytes=page,
        state_page_bytes=state_bytes,
        bytes_per_token=max(attending) * token_bytes,
        state_bytes_per_sequence=max(linear) * state_bytes,
        group_layer_counts=tuple(len(group) for group in groups),
        block_bytes=fullest * page,
        blocks_per_request=attending_blocks + _state_blocks(shape, request, rules, groups),
    )


def token_page_bytes(shape: ModelShape, request: CacheRequest, parallelism: Ranks) -> int:
    """Bytes of one token in one attending layer of one rank.

    Grouped-query: 2 x heads x width. Latent: one vector of latent rank + rotary width,
    the same on every rank; ``fp8_ds_mla`` packs it with its scales into 656 bytes.
    """
    full = shape.full
    if shape.count(Attention.LATENT):
        if request.cache_dtype == "fp8_ds_mla":
            return 656
        return full.head_dim * _cache_bytes(shape, request)
    return (
        2
        * kv_heads(full.kv_heads, parallelism.tensor)
        * full.head_dim
        * _cache_bytes(shape, request)
    )


def state_page_bytes(shape: ModelShape, request: CacheRequest, parallelism: Ranks) -> int:
    """Bytes of one sequence's state in one linear layer of one rank; 0 without linear
    layers.

    Convolution: (2 x key + value width) x (kernel - 1 + speculated tokens) in the
    model's dtype; recurrence: value heads x value width x key width in float32
    (``MambaStateShapeCalculator.kda_state_shape`` and ``gated_delta_net_state_shape``).
    """
    linear = shape.linear
    if linear is None:
        return 0
    mixed = 2 * linear.key_heads * linear.key_dim + linear.value_heads * linear.value_dim
    kept = linear.conv_kernel - 1 + request.speculative_tokens
    convolution = (
        split(mixed, parallelism.tensor, "convolution width") * kept * dtype_bytes(shape.dtype)
    )
    heads = split(linear.value_heads, parallelism.tensor, "linear value heads")
    element = _STATE_BYTES if request.state_dtype == "auto" else dtype_bytes(request.state_dtype)
    return convolution + heads * linear.value_dim * linear.key_dim * element


def block_size_tokens(
    shape: ModelShape,
    request: CacheRequest,
    rules: PlatformRules,
    token_bytes: int,
    state_bytes: int,
) -> int:
    """The effective block size, which on a hybrid is forced up until one page holds one
    state (``_align_hybrid_block_size``).
    """
    latent = shape.count(Attention.LATENT) > 0
    base, kernel = _base_block(request, rules, latent=latent)
    if not shape.is_hybrid:
        return base
    alignment = max(kernel, base)
    if latent:
        alignment = max(alignment, rules.latent_hybrid_alignment_tokens)
    forced = alignment * -(-state_bytes // (alignment * token_bytes))
    return kernel * -(-forced // kernel)


def group_layers(shape: ModelShape) -> tuple[tuple[int, ...], ...]:
    """Layers that share a block table, over the whole model
    (``_get_kv_cache_groups_uniform_page_size``).

    Attending and linear layers, and those with a window, are cut into groups of one
    size; the layers of a kind are dealt out in turn.
    """
    kinds: dict[tuple[bool, int], list[int]] = {}
    for index, layer in enumerate(shape.layers):
        kinds.setdefault((layer.attention in LINEAR, layer.window_tokens), []).append(index)
    buckets = list(kinds.values())
    fewest, most = min(map(len, buckets)), max(map(len, buckets))
    size = most if most < fewest * _FEW_MORE else fewest
    groups: list[tuple[int, ...]] = []
    for bucket in buckets:
        count = -(-len(bucket) // size)
        groups.extend(tuple(bucket[start::count]) for start in range(count))
    return tuple(groups)


def _attending_blocks(request: CacheRequest, block: int, window_tokens: int) -> int:
    """Blocks of one request in one group. A window keeps what it spans and the steps in
    flight, and one block since it may begin inside one
    (``SlidingWindowSpec.max_admission_blocks_per_request``).
    """
    tokens = request.maximum_context_tokens
    if not window_tokens:
        return -(-tokens // block)
    kept = min(window_tokens - 1 + request.in_flight_tokens, tokens)
    return -(-kept // block) + 1


def _state_blocks(
    shape: ModelShape,
    request: CacheRequest,
    rules: PlatformRules,
    groups: tuple[tuple[int, ...], ...],
) -> int:
    """Blocks that one request's state is counted with, over all linear groups
    (``MambaSpec.max_memory_usage_bytes``).

    One a group, or two and a checkpoint with prefix caching, and one for every
    speculated token.
    """
    total = 0
    for group in groups:
        kind = shape.layers[group[0]].attention
        if kind in LINEAR:
            checkpoint = rules.kda_checkpoint_blocks if kind is Attention.KDA else 0
            total += (2 + checkpoint if request.prefix_caching else 1) + request.speculative_tokens
    return total


def _cache_bytes(shape: ModelShape, request: CacheRequest) -> int:
    return dtype_bytes(shape.dtype if request.cache_dtype == "auto" else request.cache_dtype)


def _base_block(request: CacheRequest, rules: PlatformRules, *, latent: bool) -> tuple[int, int]:
    """Block size before any alignment, and the kernel's own smallest block."""
    kernel = rules.kernel_block_tokens
    base = rules.default_block_tokens
    if latent:
        quantised = request.cache_dtype not in ("auto", "bfloat16", "float16")
        base = kernel = (
            rules.quantised_latent_block_tokens if quantised else rules.latent_block_tokens
        )
        if rules.latent_block_forced:
            return base, kernel
    if request.attention_backend is not None:
        kernel = BACKEND_BLOCK_TOKENS.get(request.attention_backend.upper(), kernel)
        base = max(base, kernel) if base % kernel == 0 else kernel
    return request.block_size_tokens or base, kernel
