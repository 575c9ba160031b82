"""Recorded noise of a target, pooled over its cells: baselines in, variance priors per metric out. Pure.

Six sessions of one cell leave five degrees of freedom, and Student's t with five of them is useless at a suite-wide error budget. Cells
of one target share the machine and its noise, so their variances are pooled; ``k3perf.stats.pooling`` says how, and how cells that
differ are kept apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from k3perf.config.models import Tolerance
from k3perf.gate.baseline import Baseline, MetricBaseline
from k3perf.gate.scale import Scale, scale_for
from k3perf.metrics.definitions import METRICS
from k3perf.stats.location import median, robust_sigma
from k3perf.stats.pooling import NO_PRIOR, VariancePrior, pool_groups


@dataclass(frozen=True, slots=True)
class MetricNoise:
    """Noise of one metric on the loss scale.

    ``session``: prior of the variance between session values; it contains the rounds' noise at ``round_count`` rounds a session.
    ``round_variance``: robust variance of rounds within a session; None: the metric has no rounds.
    """

    session: VariancePrior = NO_PRIOR
    round_variance: float | None = None
    round_count: int = 0
    cell_count: int = 0


NO_NOISE: Final = MetricNoise()


def pool_noise(baselines: Iterable[Baseline], tolerances: Mapping[str, Tolerance]) -> dict[tuple[str, str], MetricNoise]:
    """Noise of every gated statistical metric over one target's baselines, keyed by (metric, basis)."""
    groups: dict[tuple[str, str], list[tuple[MetricBaseline, Scale]]] = {}
    for baseline in baselines:
        for workload in baseline.workloads:
            for entry in workload.metrics:
                tolerance, metric = tolerances.get(entry.metric), METRICS.get(entry.metric)
                if tolerance is not None and metric is not None:
                    groups.setdefault((entry.metric, entry.basis), []).append((entry, scale_for(metric, tolerance)))
    return {key: _pool(entries) for key, entries in groups.items()}


def session_losses(entry: MetricBaseline, scale: Scale) -> list[float]:
    """The recorded session values on the loss scale; NaN where a value has none."""
    return [scale.loss(session.value) for session in entry.sessions]


def round_variance(entry: MetricBaseline, scale: Scale) -> float | None:
    """Mean over sessions of the squared robust sigma of a session's rounds; None without at least two rounds in a session."""
    squares = []
    for session in entry.sessions:
        losses = [scale.loss(value) for value in session.round_values]
        if len(losses) >= 2:
            squares.append(robust_sigma(losses, median(losses)) ** 2)
    return sum(squares) / len(squares) if squares else None


def _pool(entries: list[tuple[MetricBaseline, Scale]]) -> MetricNoise:
    varying = [(entry, scale) for entry, scale in entries if not entry.constant]
    losses = [session_losses(entry, scale) for entry, scale in varying]
    usable = [values for values in losses if all(map(math.isfinite, values))]
    rounds = [variance for entry, scale in varying if (variance := round_variance(entry, scale)) is not None]
    counts = [count for entry, _ in varying if (count := entry.round_count) > 0]
    return MetricNoise(
        session=pool_groups(usable),
        round_variance=sum(rounds) / len(rounds) if rounds else None,
        round_count=min(counts, default=0),
        cell_count=len(usable),
    )
