"""A model's ``config.json`` -> its shape: which layers attend how, and the widths that
weights and cache are computed from. Pure.

Covers dense and grouped-query families (``dense_families``), the gated-delta hybrid
(``qwen3_next``), multi-head latent attention (``deepseek_v2``, ``deepseek_v3``,
``kimi_k2``) and Kimi's KDA hybrid (``kimi_linear``, ``kimi_k3``). Any other family is
refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from k3perf.capacity.dense_families import (
    GPT_OSS,
    GROUPED,
    has_output_bias,
    has_query_bias,
    normalises_query_and_key,
    window_tokens,
)
from k3perf.capacity.expert_format import expert_format
from k3perf.errors import UsageError, shortened


class Attention(StrEnum):
    """How one layer mixes tokens."""

    GROUPED_QUERY = "grouped_query"
    LATENT = "latent"  # multi-head latent attention: one latent vector a token
    GATED_DELTA = "gated_delta"  # linear attention, constant state
    KDA = "kda"  # Kimi delta attention: linear, constant state


LINEAR: Final[frozenset[Attention]] = frozenset({Attention.GATED_DELTA, Attention.KDA})


@dataclass(frozen=True, slots=True)
class FullAttentionShape:
    """Widths of the layers that keep every token. Latent widths are 0 for grouped-query
    models and the reverse.
    """

    heads: int
    kv_heads: int
    head_dim: int
    output_gate: bool
    query_key_norm: bool
    rotary_dim: int
    query_rank: int = 0
    latent_rank: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    query_bias: bool = False
    output_bias: bool = False
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class LinearAttentionShape:
    """Widths of the layers that keep a constant state. KDA has as many key heads as
    value heads, of one width.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Widths of a mixture-of-experts layer. ``hidden`` is the experts' own input width
    (latent experts: smaller than the model's).

    ``active_count``: experts that one token goes through.
    """

    count: int
    active_count: int
    hidden: int
    intermediate: int
    shared_intermediate: int
    shared_gate: bool
    score_correction: bool
    latent_norm: bool
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer: how it attends, and whether its feed-forward part is a mixture of
    experts. ``window_tokens``: how far back it attends; 0: to every token.
    """

    attention: Attention
    has_experts: bool
    window_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Everything about a model that decides its memory. ``experts`` and ``linear`` are
    None where no layer has them.

    ``residual_block_layers``: layers to a block of residual attention, which keeps a
    hidden state a block; 0 without it.
    """

    family: str
    hidden: int
    vocabulary: int
    intermediate: int
    tied_embeddings: bool
    maximum_positions: int
    dtype: str
    layers: tuple[LayerShape, ...]
    full: FullAttentionShape
    linear: LinearAttentionShape | None
    experts: ExpertShape | None
    residual_block_layers: int
    expert_format: str
    expert_minimum_partition: int
    has_vision: bool

    def count(self, *kinds: Attention) -> int:
        """How many layers attend in one of these ways."""
        return sum(layer.attention in kinds for layer in self.layers)

    @property
    def residual_attention(self) -> bool:
        """Layers attend to the hidden states of earlier blocks of layers."""
        return self.residual_block_layers > 0

    @property
    def is_hybrid(self) -> bool:
        """Has layers with a constant state beside layers that keep every token."""
        return self.count(*LINEAR) > 0


_KIMI_LINEAR: Final = ("kimi_linear", "kimi_k3")
_LATENT: Final = ("deepseek_v2", "deepseek_v3", "kimi_k2")
FAMILIES: Final[tuple[str, ...]] = (*GROUPED, "qwen3_next", *_LATENT, *_KIMI_LINEAR)


_LARGEST: Final = 10**9
_MOST_LAYERS: Final = 10_000


def model_shape(model_config: Mapping[str, Any]) -> ModelShape:
    """Shape of the model that a ``config.json`` describes; a multimodal file's
    ``text_config`` is read, its vision part only noted.

    Raises UsageError naming the key when the family is unknown, a key is missing, or
    the weights' format is not covered.
    """
    text_config = model_config.get("text_config") or {}
    text: Mapping[str, Any] = {
        **model_config,
        **(text_config if isinstance(text_config, Mapping) else {}),
    }
    family = str(text.get("model_type", ""))
    if family not in FAMILIES:
        raise UsageError(
            f"model_type {shortened(family)!r} is not covered by the memory plan. Covered:"
            f" {', '.join(FAMILIES)}."
        )
    try:
        return _shape(family, model_config, text)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise UsageError(
            f"config.json holds a value that a {family} model cannot have"
            f" ({shortened(str(error))}). Give the file as its publisher wrote it."
        ) from None


def _shape(family: str, model_config: Mapping[str, Any], text: Mapping[str, Any]) -> ModelShape:
    linear = _linear_shape(family, text)
    experts = _expert_shape(family, text)
    return ModelShape(
        family=family,
        hidden=_integer(text, "hidden_size"),
        vocabulary=_integer(text, "vocab_size"),
        intermediate=_amount(text.get("intermediate_size")),
        tied_embeddings=bool(text.get("tie_word_embeddings", False)),
        maximum_positions=_amount(text.get("max_position_embeddings")),
        dtype=str(text.get("dtype") or text.get("torch_dtype") or "bfloat16").removeprefix(
            "torch."
        ),
        layers=_layers(family, text, experts is not None),
        full=_full_shape(family, text),
        linear=linear,
        experts=experts,
        residual_block_layers=(
            int(text.get("attn_res_block_size") or 0) if family in _KIMI_LINEAR else 0
        ),
        expert_format=expert_format(model_config, text),
        expert_minimum_partition=(
            int(text.get("min_moe_intermediate_per_partition", 256))
            if family in _KIMI_LINEAR
            else 0
        ),
        has_vision=bool(model_config.get("vision_config")),
    )


def _integer(text: Mapping[str, Any], key: str) -> int:
    value = text.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST:
        raise UsageError(
            f"config.json has no whole number above 0 at {key!r} (value: {shortened(repr(value))});"
            " the memory plan needs it."
        )
    return value


def _amount(value: Any) -> int:
    """A number, 0 where it is missing. Raises ValueError where it is out of range."""
    number = int(value or 0)
    if not 0 <= number <= _LARGEST:
        raise ValueError(f"{shortened(repr(value))} is out of range")
    return number


def _layers(family: str, text: Mapping[str, Any], has_experts: bool) -> tuple[LayerShape, ...]:
    count = _integer(text, "num_hidden_layers")
    if count > _MOST_LAYERS:
        raise ValueError(f"num_hidden_layers is {count}")
    return tuple(
        LayerShape(
            _attention(family, text, index),
            has_experts and _is_expert_layer(family, text, index),
            window_tokens(family, text, index),
        )
        for index in range(count)
    )


def _attention(family: str, text: Mapping[str, Any], index: int) -> Attention:
    if family in _KIMI_LINEAR:
        # Kimi counts layers from 1 in linear_attn_config.
        kda = (text.get("linear_attn_config") or {}).get("kda_layers") or ()
        return Attention.KDA if index + 1 in kda else Attention.LATENT
    if family in _LATENT:
        return Attention.LATENT
    if family == "qwen3_next":
        kinds = text.get("layer_types")
        linear = (
            kinds[index] == "linear_attention"
            if kinds
            else (index + 1) % int(text.get("full_attention_interval", 4)) != 0
        )
        return Attention.GATED_DELTA if linear else Attention.GROUPED_QUERY
    return Attention.GROUPED_QUERY


def _is_expert_layer(family: str, text: Mapping[str, Any], index: int) -> bool:
    if family in (*_KIMI_LINEAR, *_LATENT):
        return (
            index >= int(text.get("first_k_dense_replace", 0))
            and index % int(text.get("moe_layer_freq", 1)) == 0
        )
    return (
        index not in (text.get("mlp_only_layers") or ())
        and (index + 1) % int(text.get("decoder_sparse_step", 1)) == 0
    )


def _full_shape(family: str, text: Mapping[str, Any]) -> FullAttentionShape:
    heads = _integer(text, "num_attention_heads")
    if family in (*_KIMI_LINEAR, *_LATENT):
        rope = _integer(text, "qk_rope_head_dim")
        return FullAttentionShape(
            heads=heads,
            kv_heads=1,
            head_dim=_integer(text, "kv_lora_rank") + rope,
            output_gate=bool(text.get("mla_use_output_gate", False)),
            query_key_norm=False,
            rotary_dim=0 if text.get("mla_use_nope") else rope,
            query_rank=int(text.get("q_lora_rank") or 0),
            latent_rank=_integer(text, "kv_lora_rank"),
            nope_dim=_integer(text, "qk_nope_head_dim"),
            rope_dim=rope,
            value_dim=_integer(text, "v_head_dim"),
        )
    head_dim = int(text.get("head_dim") or _integer(text, "hidden_size") // heads)
    return FullAttentionShape(
        heads=heads,
        kv_heads=_amount(text.get("num_key_value_heads")) or heads,
        head_dim=head_dim,
        output_gate=family == "qwen3_next" and bool(text.get("attn_output_gate", True)),
        query_key_norm=normalises_query_and_key(family),
        query_bias=has_query_bias(family, text),
        output_bias=has_output_bias(family, text),
        sinks=family == GPT_OSS,
        rotary_dim=int(head_dim * float(text.get("partial_rotary_factor", 1.0))),
    )


def _linear_shape(family: str, text: Mapping[str, Any]) -> LinearAttentionShape | None:
    if family in _KIMI_LINEAR:
        kda = text.get("linear_attn_config") or {}
        heads, width = _integer(kda, "num_heads"), _integer(kda, "head_dim")
        return LinearAttentionShape(
            heads, heads, width, width, _integer(kda, "short_conv_kernel_size")
        )
    if family == "qwen3_next":
        return LinearAttentionShape(
            _integer(text, "linear_num_key_heads"),
            _integer(text, "linear_num_value_heads"),
            _integer(text, "linear_key_head_dim"),
            _integer(text, "linear_value_head_dim"),
            _integer(text, "linear_conv_kernel_dim"),
        )
    return None


def _expert_shape(family: str, text: Mapping[str, Any]) -> ExpertShape | None:
    gpt_oss = family == GPT_OSS
    local = text.get("num_local_experts") if gpt_oss else None
    count = _amount(text.get("num_experts") or text.get("n_routed_experts") or local)
    if count == 0:
        return None
    hidden = _integer(text, "hidden_size")
    intermediate = _integer(text, "intermediate_size" if gpt_oss else "moe_intermediate_size")
    kimi = family in _KIMI_LINEAR
    if family in (*_KIMI_LINEAR, *_LATENT):
        shared = intermediate * _amount(
            text.get("num_shared_experts") or text.get("n_shared_experts")
        )
    else:
        shared = _amount(text.get("shared_expert_intermediate_size"))
    return ExpertShape(
        count=count,
        active_count=int(text.get("num_experts_per_token") or text.get("num_experts_per_tok") or 1),
        hidden=int((text.get("routed_expert_hidden_size") if kimi else None) or hidden),
        intermediate=intermediate,
        shared_intermediate=shared,
        shared_gate=family == "qwen3_next" and shared > 0,
        score_correction=kimi or (family in _LATENT and text.get("topk_method") == "noaux_tc"),
        latent_norm=kimi and bool(text.get("latent_moe_use_norm", False)),
        bias=gpt_oss,
    )


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks of one engine: sizes of the splits, and whether whole experts are spread
    over tensor x data ranks instead of slices of every expert.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False


def stage_layers(layer_count: int, stages: int) -> tuple[range, ...]:
    """Layer indices of every pipeline stage.

    Left-over layers go to the stages before the last, from the back (vLLM
    ``distributed/utils.py``, ``get_pp_indices``).
    """
    if stages > layer_count:
        raise UsageError(f"pipeline {stages} is more than the model's {layer_count} layers.")
    sizes = [layer_count // stages] * stages
    for offset in range(2, layer_count % stages + 2):
        sizes[-offset] += 1
    starts = [sum(sizes[:index]) for index in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def split(total: int, ranks: int, what: str) -> int:
    """An even share; UsageError when vLLM would refuse it as uneven."""
    if total % ranks:
        raise UsageError(
            f"{what} {total} cannot be split over {ranks} ranks; choose a parallelism that"
            " divides it."
        )
    return total // ranks


def kv_heads(total: int, tensor: int) -> int:
    """KV heads of one rank: split while there are enough, replicated beyond (vLLM
    ``ModelConfig.get_num_kv_heads``).
    """
    return max(1, total // tensor)
