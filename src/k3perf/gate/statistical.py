"""One statistical metric of a cell: series and baseline entry to a ``MetricVerdict``,
with the sentence that explains it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from k3perf.config.models import MeasurementPlan
from k3perf.gate.decision import Decision, judge
from k3perf.gate.exact import judge_exact, plain_verdict
from k3perf.gate.looks import Look, schedule
from k3perf.gate.policy import Policy
from k3perf.gate.readings import Series
from k3perf.gate.reference import Reference, Subject, base_arm_reference, recorded_reference
from k3perf.gate.scale import Scale
from k3perf.gate.session_values import OUTLIER_SIGMAS, Cause, Limits, SetAside
from k3perf.metrics.validity import SPREAD_LIMIT
from k3perf.records.baseline import MetricBaseline
from k3perf.records.metric_definitions import Scope
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import MetricVerdict
from k3perf.stats.location import mean, median, robust_sigma
from k3perf.stats.order_statistics import Location

SAME_AS_ANCHOR: Final = 1e-9
"""A baseline that moved less than this from its anchor (loss scale) did not move."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A metric's verdict with what it still needs (None: nothing), and for the cell's
    notes the rounds that stand out and the sessions that were set aside.
    """

    verdict: MetricVerdict
    need_sessions: int | None = None
    need_rounds: int | None = None
    outliers: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()


def judge_statistical(
    subject: Subject,
    entry: MetricBaseline | None,
    series: Series,
    policy: Policy,
    *,
    alternating: bool,
) -> Judged:
    """``entry`` None: ab mode, the expected difference is none. ``alternating`` as in
    ``Readings``.
    """
    if series.defect:
        return Judged(_plain(subject, Outcome.INVALID, series.defect))
    if entry is not None and entry.constant and _never_varies(series):
        return Judged(_as_exact(subject, entry, series))
    if _stuck(series):
        return Judged(
            _plain(
                subject,
                Outcome.INVALID,
                "every round of a session read the very same value, which a measured quantity does"
                " not do",
            )
        )
    reference = (
        base_arm_reference(subject, series, policy)
        if entry is None
        else recorded_reference(subject, entry, policy, alternating=alternating)
    )
    if not math.isfinite(reference.at(policy.plan.minimum_rounds).mean):
        return Judged(
            _plain(
                subject,
                Outcome.INVALID,
                "the baseline holds a value without a logarithm; record it anew",
            )
        )
    looks = looks_of(subject, reference, policy.plan)
    limits = limits_of(subject, policy)
    decision = judge(series.sessions, reference, limits, looks)
    aside = tuple(
        _aside(item, subject, reference, series, limits.tolerance) for item in decision.set_aside
    )
    verdict = _verdict(subject, reference, decision, len(looks), aside)
    if entry is not None:
        verdict = _against_anchor(
            verdict, subject, decision, entry, policy.cumulative_loss_cap_ratio
        )
    needs = (
        (decision.need_sessions, decision.need_rounds)
        if verdict.outcome in (Outcome.INCONCLUSIVE, Outcome.INVALID)
        else (None, None)
    )
    named = tuple(f"{subject.metric.name}: {text}" for text in aside)
    return Judged(
        verdict, *needs, outliers=_outliers(subject, series, limits.tolerance), set_aside=named
    )


def _never_varies(series: Series) -> bool:
    return len({loss for losses in series.sessions for loss in losses}) == 1


def _stuck(series: Series) -> bool:
    return any(
        losses[0] == losses[-1] and len(losses) > 1 and len(set(losses)) == 1
        for losses in series.sessions
    )


def _as_exact(subject: Subject, entry: MetricBaseline, series: Series) -> MetricVerdict:
    """Recorded and measured without any spread: a number of this cell that does not
    vary.
    """
    now = subject.scale.value(series.sessions[0][0])
    was = entry.sessions[0].value
    close = was if math.isclose(now, was, rel_tol=1e-12, abs_tol=1e-12) else now
    verdict = judge_exact(subject.metric, subject.tolerance, [was], [close])
    return replace(
        verdict,
        unit=subject.unit,
        session_count=len(series.sessions),
        round_count=sum(map(len, series.sessions)),
        reason=f"recorded and measured without any spread, so compared exactly: {verdict.reason}",
    )


def limits_of(subject: Subject, policy: Policy) -> Limits:
    """Tolerance and this metric's shares of the budgets."""
    loss = subject.scale.tolerance(subject.tolerance)
    return _limits(
        loss,
        policy.alpha,
        policy.half_tolerance_alpha,
        policy.missed_loss_budget,
        policy.plan.maximum_rounds,
    )


