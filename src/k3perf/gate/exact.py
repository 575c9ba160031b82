"""Metrics that do not vary: compared as they are, without statistics. One byte, one
token or one changed value is seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from k3perf.config.models import Tolerance
from k3perf.metrics.session_values import RANK_METRICS
from k3perf.records.measurement import SessionMetrics
from k3perf.records.metric_definitions import Direction, MetricDef
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import MetricVerdict


def judge_exact(
    metric: MetricDef, tolerance: Tolerance, recorded: Sequence[float], measured: Sequence[float]
) -> MetricVerdict:
    """Worst measured against worst recorded value.

    REGRESSED if the loss exceeds the tolerance, IMPROVED if every measured value beats
    the best recorded one by more than half the tolerance. ``recorded`` and ``measured``
    hold one value per session and at least one each.
    """
    sign = 1 if metric.direction is Direction.LOWER_IS_BETTER else -1
    if not all(map(math.isfinite, (*measured, *recorded))):
        text = (
            "a session, or one that it is compared with, holds a value that is not a finite number"
        )
        return replace(
            plain_verdict(metric, tolerance, Outcome.INVALID, text), session_count=len(measured)
        )
    worst_now = max(measured, key=lambda value: sign * value)
    worst_was = max(recorded, key=lambda value: sign * value)
    best_was = min(recorded, key=lambda value: sign * value)
    loss = sign * (worst_now - worst_was)
    allowed = allowed_loss(tolerance, worst_was)
    changed = f"{_number(worst_was)} -> {_number(worst_now)} {metric.unit}"
    outcome, text = (
        Outcome.PASS,
        "equal" if loss == 0 else f"{changed}, within the allowed loss of {_number(allowed)}",
    )
    if loss > allowed:
        outcome, text = Outcome.REGRESSED, f"{changed}, allowed loss {_number(allowed)}"
    elif sign * (best_was - worst_now) > allowed / 2:
        outcome, text = (
            Outcome.IMPROVED,
            (
                f"{changed}, better than every recorded value; run k3perf baseline propose to lift"
                " the baseline"
            ),
        )
    return replace(
        plain_verdict(
            metric,
            tolerance,
            outcome,
            text + ("; sessions differ" if len(set(measured)) > 1 else ""),
        ),
        baseline_value=worst_was,
        now_value=worst_now,
        loss_ratio=metric.loss_ratio(worst_was, worst_now),
        relevant=outcome is Outcome.REGRESSED,
        session_count=len(measured),
    )


def rank_counts(metric: MetricDef, sessions: Iterable[SessionMetrics]) -> frozenset[int]:
    """Of how many ranks the sessions' values of the metric are the worst; empty for a
    metric of no rank.
    """
    if metric.name not in RANK_METRICS:
        return frozenset()
    found = [session.values[metric.name] for session in sessions if metric.name in session.values]
    return frozenset(value.n for value in found if value.value is not None and value.n)


def judge_other_ranks(
    metric: MetricDef,
    tolerance: Tolerance,
    recorded: frozenset[int],
    measured: frozenset[int],
    *,
    committed: bool,
) -> MetricVerdict | None:
    """The verdict where the worst of some number of ranks would be compared with the
    worst of another; None where the numbers are equal, or one side's is not known.
    ``committed``: what is compared with is a baseline, and not the base arm of this
    run.
    """
    if not recorded or not measured or (recorded == measured and len(recorded) == 1):
        return None
    differ = (
        f"the worst of {ranks_text(measured)} was measured, the worst of {ranks_text(recorded)}"
    )
    if not committed:
        return plain_verdict(
            metric,
            tolerance,
            Outcome.INVALID,
            f"{differ} in the base arm; they cannot be compared (docs/multi-host.md)",
        )
    step = "have every rank read (docs/multi-host.md), or run k3perf baseline propose"
    return plain_verdict(
        metric, tolerance, Outcome.NO_BASELINE, f"{differ} is in the baseline; {step}"
    )


def ranks_text(counts: frozenset[int]) -> str:
    """How many ranks, or which numbers of them where sessions differ; at least one
    number.
    """
    return f"{' or '.join(map(str, sorted(counts)))} rank{'' if counts == {1} else 's'}"


def allowed_loss(tolerance: Tolerance, baseline_value: float) -> float:
    """The tolerance in the metric's unit."""
    if tolerance.loss_absolute is not None:
        return tolerance.loss_absolute
    return (tolerance.loss_ratio or 0.0) * abs(baseline_value)


def _number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value!r}"


def plain_verdict(
    metric: MetricDef, tolerance: Tolerance, outcome: Outcome, reason: str
) -> MetricVerdict:
    """A verdict without numbers."""
    return MetricVerdict(
        metric=metric.name,
        unit=metric.unit,
        outcome=outcome,
        baseline_value=None,
        now_value=None,
        loss_ratio=None,
        loss_lower_bound_ratio=None,
        loss_upper_bound_ratio=None,
        tolerance_ratio=tolerance.loss_ratio,
        tolerance_absolute=tolerance.loss_absolute,
        relevant=None,
        significant=None,
        smallest_detectable_loss_ratio=None,
        session_count=0,
        round_count=0,
        alpha=None,
        reason=reason,
    )
