"""Length distributions to token counts. Pure and seeded."""

from __future__ import annotations

from k3perf.config.workload_spec import EmpiricalLength, FixedLength, LogNormalLength, UniformLength
from k3perf.workload.draws import uniforms


def draw_lengths(
    length: FixedLength | UniformLength | LogNormalLength | EmpiricalLength,
    *,
    seed: int,
    label: str,
    count: int,
) -> tuple[int, ...]:
    """``count`` token counts of one distribution. The same seed and label give the same
    counts.
    """
    if isinstance(length, FixedLength):
        return (length.tokens,) * count
    if isinstance(length, UniformLength):
        span = length.high - length.low + 1
        return tuple(length.low + int(u * span) for u in uniforms(seed, label, count))
    if isinstance(length, EmpiricalLength):
        return tuple(
            length.values[int(u * len(length.values))] for u in uniforms(seed, label, count)
        )
    return _draw_log_normal(length, seed=seed, label=label, count=count)


def _draw_log_normal(
    length: LogNormalLength, *, seed: int, label: str, count: int
) -> tuple[int, ...]:
    import numpy as np
    from scipy.special import ndtri

    values = length.median * np.exp(length.sigma * ndtri(uniforms(seed, label, count)))
    return tuple(int(value) for value in np.clip(np.rint(values), length.low, length.high))