@lru_cache(maxsize=1024)
def _limits(
    tolerance: float, alpha: float, half_alpha: float, beta: float, maximum_rounds: int
) -> Limits:
    return Limits(tolerance, alpha, half_alpha, beta, maximum_rounds)


def looks_of(subject: Subject, reference: Reference, plan: MeasurementPlan) -> tuple[Look, ...]:
    """The metric's schedule under the plan and the recorded noise."""
    sessions = range(plan.minimum_sessions, plan.maximum_sessions + 1)
    if subject.metric.scope is Scope.SESSION:
        return schedule(sessions, 1, 1, 1, reference.session_count)
    return round_looks(reference, plan)


def round_looks(reference: Reference, plan: MeasurementPlan) -> tuple[Look, ...]:
    """The schedule of a metric that has rounds."""
    sessions = range(plan.minimum_sessions, plan.maximum_sessions + 1)
    rounds = reference.taken.rounds
    full = plan.maximum_rounds if plan.maximum_sessions == 1 else rounds
    share = (
        reference.noise.share(reference.taken.location, plan.minimum_rounds, full)
        if full > plan.minimum_rounds
        else 1.0
    )
    return schedule(
        sessions, plan.minimum_rounds, rounds, plan.maximum_rounds, reference.session_count, share
    )


def _verdict(
    subject: Subject,
    reference: Reference,
    decision: Decision,
    look_count: int,
    aside: tuple[str, ...],
) -> MetricVerdict:
    scale = subject.scale
    base = scale.value(decision.reference_mean)

    loss_ratio = scale.loss_ratio

    def ratio(loss: float | None) -> float | None:
        return (
            None if loss is None or loss - loss != 0 else loss_ratio(loss, base)
        )  # not finite: no bound could be given

    return MetricVerdict(
        metric=subject.metric.name,
        unit=subject.unit,
        outcome=decision.outcome,
        baseline_value=base,
        now_value=(
            None
            if decision.estimate is None
            else scale.value(decision.reference_mean + decision.estimate)
        ),
        loss_ratio=ratio(decision.estimate),
        loss_lower_bound_ratio=ratio(decision.lower),
        loss_upper_bound_ratio=ratio(decision.upper),
        tolerance_ratio=subject.tolerance.loss_ratio,
        tolerance_absolute=subject.tolerance.loss_absolute,
        relevant=decision.relevant,
        significant=decision.significant,
        smallest_detectable_loss_ratio=ratio(decision.detectable),
        session_count=decision.sessions,
        round_count=decision.rounds,
        alpha=decision.alpha,
        reason=_reason(decision, look_count, reference, aside),
        look=decision.look,
    )


_DECIDED = {
    Outcome.REGRESSED: "the loss exceeds the tolerance and its lower bound excludes no loss",
    Outcome.PASS: "the upper bound of the loss lies inside the tolerance",
    Outcome.IMPROVED: "the gain is certain; run k3perf baseline propose to lift the baseline",
}


def _reason(
    decision: Decision, look_count: int, reference: Reference, aside: tuple[str, ...]
) -> str:
    location = reference.taken.location
    where = f"look {decision.look} of {look_count}"
    if location is not Location.MEDIAN:
        where += f"; a session counts by the {location} of its rounds' losses"
    if decision.cause is Cause.DECIDED:
        return "; ".join([f"{_DECIDED[decision.outcome]} ({where})", *aside])
    need = (
        f"; needs {decision.need_sessions} sessions of {decision.need_rounds} rounds"
        if decision.need_sessions
        else ""
    )
    if decision.cause is Cause.TOO_FEW:
        return f"too little was measured to look at{need}"
    if decision.cause is Cause.NO_NOISE:
        return (
            "no noise between sessions is known for this"
            f" metric{need or '; record more baseline sessions'}"
        )
    if decision.cause is Cause.OUTLIERS:
        return f"rounds stand out in a session that seems to lose more than the tolerance{need}"
    if aside:
        return f"{'; '.join(aside)}{need or '; the plan has too few sessions to do without'}"
    if decision.cause is Cause.SPREAD:
        return (
            f"a session's rounds spread {decision.spread:.1f} times as much as recorded,"
            f" {_most(reference)}{need}"
        )
    return (
        f"the evidence decides neither way ({where}){need or '; the measurement budget is spent'}"
    )


