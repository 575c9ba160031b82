"""Model shape and parallelism -> bytes of weights of one rank, by part. Pure.

Counts what ``k3perf_probe`` measures: parameters and registered buffers, each storage
once, and on the CPU the packed copies. Sources are vLLM's model files:
``qwen3_moe.py``, ``qwen3_next.py`` and ``deepseek_v2.py`` of ``model_executor/models``,
and ``model.py``, ``kda.py`` and ``mla.py`` of ``models/kimi_k3/nvidia``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from k3perf.capacity.rules import PlatformRules, dtype_bytes
from k3perf.capacity.shape import (
    Attention,
    ExpertShape,
    LayerShape,
    ModelShape,
    Ranks,
    kv_heads,
    split,
)

_F32 = 4
# layers/vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE
_VOCABULARY_ALIGNMENT = 64
# layers/attention/attention.py: k, v, q and probability scale of a layer
_SCALES_BYTES = 4 * _F32


@dataclass(frozen=True, slots=True)
class WeightContext:
    """What every part is computed from. ``width`` is the byte size of a dense
    weight.
    """

    shape: ModelShape
    parallelism: Ranks
    rules: PlatformRules

    @property
    def width(self) -> int:
        """Bytes of one dense weight."""
        return dtype_bytes(self.shape.dtype)

    @property
    def tensor(self) -> int:
        """Tensor-parallel ranks."""
        return self.parallelism.tensor


def stage_weights(
    context: WeightContext, layers: range, *, first: bool, last: bool
) -> Counter[str]:
    """Bytes by part of one rank of a stage that holds ``layers``; ``first`` adds the
    embedding, ``last`` the output head.
    """
    parts: Counter[str] = Counter()
    for index in layers:
        parts += layer_weights(context, context.shape.layers[index])
    parts += _vocabulary(context, first=first, last=last)
    if last:
        # The final norm, and with residual attention its norm and projection.
        parts["norms"] += (
            (3 if context.shape.residual_attention else 1) * context.shape.hidden * context.width
        )
    if any(
        context.shape.layers[index].attention is Attention.GROUPED_QUERY for index in layers
    ) or _latent_rotary(context, layers):
        # One table of cosines and sines, shared by the layers (layers/rotary_embedding,
        # get_rope caches it).
        parts["buffers"] += (
            context.shape.maximum_positions
            * context.shape.full.rotary_dim
            * (_F32 if context.shape.full.sinks else context.width)  # gpt-oss asks for float32
        )
    return parts


def layer_weights(context: WeightContext, layer: LayerShape) -> Counter[str]:
    """Bytes by part of one rank of one layer."""
    attention = {
        Attention.GROUPED_QUERY: _grouped_query,
        Attention.LATENT: _latent,
        Attention.GATED_DELTA: _gated_delta,
        Attention.KDA: _kda,
    }[layer.attention](context)
    experts = context.shape.experts
    feed_forward = (
        _experts(context, experts) if layer.has_experts and experts is not None else _dense(context)
    )
    # Two norms a layer; residual attention adds two norms and two one-column
    # projections.
    norms = (6 if context.shape.residual_attention else 2) * context.shape.hidden * context.width
    return attention + feed_forward + Counter({"norms": norms})


def _latent_rotary(context: WeightContext, layers: range) -> bool:
    latent = any(context.shape.layers[index].attention is Attention.LATENT for index in layers)
    return latent and context.shape.full.rotary_dim > 0


def _vocabulary(context: WeightContext, *, first: bool, last: bool) -> Counter[str]:
    padded = -(-context.shape.vocabulary // _VOCABULARY_ALIGNMENT) * _VOCABULARY_ALIGNMENT
    table = (
        split(padded, context.tensor, "padded vocabulary") * context.shape.hidden * context.width
    )
    own_head = last and not (context.shape.tied_embeddings and first)
    parts = Counter({"embedding": table if first else 0, "output_head": table if own_head else 0})
    if context.rules.packs_vocabulary:
        # a tied head is packed once more
        parts["packed_copies"] = table * (int(first) + int(last))
    return parts


def _grouped_query(context: WeightContext) -> Counter[str]:
    full, hidden, width = context.shape.full, context.shape.hidden, context.width
    heads = split(full.heads, context.tensor, "attention heads")
    query = heads * full.head_dim * (2 if full.output_gate else 1)
    cached = 2 * kv_heads(full.kv_heads, context.tensor) * full.head_dim
    norms = 2 * full.head_dim * width if full.query_key_norm else 0
    projections = ((query + cached) * hidden + heads * full.head_dim * hidden) * width
    biases = (query + cached if full.query_bias else 0) + (hidden if full.output_bias else 0)
    projections += (biases + (heads if full.sinks else 0)) * width
    return Counter(
        {
            "attention": projections,
            "norms": norms,
            "buffers": _SCALES_BYTES,
            "packed_copies": biases * width if context.rules.packs_vocabulary else 0,
        }
    )


def _latent(context: WeightContext) -> Counter[str]:
    """The absorbed decode weights are views of ``kv_b_proj`` and add nothing
    (``split_kv_b_proj`` of mla_attention.py).
    """
    full, hidden, width = context.shape.full, context.shape.hidden, context.width
    heads = split(full.heads, context.tensor, "attention heads")
    query_out = heads * (full.nope_dim + full.rope_dim)
    if full.query_rank:
        query, norm = full.query_rank * hidden + full.query_rank * query_out, full.query_rank
    else:
        query, norm = hidden * query_out, 0
    gate = heads * full.value_dim * hidden if full.output_gate else 0
    latent = full.head_dim * hidden + full.latent_rank * heads * (full.nope_dim + full.value_dim)
    output = heads * full.value_dim * hidden
    # Kimi's own layer adds a unit scale and two reciprocals to the four scales.
    scales = _SCALES_BYTES + (
        3 * _F32
        if context.shape.family.startswith("kimi_l") or context.shape.family == "kimi_k3"
        else 0
    )
    norms = (norm + full.latent_rank) * width
    return Counter(
        {"attention": (query + gate + latent + output) * width, "norms": norms, "buffers": scales}
    )


def _gated_delta(context: WeightContext) -> Counter[str]:
    linear, hidden, width = context.shape.linear, context.shape.hidden, context.width
    assert linear is not None  # noqa: S101  (a gated-delta layer comes with its shape)
    key = split(linear.key_heads, context.tensor, "linear key heads") * linear.key_dim
    heads = split(linear.value_heads, context.tensor, "linear value heads")
    value = heads * linear.value_dim
    projections = (2 * key + 2 * value + 2 * heads + value) * hidden * width
    convolution = (2 * key + value) * linear.conv_kernel * width
    small = heads * (width + _F32)  # dt_bias in the model's dtype, A_log in float32
    return Counter(
        {"linear_attention": projections + convolution + small, "norms": linear.value_dim * width}
    )


def _kda(context: WeightContext) -> Counter[str]:
    linear, hidden, width = context.shape.linear, context.shape.hidden, context.width
    assert linear is not None  # noqa: S101  (a KDA layer comes with its shape)
    heads = split(linear.value_heads, context.tensor, "KDA heads")
    value = heads * linear.value_dim
    rows = 4 * value + linear.value_dim + heads
    rows += -rows % 16  # the merged input projection is padded to whole rows of 16
    projections = (rows * hidden + linear.value_dim * value + value * hidden) * width
    convolution = 3 * value * linear.conv_kernel * _F32
    small = (value + heads) * _F32
    buffers = convolution + linear.value_dim * _F32 if context.rules.fused_kda_buffers else 0
    return Counter(
        {
            "linear_attention": projections + convolution + small,
            "norms": linear.value_dim * width,
            "buffers": buffers,
        }
    )


def _dense(context: WeightContext) -> Counter[str]:
    share = split(context.shape.intermediate, context.tensor, "intermediate size")
    return Counter({"dense_mlp": 3 * share * context.shape.hidden * context.width})


def _experts(context: WeightContext, experts: ExpertShape) -> Counter[str]:
    hidden, width = context.shape.hidden, context.width
    parts = Counter({"routed_experts": routed_expert_bytes(context, experts)})
    router = experts.count * hidden * width + (
        experts.count * _F32 if experts.score_correction else 0
    )
    parts["router"] = router + (hidden * width if experts.shared_gate else 0)
    if experts.bias:
        parts["router"] += experts.count * width
        if context.rules.packs_vocabulary:
            parts["packed_copies"] += parts["router"]
        share = split(experts.intermediate, context.tensor, "expert width")
        parts["routed_experts"] += experts.count * (2 * share + experts.hidden) * width
    if experts.shared_intermediate:
        parts["shared_experts"] = (
            3
            * split(experts.shared_intermediate, context.tensor, "shared expert width")
            * hidden
            * width
        )
    if experts.hidden != hidden:
        parts["latent_projections"] = 2 * hidden * experts.hidden * width
        parts["norms"] = experts.hidden * width if experts.latent_norm else 0
    return parts


def routed_expert_bytes(context: WeightContext, experts: ExpertShape) -> int:
    """Routed experts of one rank of one layer.

    Expert parallelism spreads whole experts over tensor x data ranks; otherwise every
    expert is sliced over them (layers/fused_moe/config.py). Kimi pads a slice below 256
    columns (models/kimi_k3/nvidia/model.py). MXFP4 is 4 bits and one 8-bit scale for 32
    values.
    """
    parallelism = context.parallelism
    spread = parallelism.tensor * parallelism.data
    count, width = experts.count, experts.intermediate
    if parallelism.expert:
        count = -(-experts.count // spread)
    else:
        width = padded_expert_width(context, experts) // spread
    values = count * 3 * experts.hidden * width
    if context.shape.expert_format == "mxfp4":
        return values * 17 // 32
    return values * context.width


def padded_expert_width(context: WeightContext, experts: ExpertShape) -> int:
    """Width of an expert over all ranks, with Kimi's padding of small slices."""
    minimum = context.shape.expert_minimum_partition
    if context.tensor > 1 and minimum and experts.intermediate // context.tensor < minimum:
        return minimum * context.tensor
    return experts.intermediate
