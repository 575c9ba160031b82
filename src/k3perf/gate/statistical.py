"""One statistical metric of a cell: series and baseline entry to a ``MetricVerdict``, with the sentence that explains it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from k3perf.config.models import Tolerance
from k3perf.gate.baseline import MetricBaseline
from k3perf.gate.decision import Cause, Decision, Limits, Reference, judge
from k3perf.gate.exact import judge_exact
from k3perf.gate.looks import Look, rounds_worth_having, schedule
from k3perf.gate.noise import MetricNoise, round_variance, session_losses
from k3perf.gate.outcome import Outcome
from k3perf.gate.policy import Policy
from k3perf.gate.readings import Series
from k3perf.gate.scale import Scale
from k3perf.gate.verdict import MetricVerdict, plain_verdict
from k3perf.metrics.definitions import MetricDef, Scope
from k3perf.stats.location import mean, median, robust_sigma, sample_variance
from k3perf.stats.pooling import VariancePrior

SAME_AS_ANCHOR: Final = 1e-9
"""A baseline that moved less than this from its anchor (loss scale) did not move."""

OUTLIER_SIGMAS: Final = 5.0
"""A round further than this from its session's median, in robust sigmas, and further than the tolerance, is named."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A metric's verdict with what it still needs (None: nothing) and the rounds that stand out."""

    verdict: MetricVerdict
    need_sessions: int | None = None
    need_rounds: int | None = None
    outliers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """One metric with its tolerance and scale, and how values were compared (``basis``)."""

    metric: MetricDef
    tolerance: Tolerance
    scale: Scale
    basis: str

    @property
    def unit(self) -> str:
        """Of the compared values."""
        return "ratio" if self.basis == "ratio" else self.metric.unit


def judge_statistical(subject: Subject, entry: MetricBaseline | None, series: Series, policy: Policy, *, alternating: bool) -> Judged:
    """``entry`` None: ab mode, the expected difference is none. ``alternating`` as in ``Readings``."""
    if series.defect:
        return Judged(_plain(subject, Outcome.INVALID, series.defect))
    if entry is not None and entry.constant and _never_varies(series):
        return Judged(_as_exact(subject, entry, series))
    if _stuck(series):
        return Judged(
            _plain(subject, Outcome.INVALID, "every round of a session read the very same value, which a measured quantity does not do")
        )
    if entry is None:
        reference = _base_arm(subject, series, policy, alternating=alternating)
    else:
        reference = recorded_reference(subject, entry, policy, alternating=alternating)
    if not math.isfinite(reference.mean):
        return Judged(_plain(subject, Outcome.INVALID, "the baseline holds a value without a logarithm; record it anew"))
    looks = looks_of(subject, reference, policy)
    limits = limits_of(subject, policy)
    decision = judge(series.sessions, reference, limits, looks)
    verdict = _verdict(subject, reference, decision, len(looks))
    if entry is not None:
        moved = reference.mean - subject.scale.loss(entry.anchor_value)
        verdict = _against_anchor(verdict, subject, decision, moved, policy.cumulative_loss_cap_ratio)
    needs = (decision.need_sessions, decision.need_rounds) if verdict.outcome in (Outcome.INCONCLUSIVE, Outcome.INVALID) else (None, None)
    return Judged(verdict, *needs, outliers=_outliers(subject, series, limits.tolerance))


def _never_varies(series: Series) -> bool:
    return len({loss for losses in series.sessions for loss in losses}) == 1


def _stuck(series: Series) -> bool:
    return any(len(losses) > 1 and len(set(losses)) == 1 for losses in series.sessions)


def _as_exact(subject: Subject, entry: MetricBaseline, series: Series) -> MetricVerdict:
    """Recorded and measured without any spread: a number of this cell that does not vary."""
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
    return _limits(loss, policy.alpha, policy.half_tolerance_alpha, policy.missed_loss_budget, policy.plan.maximum_rounds)


@lru_cache(maxsize=1024)
def _limits(tolerance: float, alpha: float, half_alpha: float, beta: float, maximum_rounds: int) -> Limits:
    return Limits(tolerance, alpha, half_alpha, beta, maximum_rounds)


def _base_arm(subject: Subject, series: Series, policy: Policy, *, alternating: bool) -> Reference:
    """ab: the expected difference is none, and known; the noise is that of pairs."""
    prior, rounds, count = _pair_noise(subject, policy.noise_of(subject.metric.name, subject.basis), policy)
    own = [median(losses) for losses in series.sessions]
    variance, df = prior.moderate(sample_variance(own), max(len(own) - 1, 0))
    round_scope = subject.metric.scope is Scope.ROUND
    return Reference(0.0, 0, variance, df, _both_arms(rounds, alternating=alternating), count if round_scope else 0)


def recorded_reference(subject: Subject, entry: MetricBaseline, policy: Policy, *, alternating: bool) -> Reference:
    """Mean and noise of the recorded sessions; ``mean`` is NaN where one has no loss."""
    noise = policy.noise_of(subject.metric.name, subject.basis)
    losses = session_losses(entry, subject.scale)
    centre = mean(losses)
    own = 0.0 if noise.session.pooled else sample_variance(losses)
    variance, df = noise.session.moderate(own, len(losses) - 1) if math.isfinite(centre) else (math.nan, 0)
    count = entry.round_count
    rounds = None
    if count:
        rounds = noise.round_variance if noise.round_variance is not None else round_variance(entry, subject.scale)
    if subject.basis != "absolute":
        rounds = _both_arms(rounds, alternating=alternating)
    return Reference(centre, len(losses), variance, df, rounds, count)


def _both_arms(rounds: float | None, *, alternating: bool) -> float | None:
    """Where rounds did not alternate, the series holds one arm's noise and the session's value both."""
    return rounds if rounds is None or alternating else 2 * rounds


def _pair_noise(subject: Subject, noise: MetricNoise, policy: Policy) -> tuple[VariancePrior, float | None, int]:
    """Noise of a pair: recorded for pairs, or twice the recorded one of single sessions (pairing can only make it smaller)."""
    if noise.session.total_df:
        return noise.session, noise.round_variance, noise.round_count or 1
    single = policy.noise_of(subject.metric.name, "absolute")
    prior = replace(single.session, variance=2 * single.session.variance)
    return prior, None if single.round_variance is None else 2 * single.round_variance, single.round_count or 1


def looks_of(subject: Subject, reference: Reference, policy: Policy) -> tuple[Look, ...]:
    """The metric's schedule under the plan and the recorded noise."""
    plan = policy.plan
    sessions = range(plan.minimum_sessions, plan.maximum_sessions + 1)
    if subject.metric.scope is Scope.SESSION:
        return schedule(sessions, 1, 1, 1, reference.session_count)
    noise = policy.noise_of(subject.metric.name, subject.basis).session
    variance = noise.variance if reference.session_count == 0 else reference.variance
    rounds = rounds_worth_having(variance, reference.round_variance, reference.round_count, plan.minimum_rounds, plan.maximum_rounds)
    return schedule(sessions, plan.minimum_rounds, rounds, plan.maximum_rounds, reference.session_count)


