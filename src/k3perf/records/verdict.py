"""What the gate says: per metric, per cell and for the run, with every number that led
there, and ``verdict.json``.

A verdict file may come from a stranger's pull request. Nothing in it is trusted: sizes
are bounded here, outcomes of cells and of the run are joined again from the metrics,
and text is escaped where it is shown.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from k3perf.records.attribution import Attribution
from k3perf.records.outcome import Outcome, join
from k3perf.records.plan_file import MAXIMUM_CELLS, LongText, Share, ShortText
from k3perf.records.samples import InvalidReason

Count = Annotated[int, Field(ge=0, le=10**6)]
Number = Annotated[float, Field(allow_inf_nan=False)]


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
    tolerance; ``significant``: the lower bound is above zero.
    ``smallest_detectable_loss_ratio``: the run's minimum detectable effect. Exact
    metrics have no bounds: ``now_value`` and ``baseline_value`` are compared as they
    are. ``look`` is the interim analysis that the numbers belong to (0: none was
    reached). ``cumulative_loss_ratio`` is the loss against the anchor, where
    the baseline has moved away from it. ``waived_by`` names the owner of the waiver
    that turned a REGRESSED into a PASS. ``unit`` is ``ratio`` where ratios were
    compared. ``noise_ratio``: the variance between the candidate's sessions over the
    recorded one, with the degrees of freedom of both. ``holds_by_own_noise``: the
    lower bound by that variance still excludes no loss.
    """

    metric: ShortText
    unit: ShortText
    outcome: Outcome
    baseline_value: Number | None = None
    now_value: Number | None = None
    loss_ratio: Number | None = None
    loss_lower_bound_ratio: Number | None = None
    loss_upper_bound_ratio: Number | None = None
    tolerance_ratio: Number | None = None
    tolerance_absolute: Number | None = None
    relevant: bool | None = None
    significant: bool | None = None
    smallest_detectable_loss_ratio: Number | None = None
    session_count: Count = 0
    round_count: Count = 0
    alpha: Number | None = None
    reason: LongText = ""
    look: Count = 0
    cumulative_loss_ratio: Number | None = None
    waived_by: ShortText = ""
    noise_ratio: Annotated[float, Field(ge=0, le=1e12)] | None = None
    noise_df: Count = 0
    recorded_noise_df: Count = 0
    holds_by_own_noise: bool | None = None


@dataclass(frozen=True, slots=True)
class ConfigDifference:
    """One value that two resolved configurations do not share."""

    key: ShortText
    was: object = None
    now: object = None
    forced_by: LongText = ""


@dataclass(frozen=True, slots=True)
class ArmValues:
    """A gated metric's absolute values in ``unit``, where ratios or differences of two
    arms were judged. ``reference``: the reference arm, in ``ab`` the base arm. Recorded
    values are None in ``ab``, and where the baseline has none.
    """

    metric: ShortText
    unit: ShortText
    candidate_value: Number | None = None
    reference_value: Number | None = None
    recorded_candidate_value: Number | None = None
    recorded_reference_value: Number | None = None


