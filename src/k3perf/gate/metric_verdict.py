"""One metric of a cell to its ``MetricVerdict``, with the sentence that explains it.
What decides is in ``gate.decision``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from k3perf.config.models import MeasurementPlan
from k3perf.gate.decision import (
    IMPROVED_SHARE,
    OUTLIER_SIGMAS,
    Cause,
    Decision,
    exactly_regressed,
    judge,
    remaining_tolerance,
)
from k3perf.gate.losses import Series
from k3perf.gate.policy import Policy
from k3perf.gate.reference import base_arm_reference
from k3perf.metrics.loss_scale import Scale
from k3perf.metrics.session_values import ranks_text
from k3perf.metrics.validity import SPREAD_LIMIT
from k3perf.records.baseline import MetricBaseline
from k3perf.records.metric_definitions import Gain, Scope
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import MetricVerdict
from k3perf.stats.bounds import Limits
from k3perf.stats.estimators import Location, median, robust_sigma
from k3perf.stats.own_noise import METRIC_LEVEL
from k3perf.stats.reference import Reference
from k3perf.stats.sequential import InterimAnalysis, schedule

SAME_AS_ANCHOR: Final = 1e-9
"""A baseline that moved less than this from its anchor (loss scale) did not move."""

Needs = tuple[int | None, int | None]
"""Sessions and rounds to measure until, None where a metric needs nothing more."""

MetricFinding = tuple[MetricVerdict, Needs, tuple[str, ...]]
"""A metric's verdict, what it still needs, and notes on excluded sessions and on rounds
that stand out.
"""

_UPDATE: Final = "run k3perf baseline propose to update the baseline"

NOTHING_NEEDED: Final[Needs] = (None, None)

_RATIOS = ("loss_ratio", "loss_lower_bound_ratio", "loss_upper_bound_ratio")
_UNKNOWN: Final[dict[str, Any]] = {
    **dict.fromkeys((*_RATIOS, "smallest_detectable_loss_ratio", "baseline_value", "now_value")),
    **dict.fromkeys(("relevant", "significant", "alpha")),
    **dict.fromkeys(("session_count", "round_count"), 0),
}


def plain_verdict(scale: Scale, outcome: Outcome, reason: str, **numbers: Any) -> MetricVerdict:
    """A verdict without other numbers than those given."""
    return MetricVerdict(
        metric=scale.metric.name,
        outcome=outcome,
        reason=reason,
        tolerance_ratio=scale.tolerance.loss_ratio,
        tolerance_absolute=scale.tolerance.loss_absolute,
        **{"unit": scale.metric.unit, **_UNKNOWN, **numbers},
    )


def judge_exact(
    scale: Scale, recorded: Sequence[float], measured: Sequence[float]
) -> MetricVerdict:
    """Worst measured against worst recorded value, one of each session and at least one
    each. IMPROVED if every measured value beats the best recorded one by more than the
    metric's ``gain`` says. Where a change ``both_ways`` is a loss, so is a value that
    lies below all recorded ones.
    """
    if not all(map(math.isfinite, (*measured, *recorded))):
        text = "a session, or one it is compared with, holds a value that is not a finite number"
        return plain_verdict(scale, Outcome.INVALID, text, session_count=len(measured))
    sign, tolerance = scale.sign, scale.tolerance
    worst_now = max(measured, key=lambda value: sign * value)
    worst_was = max(recorded, key=lambda value: sign * value)
    best_was = min(recorded, key=lambda value: sign * value)
    loss = sign * (worst_now - worst_was)
    if scale.metric.both_ways:
        best_now = min(measured, key=lambda value: sign * value)
        if sign * (best_was - best_now) > loss:
            loss, worst_now, worst_was = sign * (best_was - best_now), best_now, best_was
    allowed = tolerance.loss_absolute
    if allowed is None:
        allowed = (tolerance.loss_ratio or 0.0) * abs(worst_was)
    text = f"{_number(worst_was)} -> {_number(worst_now)} {scale.metric.unit}"
    outcome = Outcome.PASS
    if exactly_regressed(loss, allowed):
        outcome = Outcome.REGRESSED
        text += f", allowed loss {_number(allowed)}"
    elif not scale.metric.both_ways and _improved(
        scale.metric.gain, sign * (best_was - worst_now), allowed
    ):
        outcome = Outcome.IMPROVED
        text += f", better than every recorded value; {_UPDATE}"
    else:
        text = "equal" if loss == 0 else f"{text}, within the allowed loss of {_number(allowed)}"
    ratio = loss / abs(worst_was) if worst_was else math.nan
    return plain_verdict(
        scale,
        outcome,
        text + ("; sessions differ" if len(set(measured)) > 1 else ""),
        baseline_value=worst_was,
        now_value=worst_now,
        loss_ratio=ratio if math.isfinite(ratio) else None,
        relevant=outcome is Outcome.REGRESSED,
        session_count=len(measured),
    )


def _improved(kind: Gain, gain: float, allowed: float) -> bool:
    if kind is Gain.BEYOND_TOLERANCE:
        return gain > allowed > 0
    return kind is Gain.ANY and gain > IMPROVED_SHARE * allowed


def _number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value!r}"


def judge_other_ranks(
    scale: Scale, recorded: frozenset[int], measured: frozenset[int], *, committed: bool
) -> MetricVerdict | None:
    """The verdict where the worst of some number of ranks would be compared with the
    worst of another. None where the numbers are equal, or one side's is not known.
    ``committed``: what is compared with is a baseline, not this run's base arm.
    """
    if not recorded or not measured or (recorded == measured and len(recorded) == 1):
        return None
    differ = (
        f"the worst of {ranks_text(measured)} was measured, the worst of {ranks_text(recorded)}"
    )
    if committed:
        step = "have every rank read (docs/multi-host.md), or run k3perf baseline propose"
        return plain_verdict(scale, Outcome.NO_BASELINE, f"{differ} is in the baseline; {step}")
    text = f"{differ} in the base arm; they cannot be compared (docs/multi-host.md)"
    return plain_verdict(scale, Outcome.INVALID, text)


def judge_statistical(
    scale: Scale,
    entry: MetricBaseline | None,
    recorded: Reference | None,
    series: Series,
    policy: Policy,
) -> MetricFinding | MetricVerdict:
    """One metric against its baseline ``entry`` and the reference made of it. Both None
    in ab mode, where the expected difference is none.
    """
    if series.defect:
        return plain_verdict(scale, Outcome.INVALID, series.defect)
    if entry is not None and entry.constant and len({x for s in series.sessions for x in s}) == 1:
        return _as_exact(scale, entry, series)
    equal = any(len(x) > 1 and x[0] == x[-1] and len(set(x)) == 1 for x in series.sessions)
    if equal and not scale.metric.counted:
        stuck = "every round of a session read the very same value, which a measured quantity does"
        return plain_verdict(scale, Outcome.INVALID, f"{stuck} not do")
    reference = base_arm_reference(scale, series, policy) if recorded is None else recorded
    if not math.isfinite(reference.at(policy.plan.minimum_rounds).mean):
        text = "the baseline holds a value without a logarithm; record it again"
        return plain_verdict(scale, Outcome.INVALID, text)
    analyses = analyses_of(scale, reference, policy.plan)
    limits = limits_of(scale, policy)
    if entry is not None:
        cap = scale.loss_of(policy.cumulative_loss_cap_ratio, entry.anchor_value)
        left = remaining_tolerance(reference.moved_since_anchor, cap, limits.tolerance)
        limits = limits._replace(remaining=left)
    decision = judge(series.sessions, reference, limits, analyses)
    excluded = _excluded(decision, scale, reference, series)
    verdict = _verdict(scale, reference, decision, len(analyses), excluded)
    if entry is not None:
        moved = reference.moved_since_anchor
        verdict = _against_anchor(verdict, scale, decision, moved, entry.anchor_value)
    undecided = verdict.outcome in (Outcome.INCONCLUSIVE, Outcome.SUSPECT, Outcome.INVALID)
    needs = (decision.need_sessions, decision.need_rounds) if undecided else NOTHING_NEEDED
    notes = [*_outliers(scale, series), *excluded]
    return verdict, needs, tuple(f"{scale.metric.name}: {text}" for text in notes)


def _as_exact(scale: Scale, entry: MetricBaseline, series: Series) -> MetricVerdict:
    """Recorded and measured without any spread: a number of this cell that does not
    vary.
    """
    now, was = scale.value(series.sessions[0][0]), entry.sessions[0].value
    close = math.isclose(now, was, rel_tol=1e-12, abs_tol=1e-12)
    verdict = judge_exact(scale, [was], [was if close else now])
    return replace(
        verdict,
        unit=scale.unit,
        session_count=len(series.sessions),
        round_count=sum(map(len, series.sessions)),
        reason=f"recorded and measured without any spread, so compared exactly: {verdict.reason}",
    )


def limits_of(scale: Scale, policy: Policy) -> Limits:
    """Tolerance and this metric's shares of the error rates."""
    rates = (policy.alpha, policy.half_tolerance_alpha, policy.missed_loss_budget)
    return Limits(scale.allowed, *rates, policy.plan.maximum_rounds)