def _verdict(subject: Subject, reference: Reference, decision: Decision, look_count: int) -> MetricVerdict:
    scale = subject.scale
    base = scale.value(reference.mean)

    def ratio(loss: float | None) -> float | None:
        return None if loss is None or loss - loss != 0 else scale.loss_ratio(loss, base)  # not finite: no bound could be given

    return MetricVerdict(
        metric=subject.metric.name,
        unit=subject.unit,
        outcome=decision.outcome,
        baseline_value=base,
        now_value=None if decision.estimate is None else scale.value(reference.mean + decision.estimate),
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
        reason=_reason(decision, look_count),
        look=decision.look,
    )


_DECIDED = {
    Outcome.REGRESSED: "the loss exceeds the tolerance and its lower bound excludes no loss",
    Outcome.PASS: "the upper bound of the loss lies inside the tolerance",
    Outcome.IMPROVED: "the gain is certain; run k3perf baseline propose to lift the baseline",
}


def _reason(decision: Decision, look_count: int) -> str:
    if decision.cause is Cause.DECIDED:
        return f"{_DECIDED[decision.outcome]} (look {decision.look} of {look_count})"
    need = f"; needs {decision.need_sessions} sessions of {decision.need_rounds} rounds" if decision.need_sessions else ""
    if decision.cause is Cause.TOO_FEW:
        return f"too little was measured to look at{need}"
    if decision.cause is Cause.NO_NOISE:
        return f"no noise between sessions is known for this metric{need or '; record more baseline sessions'}"
    if decision.cause is Cause.SPREAD:
        return f"a session's rounds spread {decision.spread:.1f} times as much as recorded{need}"
    return f"the evidence decides neither way (look {decision.look} of {look_count}){need or '; the measurement budget is spent'}"


def _against_anchor(verdict: MetricVerdict, subject: Subject, decision: Decision, moved: float, cap_ratio: float) -> MetricVerdict:
    """A slow slide: every step inside the tolerance, the sum certainly beyond the cap. ``moved``: the baseline's own loss since the
    anchor."""
    if decision.estimate is None or decision.lower is None or not math.isfinite(moved) or abs(moved) < SAME_AS_ANCHOR:
        return verdict
    anchor = subject.scale.value(subject.scale.loss(verdict.baseline_value or 0.0) - moved)
    cumulative = subject.scale.loss_ratio(decision.estimate + moved, anchor)
    certain = subject.scale.loss_ratio(decision.lower + moved, anchor)
    verdict = replace(verdict, cumulative_loss_ratio=cumulative)
    if certain is None or cumulative is None or certain <= cap_ratio or moved <= 0:
        return verdict
    text = f"the losses since the anchor add up to {cumulative:.1%} (certainly {certain:.1%}), the cap is {cap_ratio:.1%}"
    return replace(verdict, outcome=Outcome.REGRESSED, reason=text)


def _outliers(subject: Subject, series: Series, tolerance: float) -> tuple[str, ...]:
    named = []
    for losses, indices, session_id in zip(series.sessions, series.round_indices, series.session_ids, strict=False):
        if len(losses) < 3 or max(losses) - min(losses) <= tolerance:
            continue
        centre = median(losses)
        limit = max(OUTLIER_SIGMAS * robust_sigma(losses, centre), tolerance)
        where = f"of session {session_id} stands out"
        named += [
            f"{subject.metric.name}: round {index} {where}, {_worse(subject, loss - centre)} than its session's median"
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
