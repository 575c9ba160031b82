"""Dummy weights scaled to the spread that trained weights have, and back, bit by bit.

vLLM draws dummy weights uniformly within 0.001, so every token is equally probable and
nothing can be compared. Each matrix is multiplied by the power of two that brings it
nearest to a standard deviation of 1 / sqrt(inputs), the output layer to a wider one.
Powers of two change the exponent only, so dividing restores every bit, and quantised
weights keep their relative error: their scale is what is multiplied. A CPU engine packs
its weights at load, where they cannot be scaled.

The result is a random network whose distributions are as sharp as a real model's. It
shows what rounding does to numbers of real size. It has learned nothing, so its
attention is diffuse, errors do not grow along a text, and accuracy means nothing.
"""

from __future__ import annotations

import math
from typing import Any

from k3perf_probe import memory
from k3perf_probe.answers import rank_of

_MARK = "k3perf_spread_exponents"
DUMMY_SPREAD = 0.001 / math.sqrt(3)
"""Standard deviation of a uniform number within 0.001."""
LOGIT_SPREAD = 6.0
"""Standard deviation of logits that the output layer is scaled for. The most probable
of 160,000 tokens then gets about half of the mass, as in a text.
"""

_ABSORBED = ("W_UK_T", "W_UV", "W_K", "W_V")
_SCALES = ("weight_scale", "weight_scale_inv", "w13_weight_scale", "w2_weight_scale")
_MATRICES = ("weight", "w13_weight", "w2_weight")


def spread_weights(worker: Any, *, on: bool) -> dict[str, Any]:
    """Scale (``on``) or restore this rank's dummy weights; calling it twice changes
    nothing. Says how many tensors were changed.
    """
    applied: list[tuple[Any, int]] = getattr(worker, _MARK, [])
    if on and not applied:
        applied = _exponents(memory.find_model(worker))
        for tensor, exponent in applied:
            tensor.mul_(2.0**exponent)
        setattr(worker, _MARK, applied)
    elif not on:
        for tensor, exponent in applied:
            tensor.mul_(2.0**-exponent)
        setattr(worker, _MARK, [])
    return {"rank": rank_of(worker), "on": on, "changed_count": len(applied)}


def exponent_for(inputs: int, spread: float = 1.0) -> int:
    """The power of two that takes a dummy weight to ``spread`` / sqrt(inputs)."""
    return round(math.log2(spread / math.sqrt(inputs) / DUMMY_SPREAD))


def _exponents(model: Any) -> list[tuple[Any, int]]:
    """Tensors to scale, each with its exponent. Biases stay."""
    found: dict[int, tuple[Any, int]] = {}
    for name, module in model.named_modules():
        weights = _those(module, _MATRICES)
        scales = _those(module, _SCALES) if weights else []
        spread = LOGIT_SPREAD if name.endswith("lm_head") else 1.0
        for tensor in (*(scales or weights), *_those(module, _ABSORBED)):
            shape = (weights[0] if scales else tensor).shape
            # vLLM draws the weights of norms too; theirs are brought to 1
            inputs = int(shape[-1]) if len(shape) > 1 else 1
            if tensor.is_floating_point():
                found[tensor.data_ptr()] = (tensor, exponent_for(inputs, spread))
    return list(found.values())


def _those(module: Any, names: tuple[str, ...]) -> list[Any]:
    """The module's tensors of these names."""
    found = [getattr(module, name, None) for name in names]
    return [getattr(one, "data", one) for one in found if hasattr(one, "is_floating_point")]