def analyses_of(
    scale: Scale, reference: Reference, plan: MeasurementPlan
) -> tuple[InterimAnalysis, ...]:
    """The metric's interim analyses under the plan and the recorded noise."""
    sessions = range(plan.minimum_sessions, plan.maximum_sessions + 1)
    extra = plan.suspect_sessions - plan.maximum_sessions
    if scale.metric.scope is Scope.SESSION:
        return schedule(sessions, 1, 1, 1, reference.session_count, extra=extra)
    least, rounds, share = plan.minimum_rounds, reference.rounds, 1.0
    full = plan.maximum_rounds if plan.maximum_sessions == 1 else rounds
    if full > least:
        share = reference.noise.share(reference.location, least, full)
    most, recorded = plan.maximum_rounds, reference.session_count
    return schedule(sessions, least, rounds, most, recorded, share, extra)


def _verdict(
    scale: Scale,
    reference: Reference,
    decision: Decision,
    analysis_count: int,
    excluded: Sequence[str],
) -> MetricVerdict:
    base = scale.value(decision.reference_mean)

    def ratio(loss: float | None) -> float | None:
        """None: not finite, so no bound could be given."""
        return None if loss is None or loss - loss != 0 else scale.loss_ratio(loss, base)

    estimate = decision.estimate
    now = None if estimate is None else scale.value(decision.reference_mean + estimate)
    reason = _reason(decision, analysis_count, reference, excluded)
    if decision.outcome is Outcome.SUSPECT and estimate is not None:
        shown, allowed = f"{estimate:.4g}", f"{scale.allowed:g} {scale.metric.unit}"
        if scale.logarithmic:
            shown, allowed = f"{ratio(estimate) or 0:.1%}", f"{scale.tolerance.loss_ratio:.1%}"
        reason = f"worse {shown}, tolerance {allowed}, not proven; {reason}"
    if decision.noise is not None and decision.noise.p < METRIC_LEVEL:
        times = math.sqrt(decision.noise.ratio)
        reason += f"; the candidate's sessions vary {times:.1f} times as much as recorded"
    return plain_verdict(
        scale,
        decision.outcome,
        reason,
        unit=scale.unit,
        baseline_value=base,
        now_value=now,
        loss_ratio=ratio(estimate),
        loss_lower_bound_ratio=ratio(decision.lower),
        loss_upper_bound_ratio=ratio(decision.upper),
        relevant=decision.relevant,
        significant=decision.significant,
        smallest_detectable_loss_ratio=ratio(decision.detectable),
        session_count=decision.sessions,
        round_count=decision.rounds,
        alpha=decision.alpha,
        look=decision.analysis,
        **({} if decision.noise is None else decision.noise.as_fields()),
    )


