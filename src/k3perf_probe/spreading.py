"""Dummy weights scaled to the spread that trained weights have, and back, bit by bit.

vLLM draws dummy weights uniformly within 0.001, so every token is equally probable and
nothing can be compared. Each matrix is multiplied by the power of two that brings it
nearest to a standard deviation of 1 / sqrt(inputs), the output layer to a wider one.
The standard deviation is read from the weights: vLLM 0.32 draws the weights of norms
too, 0.33 sets them to 1, and FP8 checkpoints have another range. A constant tensor
stays. Powers of two change the exponent only, so dividing restores every bit, and
quantised weights keep their relative error: their scale is what is multiplied. A CPU
engine packs its weights at load, where they cannot be scaled.

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
SAMPLED_ROWS = 64
"""Rows of a matrix that its standard deviation is read from."""
LOGIT_SPREAD = 6.0
"""Standard deviation of logits that the output layer is scaled for. The most probable
of 160,000 tokens then gets about half of the mass, as in a text.
"""

_ABSORBED = ("W_UK_T", "W_UV", "W_K", "W_V")
_SCALES_OF = {
    "weight": ("weight_scale", "weight_scale_inv"),
    "w13_weight": ("w13_weight_scale",),
    "w2_weight": ("w2_weight_scale",),
    **dict.fromkeys(_ABSORBED, ()),
}
"""Each matrix with the names that its quantised form's scale has."""


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


def exponent_for(inputs: int, deviation: float, spread: float = 1.0) -> int:
    """The power of two that takes weights of this standard deviation nearest to
    ``spread`` / sqrt(inputs).
    """
    return round(math.log2(spread / math.sqrt(inputs) / deviation))


def _exponents(model: Any) -> list[tuple[Any, int]]:
    """Tensors to scale, each with its exponent. Biases stay."""
    found: dict[int, tuple[Any, int]] = {}
    for name, module in model.named_modules():
        spread = LOGIT_SPREAD if name.endswith("lm_head") else 1.0
        for matrix, scale_names in _SCALES_OF.items():
            for weight in _those(module, (matrix,)):
                scale = next(iter(_those(module, scale_names)), None)
                tensor = weight if scale is None else scale
                deviation = _deviation(weight) * (1.0 if scale is None else _size(scale))
                # one weight for each channel, as norms have, is brought to 1
                inputs = int(weight.shape[-1]) if len(weight.shape) > 1 else 1
                if tensor.is_floating_point() and deviation > 0:
                    found[tensor.data_ptr()] = (tensor, exponent_for(inputs, deviation, spread))
    return list(found.values())


def _deviation(weight: Any) -> float:
    """Standard deviation of the first rows (0: constant)."""
    return float(_first_rows(weight).std())


def _size(scale: Any) -> float:
    """Mean absolute value of the first rows."""
    return float(_first_rows(scale).abs().mean())


def _first_rows(tensor: Any) -> Any:
    while tensor.dim() > 2:
        tensor = tensor[0]
    return (tensor[:SAMPLED_ROWS] if tensor.dim() > 1 else tensor).float()


def _those(module: Any, names: tuple[str, ...]) -> list[Any]:
    """The module's tensors of these names."""
    found = [getattr(module, name, None) for name in names]
    return [getattr(one, "data", one) for one in found if hasattr(one, "is_floating_point")]
