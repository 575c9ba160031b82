"""The readings of a run in order, with what they cost. Every decision rests on them
alone, so that a resumed run decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from k3perf.records.metric_definitions import METRICS, Direction
from k3perf.records.tuning import Change, Fate, TuningReading, TuningTrial
from k3perf.tune.block_fit import BlockFit
from k3perf.tune.plan import TuningPlan

Source = Callable[[TuningTrial], TuningReading]
"""Measures one trial, or returns its reading from a journal."""

MOST_ATTEMPTS: Final = {Fate.INVALID: 3, Fate.CRASHED: 2}
"""Attempts of a trial by how the last one ended. Any other fate is final."""

LEAST_VALUE: Final = 1e-6
"""Stands for 0, which has no logarithm."""


def log_value(metric: str, value: float) -> float:
    """The natural logarithm, turned so that larger is better."""
    sign = -1.0 if METRICS[metric].direction is Direction.LOWER_IS_BETTER else 1.0
    return sign * math.log(max(value, LEAST_VALUE))


class Ledger:
    """Asks ``source`` for trials and adds up what they cost. ``expect`` hears of the
    trial after the one that is asked for, None if it is not known.
    """

    def __init__(
        self,
        plan: TuningPlan,
        source: Source,
        expect: Callable[[TuningTrial | None], None] = lambda _: None,
    ) -> None:
        self._plan = plan
        self._source = source
        self._expect = expect
        self.readings: list[TuningReading] = []
        self.spent_s = 0.0

    @property
    def session_count(self) -> int:
        """Sessions that were started, failed ones included."""
        return len(self.readings)

    @property
    def round_count(self) -> int:
        """Measured rounds."""
        return sum(reading.round_count for reading in self.readings)

    @property
    def session_s(self) -> float:
        """Expected cost of one session: the mean of those so far."""
        known = [one.duration_s for one in self.readings if one.fate is Fate.MEASURED]
        return sum(known) / len(known) if known else self._plan.expected_session_s

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left. Infinite without a budget."""
        budget = self._plan.budget_s
        return math.inf if budget is None else budget - self.spent_s

    def affords(self, session_count: int, within_s: float = math.inf) -> bool:
        """Whether so many sessions fit into what is left, and into ``within_s``."""
        return session_count * self.session_s <= min(self.left_s, within_s)

    def measure(self, trial: TuningTrial) -> TuningReading:
        """The trial's reading. One that the machine spoiled or that crashed is repeated
        a fixed number of times.
        """
        while True:
            reading = self._source(trial)
            self.readings.append(reading)
            self.spent_s += reading.duration_s
            if trial.attempt + 1 >= MOST_ATTEMPTS.get(reading.fate, 1):
                return reading
            trial = replace(trial, attempt=trial.attempt + 1)

    def block(
        self, stage: str, block: int, changes: Sequence[Change], workload: str = ""
    ) -> list[TuningReading]:
        """One session of each point. The order turns from block to block, so that a
        steady drift falls on all points alike.
        """
        order = changes if block % 2 == 0 else tuple(reversed(changes))
        trials = [TuningTrial(stage, block, dict(one), workload) for one in order]
        found = []
        for trial, coming in zip(trials, [*trials[1:], None], strict=True):
            self._expect(coming)
            found.append(self.measure(trial))
        return found

    def of(self, stage: str) -> list[TuningReading]:
        """The measured readings of one stage."""
        return [
            reading
            for reading in self.readings
            if reading.trial.stage == stage and reading.fate is Fate.MEASURED
        ]


def fit_of(
    readings: Iterable[TuningReading], metric: str, earlier: BlockFit | None = None
) -> BlockFit:
    """One metric's values by point and block, fitted. ``earlier`` adds to the variance
    alone.
    """
    table: dict[str, dict[int, float]] = {}
    for reading in readings:
        if metric in reading.values:
            row = table.setdefault(reading.trial.label, {})
            row[reading.trial.block] = log_value(metric, reading.values[metric])
    if earlier is None:
        return BlockFit(table)
    return BlockFit(table, earlier.squares, earlier.own_df)


def means_of(readings: Iterable[TuningReading], label: str) -> dict[str, float]:
    """Mean of each metric over a point's sessions."""
    mine = [reading.values for reading in readings if reading.trial.label == label]
    names = dict.fromkeys(name for values in mine for name in values)
    return {
        name: sum(values[name] for values in mine if name in values)
        / sum(1 for values in mine if name in values)
        for name in names
    }