_SUSPECTED: Final = (
    "; raise maximum_suspect_sessions in the target's plan, or compare with --k3-ab-base"
)

_DECIDED = {
    Outcome.REGRESSED: "the loss exceeds the tolerance and its lower bound is above zero",
    Outcome.PASS: "the upper bound of the loss lies inside the tolerance",
    Outcome.IMPROVED: f"the gain is certain; {_UPDATE}",
}


def _reason(
    decision: Decision, analysis_count: int, reference: Reference, excluded: Sequence[str]
) -> str:
    where = f"interim analysis {decision.analysis} of {analysis_count}"
    if reference.location is not Location.MEDIAN:
        where += f"; a session counts by the {reference.location} of its rounds' losses"
    if decision.cause is Cause.DECIDED:
        return "; ".join([f"{_DECIDED[decision.outcome]} ({where})", *excluded])
    wanted = f"{decision.need_sessions} sessions of {decision.need_rounds} rounds"
    need = f"; needs {wanted}" if decision.need_sessions else ""
    if decision.cause is Cause.TOO_FEW:
        return f"too little was measured for an interim analysis{need}"
    if decision.cause is Cause.NO_NOISE:
        step = need or "; record more baseline sessions"
        return f"no noise between sessions is known for this metric{step}"
    if decision.cause is Cause.OUTLIERS:
        return f"rounds stand out in a session that seems to lose more than the tolerance{need}"
    if excluded:
        return f"{'; '.join(excluded)}{need or '; the plan has too few sessions to do without'}"
    if decision.cause is Cause.SPREAD:
        return f"a session's rounds {_spread(decision.spread, reference)}{need}"
    suspect = decision.outcome is Outcome.SUSPECT
    spent = need or (_SUSPECTED if suspect else "; the measurement budget is spent")
    return f"the evidence decides neither way ({where}){spent}"


