"""Injected faults that make answers wrong and leave speed as it is, to show that the
quality gate sees them.

Each replaces one method of the live modules, so it needs an engine without CUDA graphs
and torch.compile (``enforce_eager``). Calling with 0 ends the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from k3perf_probe import memory
from k3perf_probe.answers import rank_of

_MARK = "k3perf_undo"


def wrong_answers(worker: Any, kind: str, amount: float) -> dict[str, Any]:
    """Inject ``kind`` with ``amount`` (0 ends every fault) and say how many modules it
    changed. ValueError for an unknown kind and where nothing could be changed.
    """
    restore(worker)
    if amount == 0:
        return {"rank": rank_of(worker), "kind": kind, "changed_count": 0}
    if kind not in FAULTS:
        raise ValueError(f"fault {kind!r} is unknown; known: {', '.join(FAULTS)}")
    undo: list[Callable[[], None]] = []
    FAULTS[kind](memory.find_model(worker), amount, undo)
    if not undo:
        raise ValueError(f"fault {kind}={amount:g}: this model has nothing to change")
    setattr(worker, _MARK, undo)
    return {"rank": rank_of(worker), "kind": kind, "changed_count": len(undo)}


def restore(worker: Any) -> None:
    """Take back what ``wrong_answers`` changed."""
    for step in reversed(getattr(worker, _MARK, [])):
        step()
    setattr(worker, _MARK, [])


def _replace(owner: Any, name: str, made: Any, undo: list[Callable[[], None]]) -> None:
    """Shadow a method by an attribute of the instance."""
    setattr(owner, name, made)
    undo.append(lambda: delattr(owner, name))


def _decoder_layers(model: Any) -> list[Any]:
    """Layers in order: ``model.layers``, wherever the model keeps them."""
    for _, module in model.named_modules():
        layers = getattr(module, "layers", None)
        if layers is not None and hasattr(layers, "__len__") and len(layers):
            return list(layers)
    return []


def _attentions(model: Any) -> list[Any]:
    """Backends' implementations of the attention layers that keep a KV cache."""
    return [
        module.impl
        for _, module in model.named_modules()
        if hasattr(module, "impl") and hasattr(module, "kv_cache")
    ]


def _skip_layer(model: Any, amount: float, undo: list[Callable[[], None]]) -> None:
    """Layer number ``amount``, from 1, passes its input on."""
    layers = _decoder_layers(model)
    index = int(amount) - 1
    if not 0 < index < len(layers):
        raise ValueError(f"layer {amount:g}: give a number from 2 to {len(layers)}")

    def forward(*given: Any, **named: Any) -> Any:
        inputs = [*given, *named.values()]
        hidden, residual = named.get("hidden_states"), named.get("residual")
        return (hidden, residual) if hidden is not None else tuple(inputs[-2:])

    _replace(layers[index], "forward", forward, undo)


def _scale_cache(
    model: Any, amount: float, undo: list[Callable[[], None]], *, only_decode: bool
) -> None:
    """Keys and values are read ``amount`` times too large: a wrong scale. Scores are
    linear in keys and outputs in values, so query and output are scaled.
    """
    for impl in _attentions(model):
        original = impl.forward

        def forward(
            layer: Any,
            query: Any,
            key: Any,
            value: Any,
            kv_cache: Any,
            attn_metadata: Any,
            output: Any,
            *rest: Any,
            original: Any = original,
            **named: Any,
        ) -> Any:
            decode = getattr(attn_metadata, "max_query_len", 1) == 1
            if attn_metadata is None or (only_decode and not decode):
                return original(
                    layer, query, key, value, kv_cache, attn_metadata, output, *rest, **named
                )
            found = original(
                layer, query * amount, key, value, kv_cache, attn_metadata, output, *rest, **named
            )
            output.mul_(amount)
            return found

        _replace(impl, "forward", forward, undo)


def _kv_scale(model: Any, amount: float, undo: list[Callable[[], None]]) -> None:
    _scale_cache(model, amount, undo, only_decode=False)


def _decode_kv_scale(model: Any, amount: float, undo: list[Callable[[], None]]) -> None:
    _scale_cache(model, amount, undo, only_decode=True)


def _wrong_block(model: Any, amount: float, undo: list[Callable[[], None]]) -> None:
    """Block number ``amount``, from 2, of the batch's first sequence is its first block
    instead.
    """
    place = int(amount) - 1
    if place < 1:
        raise ValueError(f"block {amount:g}: give a number from 2")
    for impl in _attentions(model):
        original = impl.forward

        def forward(
            layer: Any,
            query: Any,
            key: Any,
            value: Any,
            kv_cache: Any,
            attn_metadata: Any,
            *rest: Any,
            original: Any = original,
            **named: Any,
        ) -> Any:
            table = getattr(attn_metadata, "block_table", None)
            if table is None or table.shape[1] <= place:
                return original(layer, query, key, value, kv_cache, attn_metadata, *rest, **named)
            kept = table[0, place].clone()
            table[0, place] = table[0, 0]
            try:
                return original(layer, query, key, value, kv_cache, attn_metadata, *rest, **named)
            finally:
                table[0, place] = kept

        _replace(impl, "forward", forward, undo)


def _rope_offset(model: Any, amount: float, undo: list[Callable[[], None]]) -> None:
    """Queries are rotated ``amount`` positions too far, keys are not."""
    seen: set[int] = set()
    for _, module in model.named_modules():
        rotary = getattr(module, "rotary_emb", None)
        if rotary is None or id(rotary) in seen:
            continue
        seen.add(id(rotary))
        original = rotary.forward

        def forward(
            positions: Any, query: Any, key: Any = None, *rest: Any, original: Any = original
        ) -> Any:
            # both are written in place by some kernels
            far, _ = original(positions + int(amount), query.clone(), key.clone(), *rest)
            _, near = original(positions, query, key, *rest)
            return far, near

        _replace(rotary, "forward", forward, undo)


def _zero_expert(model: Any, amount: float, undo: list[Callable[[], None]]) -> None:
    """Expert number ``amount``, from 1, of every layer answers 0."""
    index = int(amount) - 1
    for _, module in model.named_modules():
        weight = getattr(module, "w2_weight", None)
        if weight is None or not 0 <= index < weight.shape[0]:
            continue
        kept = weight.data[index].clone()
        weight.data[index].zero_()

        def put_back(weight: Any = weight, kept: Any = kept) -> None:
            weight.data[index].copy_(kept)

        undo.append(put_back)


def _router_top_k(model: Any, amount: float, undo: list[Callable[[], None]]) -> None:
    """Only the ``amount`` most probable experts of each token get a weight."""
    for name, module in model.named_modules():
        if not name.endswith(".gate") or not hasattr(module, "weight"):
            continue
        original = module.forward

        def forward(*given: Any, original: Any = original, **named: Any) -> Any:
            answer = original(*given, **named)
            logits, *rest = answer if isinstance(answer, tuple) else (answer,)
            least = logits.topk(int(amount), dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -1e9)
            return (logits, *rest) if isinstance(answer, tuple) else logits

        _replace(module, "forward", forward, undo)


FAULTS: dict[str, Callable[[Any, float, list[Callable[[], None]]], None]] = {
    "kv_scale_factor": _kv_scale,
    "decode_kv_scale_factor": _decode_kv_scale,
    "skip_layer_number": _skip_layer,
    "zero_expert_number": _zero_expert,
    "router_top_k": _router_top_k,
    "rope_offset_tokens": _rope_offset,
    "wrong_block_number": _wrong_block,
}
