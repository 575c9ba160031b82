"""KV use measured at several context lengths -> whether it grows as planned: linear in
tokens, constant in state. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from k3perf.capacity.cache_layout import CacheLayout


@dataclass(frozen=True, slots=True)
class UsePoint:
    """Cache blocks that ``sequence_count`` equal sequences of ``context_tokens`` each
    were seen to hold.
    """

    context_tokens: int
    sequence_count: int
    used_blocks: float


@dataclass(frozen=True, slots=True)
class GrowthCheck:
    """Fitted and predicted growth, in blocks: ``slope`` a token of one sequence,
    ``constant`` a sequence (its state).

    ``largest_residual_blocks`` is the worst distance of a point from the fitted line,
    per sequence. ``problems`` is empty when use grows as planned.
    """

    slope_blocks_per_token: float
    predicted_slope_blocks_per_token: float
    constant_blocks: float
    predicted_constant_blocks: float
    largest_residual_blocks: float
    problems: tuple[str, ...]


def check_growth(
    points: Sequence[UsePoint],
    layout: CacheLayout,
    *,
    linear_group_blocks: int,
    tolerance_blocks: float = 1.0,
) -> GrowthCheck:
    """Fit use per sequence against context by least squares and compare it with the
    plan.

    ``linear_group_blocks``: blocks that a sequence's state is planned to hold, over all
    linear groups. A block is held whole, so use lies up to one block above the line;
    ``tolerance_blocks`` is the allowed distance in blocks, for the line and over the
    spanned contexts for the slope. Needs two different contexts; ValueError otherwise.
    """
    contexts = [point.context_tokens for point in points]
    if len(set(contexts)) < 2:
        raise ValueError(
            f"growth needs at least two different context lengths, got {sorted(set(contexts))}"
        )
    use = [point.used_blocks / point.sequence_count for point in points]
    slope, constant = _fit(contexts, use)
    residual = max(
        abs(seen - constant - slope * context) for context, seen in zip(contexts, use, strict=True)
    )
    predicted_slope = 1.0 / layout.block_size_tokens
    # A partly filled block counts whole: half a block on average over arbitrary
    # lengths.
    rounding = sum(
        -(-context // layout.block_size_tokens) - context / layout.block_size_tokens
        for context in contexts
    ) / len(contexts)
    predicted_constant = linear_group_blocks + rounding
    problems = []
    if abs(slope - predicted_slope) * (max(contexts) - min(contexts)) > tolerance_blocks:
        problems.append(
            f"a token takes {slope:.6f} blocks of a sequence, {predicted_slope:.6f} are planned"
        )
    middle = sum(contexts) / len(contexts)
    seen_middle, planned_middle = (
        constant + slope * middle,
        predicted_constant + predicted_slope * middle,
    )
    if abs(seen_middle - planned_middle) > tolerance_blocks:
        problems.append(
            f"a sequence of {middle:.0f} tokens takes {seen_middle:.2f} blocks,"
            f" {planned_middle:.2f} are planned"
        )
    if residual > tolerance_blocks:
        problems.append(
            f"use is not linear in tokens: a point lies {residual:.2f} blocks from the line"
        )
    return GrowthCheck(
        slope, predicted_slope, constant, predicted_constant, residual, tuple(problems)
    )


def _fit(contexts: Sequence[int], use: Sequence[float]) -> tuple[float, float]:
    mean_x, mean_y = sum(contexts) / len(contexts), sum(use) / len(use)
    spread = sum((x - mean_x) ** 2 for x in contexts)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(contexts, use, strict=True)) / spread
    return slope, mean_y - slope * mean_x
