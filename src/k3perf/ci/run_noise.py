"""The candidate's own noise over a whole run. Pure.

One metric has a few sessions, and its F test catches little. All metrics of all cells
together show a build that varies more than recorded. Its losses must then be proven by
its own noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict, MetricVerdict
from k3perf.stats.own_noise import RUN_LEVEL, NoiseRatio, pooled_ratio


def judged_by_own_noise(cells: Iterable[CellVerdict]) -> tuple[CellVerdict, ...]:
    """The cells of a run. Where its sessions vary more than recorded, each REGRESSED
    metric that does not hold by the candidate's own noise becomes INVALID.
    """
    found = tuple(cells)
    metrics = [metric for cell in found for metric in cell.metrics]
    pooled = pooled_ratio(
        NoiseRatio(one.noise_ratio, one.noise_df, one.recorded_noise_df)
        for one in metrics
        if one.noise_ratio is not None
    )
    if pooled is None or pooled.p >= RUN_LEVEL:
        return found
    times = math.sqrt(pooled.ratio)
    return tuple(
        replace(cell, metrics=tuple(_doubted(metric, times) for metric in cell.metrics))
        for cell in found
    )


def _doubted(metric: MetricVerdict, times: float) -> MetricVerdict:
    if metric.outcome is not Outcome.REGRESSED or metric.holds_by_own_noise is not False:
        return metric
    text = (
        f"the candidate's sessions vary {times:.1f} times as much as recorded over all cells of"
        " the run, and the loss is not proven by that noise"
    )
    return replace(metric, outcome=Outcome.INVALID, reason=f"{text}; {metric.reason}"[:2_000])
