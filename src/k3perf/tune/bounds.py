"""Whether a point keeps the bounds of a run, with the uncertainty of its readings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Final

import numpy as np

from k3perf.records.tuning import BoundSpec, TuningReading
from k3perf.stats.quantiles import upper_quantile
from k3perf.tune.ledger import fit_of, log_value

BOUND_LEVEL: Final = 0.05
"""One-sided level of a bound that is kept or broken beyond doubt."""


class Keeps(Enum):
    """PROVEN and BROKEN hold at ``BOUND_LEVEL``. LIKELY and UNLIKELY are estimates."""

    PROVEN = "keeps"
    LIKELY = "seems to keep"
    UNLIKELY = "seems to break"
    BROKEN = "breaks"
    UNREAD = "has no reading of"

    @property
    def fine(self) -> bool:
        """By estimate."""
        return self in (Keeps.PROVEN, Keeps.LIKELY)


def keeps(readings: Sequence[TuningReading], label: str, bound: BoundSpec) -> Keeps:
    """Where the point's mean stands against the limit."""
    mine = [
        log_value(bound.metric, reading.values[bound.metric])
        for reading in readings
        if reading.trial.label == label and bound.metric in reading.values
    ]
    if not mine:
        return Keeps.UNREAD
    limit, mean = log_value(bound.metric, bound.limit), float(np.mean(mine))
    fit = fit_of(readings, bound.metric)
    own = float(np.var(mine, ddof=1)) if len(mine) > 1 else 0.0
    if fit.df < 1:
        return Keeps.LIKELY if mean >= limit else Keeps.UNLIKELY
    error = math.sqrt(max(fit.variance, own) / len(mine))
    width = upper_quantile(BOUND_LEVEL, fit.df) * error
    if mean >= limit:
        return Keeps.PROVEN if mean - width >= limit else Keeps.LIKELY
    return Keeps.BROKEN if mean + width < limit else Keeps.UNLIKELY


def broken_text(readings: Sequence[TuningReading], label: str, bounds: Sequence[BoundSpec]) -> str:
    """Why the point does not keep the bounds, by estimate. Empty if it keeps them."""
    found = ((bound, keeps(readings, label, bound)) for bound in bounds)
    return "; ".join(f"{how.value} {bound.text}" for bound, how in found if not how.fine)