@dataclass(frozen=True, slots=True)
class BaselineSource:
    """The baseline that judged a cell. Days are UTC, ``YYYY-MM-DD``, empty if unknown;
    ``session_count``: the fewest recorded sessions of a judged metric.
    """

    first_day: ShortText = ""
    last_day: ShortText = ""
    accepted_at_utc: ShortText = ""
    vllm_version: ShortText = ""
    session_count: Count = 0


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """A cell's metrics joined. ``notes`` name outliers, excluded sessions, waivers and
    proposals. ``reference_arm``: in ``reference`` mode the reference arm's absolute
    values beside its recorded ones, against a wide limit.

    ``times_only``: ``invalid_reasons`` spoil nothing but times; memory, capacity and
    configuration were judged.

    ``buy`` says what an undecided cell needs: measure on until there are
    ``buy_until_sessions`` valid sessions (pairs of sessions in ``reference`` and
    ``ab``) with ``buy_until_rounds`` valid rounds each, then ask again.

    ``attribution``: which part of a lost cell moved. ``arm_values`` and ``judged_by``:
    absolute values and the baseline, for a reader. These judge nothing.
    """

    target: ShortText
    config: ShortText
    workload: ShortText
    mode: ShortText = ""
    metrics: Annotated[tuple[MetricVerdict, ...], Field(max_length=200)] = ()
    differences: Annotated[tuple[ConfigDifference, ...], Field(max_length=1_000)] = ()
    invalid_reasons: Annotated[tuple[InvalidReason, ...], Field(max_length=1_000)] = ()
    missing: LongText = ""
    buy: Buy = Buy.NOTHING
    notes: Annotated[tuple[LongText, ...], Field(max_length=1_000)] = ()
    buy_until_sessions: Count = 0
    buy_until_rounds: Count = 0
    times_only: bool = False
    reference_arm: Annotated[tuple[MetricVerdict, ...], Field(max_length=200)] = ()
    attribution: Attribution | None = None
    arm_values: Annotated[tuple[ArmValues, ...], Field(max_length=200)] = ()
    judged_by: BaselineSource | None = None

    @property
    def cell_id(self) -> str:
        """``target-config-workload``, as ``config.suite.Cell.cell_id``."""
        return f"{self.target}-{self.config}-{self.workload}"

    @property
    def drifted(self) -> bool:
        """The engine resolved another configuration than the approved one. In ``ab``
        mode two configurations are compared, and their differences judge nothing.
        """
        return bool(self.differences) and self.mode != "ab"

    @property
    def outcome(self) -> Outcome:
        """The worst of the cell's findings."""
        found = [metric.outcome for metric in (*self.metrics, *self.reference_arm)]
        if self.drifted:
            found.append(Outcome.CONFIG_DRIFT)
        if self.invalid_reasons:
            found.append(Outcome.INVALID)
        if self.missing:
            found.append(Outcome.NO_BASELINE)
        return join(found)

    @property
    def outcome_text(self) -> str:
        """The outcome, and CONFIG_DRIFT beside a worse one."""
        return outcome_text(self.outcome, drifted=self.drifted)


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """A run's cells joined, with the suite's family-wise error rate."""

    cells: Annotated[tuple[CellVerdict, ...], Field(max_length=MAXIMUM_CELLS)]
    false_alarm_budget: Share
    gated_metric_count: Count

    @property
    def outcome(self) -> Outcome:
        """The worst cell."""
        return join(cell.outcome for cell in self.cells)

    @property
    def drifted(self) -> bool:
        """A cell drifted."""
        return any(cell.drifted for cell in self.cells)

    @property
    def outcome_text(self) -> str:
        """The outcome, and CONFIG_DRIFT beside a worse one."""
        return outcome_text(self.outcome, drifted=self.drifted)


def outcome_text(outcome: Outcome, *, drifted: bool) -> str:
    """``REGRESSED and CONFIG_DRIFT`` where both hold: a loss does not hide a drift."""
    both = drifted and outcome is not Outcome.CONFIG_DRIFT
    return f"{outcome} and {Outcome.CONFIG_DRIFT}" if both else str(outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictDocument(SuiteVerdict):
    """``verdict.json``: one run, or several runs merged.

    Unknown keys are ignored, since the reader may be older than the writer.
    """

    __pydantic_config__ = ConfigDict(extra="ignore", str_max_length=4_096)

    schema_version: Literal[1]
    run_id: ShortText
    commit: ShortText
    created_at_utc: ShortText
    vllm_version: ShortText = ""

    def dump(self) -> dict[str, Any]:
        """Plain data with the joined outcomes added."""
        return {
            "schema_version": self.schema_version,
            "run_id": self.run_id,
            "commit": self.commit,
            "created_at_utc": self.created_at_utc,
            "vllm_version": self.vllm_version,
            "outcome": self.outcome,
            "false_alarm_budget": self.false_alarm_budget,
            "gated_metric_count": self.gated_metric_count,
            "cells": [{**asdict(cell), "outcome": cell.outcome} for cell in self.cells],
        }

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(self.dump(), indent=1, default=str, allow_nan=False) + "\n"