def _spread(spread: float | None, reference: Reference) -> str:
    most = f"at most {reference.spread_over_noise_ratio:g} ({SPREAD_LIMIT})"
    return f"spread {spread or 0.0:.1f} times as much as recorded, {most}"


def _excluded(decision: Decision, scale: Scale, reference: Reference, series: Series) -> list[str]:
    """The excluded sessions with what each would have said: a reader must see where
    that contradicts the outcome.
    """
    return [
        f"session {series.session_ids[session.place]} was excluded: its rounds"
        f" {_spread(session.spread, reference)}, and it read {_worse(scale, session.loss)}"
        f"{', beyond the tolerance' if session.loss > scale.allowed else ''}"
        for session in decision.excluded
    ]


def _against_anchor(
    verdict: MetricVerdict, scale: Scale, decision: Decision, moved: float, anchor_value: float
) -> MetricVerdict:
    """The loss since the anchor, where the baseline has moved away from it."""
    if decision.estimate is None or not math.isfinite(moved) or abs(moved) < SAME_AS_ANCHOR:
        return verdict
    cumulative = scale.loss_ratio(decision.estimate + moved, anchor_value)
    reason = verdict.reason
    slid = verdict.outcome is Outcome.REGRESSED and decision.estimate <= scale.allowed
    if slid and cumulative is not None:
        reason = f"the losses since the anchor add up to {cumulative:.1%}; {reason}"
    return replace(verdict, cumulative_loss_ratio=cumulative, reason=reason)


def _outliers(scale: Scale, series: Series) -> list[str]:
    named = []
    for losses, indices, session_id in zip(
        series.sessions, series.round_indices, series.session_ids, strict=True
    ):
        if len(losses) < 3 or max(losses) - min(losses) <= scale.allowed:
            continue
        centre = median(losses)
        limit = max(OUTLIER_SIGMAS * robust_sigma(losses, centre), scale.allowed)
        named += [
            f"round {index} of session {session_id} stands out, {_worse(scale, loss - centre)}"
            " than its session's median"
            for loss, index in zip(losses, indices, strict=True)
            if abs(loss - centre) > limit
        ]
    return named


def _worse(scale: Scale, loss: float) -> str:
    word = "worse" if loss > 0 else "better"
    if scale.logarithmic:
        return f"{abs(scale.loss_ratio(loss, None) or 0.0):.0%} {word}"
    return f"{abs(loss):.4g} {scale.metric.unit} {word}"