def _most(reference: Reference) -> str:
    return f"at most {reference.spread_over_noise_ratio:g} ({SPREAD_LIMIT})"


def _aside(
    item: SetAside, subject: Subject, reference: Reference, series: Series, tolerance: float
) -> str:
    """A session that was set aside, with what it would have said: a reader must see
    where that contradicts the outcome.
    """
    beyond = ", beyond the tolerance" if item.loss > tolerance else ""
    return (
        f"session {series.session_ids[item.place]} was set aside: its rounds spread"
        f" {item.spread:.1f} times as much as recorded, {_most(reference)}, and it read"
        f" {_worse(subject, item.loss)}{beyond}"
    )


def _against_anchor(
    verdict: MetricVerdict,
    subject: Subject,
    decision: Decision,
    entry: MetricBaseline,
    cap_ratio: float,
) -> MetricVerdict:
    """A slow slide: every step inside the tolerance, the sum certainly beyond the
    cap.
    """
    moved = _moved_since_anchor(entry, subject.scale)
    if (
        decision.estimate is None
        or decision.lower is None
        or not math.isfinite(moved)
        or abs(moved) < SAME_AS_ANCHOR
    ):
        return verdict
    cumulative = subject.scale.loss_ratio(decision.estimate + moved, entry.anchor_value)
    certain = subject.scale.loss_ratio(decision.lower + moved, entry.anchor_value)
    verdict = replace(verdict, cumulative_loss_ratio=cumulative)
    if certain is None or cumulative is None or certain <= cap_ratio or moved <= 0:
        return verdict
    text = (
        f"the losses since the anchor add up to {cumulative:.1%} (certainly {certain:.1%}), the cap"
        f" is {cap_ratio:.1%}"
    )
    return replace(verdict, outcome=Outcome.REGRESSED, reason=text)


def _moved_since_anchor(entry: MetricBaseline, scale: Scale) -> float:
    """The baseline's own loss since the anchor, both in the values that were
    committed.
    """
    key = ("moved", scale.logarithmic)
    moved: float | None = entry.memo.get(key)
    if moved is None:
        committed = mean([scale.loss(session.value) for session in entry.sessions])
        moved = entry.memo[key] = committed - scale.loss(entry.anchor_value)
    return moved


def _outliers(subject: Subject, series: Series, tolerance: float) -> tuple[str, ...]:
    named = []
    for losses, indices, session_id in zip(
        series.sessions, series.round_indices, series.session_ids, strict=False
    ):
        if len(losses) < 3 or max(losses) - min(losses) <= tolerance:
            continue
        centre = median(losses)
        limit = max(OUTLIER_SIGMAS * robust_sigma(losses, centre), tolerance)
        where = f"of session {session_id} stands out"
        named += [
            f"{subject.metric.name}: round {index} {where}, {_worse(subject, loss - centre)} than"
            " its session's median"
            for loss, index in zip(losses, indices, strict=True)
            if abs(loss - centre) > limit
        ]
    return tuple(named)


def _worse(subject: Subject, loss: float) -> str:
    word = "worse" if loss > 0 else "better"
    if subject.scale.logarithmic:
        return f"{abs(subject.scale.loss_ratio(loss, None) or 0.0):.0%} {word}"
    return f"{abs(loss):.4g} {subject.metric.unit} {word}"


def _plain(subject: Subject, outcome: Outcome, reason: str) -> MetricVerdict:
    return plain_verdict(subject.metric, subject.tolerance, outcome, reason)
