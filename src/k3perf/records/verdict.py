"""What the gate says: per metric, per cell and for the run, with every number that led
there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from k3perf.records.outcome import Outcome, join
from k3perf.records.samples import InvalidReason


class Buy(StrEnum):
    """What more evidence an undecided cell should buy next."""

    NOTHING = "nothing"
    ROUNDS = "rounds"
    SESSIONS = "sessions"


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """One gated metric.

    ``loss_ratio`` is the estimated loss (positive is worse) as a share of the baseline;
    the bounds are one-sided confidence bounds of the loss at the error rates in
    ``alpha`` (REGRESSED) and ``beta`` (PASS). ``relevant``: the estimate exceeds the
    tolerance; ``significant``: the lower bound excludes no loss.
    ``smallest_detectable_loss_ratio``: what this run could have seen. Exact metrics
    have no bounds: ``now_value`` and ``baseline_value`` are compared as they are.
    ``look`` is the look of the group-sequential plan that the numbers belong to (0:
    none was reached). ``cumulative_loss_ratio`` is the loss against the anchor, where
    the baseline has moved away from it. ``waived_by`` names the owner of the waiver
    that turned a REGRESSED into a PASS. ``unit`` is ``ratio`` where ratios were
    compared.
    """

    metric: str
    unit: str
    outcome: Outcome
    baseline_value: float | None
    now_value: float | None
    loss_ratio: float | None
    loss_lower_bound_ratio: float | None
    loss_upper_bound_ratio: float | None
    tolerance_ratio: float | None
    tolerance_absolute: float | None
    relevant: bool | None
    significant: bool | None
    smallest_detectable_loss_ratio: float | None
    session_count: int
    round_count: int
    alpha: float | None
    reason: str
    look: int = 0
    cumulative_loss_ratio: float | None = None
    waived_by: str = ""


@dataclass(frozen=True, slots=True)
class ConfigDifference:
    """One value that the engine resolved differently from the approved baseline."""

    key: str
    was: object
    now: object
    forced_by: str = ""


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """A cell's metrics joined. ``notes`` name outliers, sessions set aside, waivers and
    proposals.

    ``times_only``: ``invalid_reasons`` spoil nothing but times; memory, capacity and
    configuration were judged.

    ``buy`` says what an undecided cell needs: measure on until there are
    ``buy_until_sessions`` valid sessions (pairs of sessions in ``reference`` and
    ``ab``) with ``buy_until_rounds`` valid rounds each, then ask again.
    """

    target: str
    config: str
    workload: str
    mode: str
    metrics: tuple[MetricVerdict, ...]
    differences: tuple[ConfigDifference, ...] = ()
    invalid_reasons: tuple[InvalidReason, ...] = ()
    missing: str = ""
    buy: Buy = Buy.NOTHING
    notes: tuple[str, ...] = ()
    buy_until_sessions: int = 0
    buy_until_rounds: int = 0
    times_only: bool = False

    @property
    def outcome(self) -> Outcome:
        """The worst of the cell's findings."""
        found = [metric.outcome for metric in self.metrics]
        if self.differences:
            found.append(Outcome.CONFIG_DRIFT)
        if self.invalid_reasons:
            found.append(Outcome.INVALID)
        if self.missing:
            found.append(Outcome.NO_BASELINE)
        return join(found)


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """A run's cells joined, with the suite-wide error budget they were judged under."""

    cells: tuple[CellVerdict, ...]
    false_alarm_budget: float
    gated_metric_count: int

    @property
    def outcome(self) -> Outcome:
        """The worst cell."""
        return join(cell.outcome for cell in self.cells)
