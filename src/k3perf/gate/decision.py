"""One statistical metric of one cell: session losses and recorded noise to an outcome, look by look. Pure arithmetic on floats.

Unit of replication: the session. A session's value is the median of its rounds' losses. The estimate is the mean of the candidate
sessions minus the mean of the baseline's; its standard error is s * sqrt(1/n + 1/m), a prediction interval's, s being the moderated
pooled standard deviation between sessions (ddof 1 in each cell) plus the rounds' noise where a session has fewer rounds than the
recorded ones. All tests are one-sided.

REGRESSED at a look needs all of
* relevant: the estimate exceeds the tolerance;
* significant: the lower bound at this look's share of alpha is above no loss;
* clear: the lower bound at the share of the half-tolerance budget is above half of the tolerance;
* carried by two sessions: at least two candidate sessions each lose more than the tolerance, and where a session has few rounds each of
  them loses more than half of it. One session alone is never REGRESSED, except
  where the plan has no second; then it must pass the quantile of a heavy-tailed draw.

PASS at a look needs the upper bound, at this look's share of beta, below the tolerance. IMPROVED is a PASS whose gain is significant at
alpha. The first look that decides is the decision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from k3perf.gate.looks import Look
from k3perf.gate.outcome import Outcome
from k3perf.stats.location import MEDIAN_VARIANCE_FACTOR, median, robust_sigma
from k3perf.stats.student import single_draw_quantile, upper_quantile

CLEAR_SHARE: Final = 0.5
"""The share of the tolerance that a REGRESSED loss must exceed beyond doubt."""

FEW_ROUNDS: Final = 8
"""Below this many rounds a median may lie among rounds that were slow on their own: three of four, if one in ten is, in 0.4 % of
sessions."""

SPREAD_LIMIT: Final = 3.0
"""Rounds whose robust sigma is this many times the recorded one are out of line; the session gets rounds up to the maximum."""

IMPROVED_SHARE: Final = 0.5
"""The share of the tolerance that a gain must exceed to be worth a new baseline."""


class Cause(StrEnum):
    """Why a metric is where it is, for the sentence in the verdict."""

    DECIDED = "decided"
    TOO_FEW = "too_few"
    UNDECIDED = "undecided"
    NO_NOISE = "no_noise"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Reference:
    """What a candidate is compared with, on the loss scale. ``session_count`` 0: the expected value is known (ab), not measured.

    ``variance`` and ``df``: between sessions. ``round_variance`` within a session, None where the metric has no rounds; ``round_count``
    is how many rounds the recorded sessions had.
    """

    mean: float
    session_count: int
    variance: float
    df: int
    round_variance: float | None
    round_count: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Tolerance on the loss scale and this metric's shares of the budgets, before they are spent over looks."""

    tolerance: float
    alpha: float
    half_alpha: float
    beta: float
    maximum_rounds: int


@dataclass(frozen=True, slots=True)
class Decision:
    """An outcome with the numbers it rests on (loss scale). ``need_sessions``/``need_rounds``: the next look, None when there is none."""

    outcome: Outcome
    cause: Cause
    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None
    detectable: float | None = None
    relevant: bool | None = None
    significant: bool | None = None
    alpha: float | None = None
    sessions: int = 0
    rounds: int = 0
    look: int = 0
    spread: float | None = None
    need_sessions: int | None = None
    need_rounds: int | None = None


class _Ready(NamedTuple):
    """The look's sessions: medians, round counts, and what each carries towards REGRESSED (its best round where rounds are few)."""

    values: list[float]
    counts: list[int]
    carried: list[float]


class _Bounds(NamedTuple):
    lower: float
    clear_lower: float
    upper: float
    gain_upper: float


def judge(sessions: Sequence[Sequence[float]], reference: Reference, limits: Limits, looks: Sequence[Look]) -> Decision:
    """The first look that decides, else the state at the last look that was reached.

    ``sessions``: per valid candidate session, in order of time, its valid rounds' losses in order of time (one value for session
    metrics).
    """
    if reference.df < 1 or not math.isfinite(reference.variance):
        return _without_noise(sessions, reference, looks)
    detectable = smallest_detectable(reference, limits, looks[-1])
    state: Decision | None = None
    for index, look in enumerate(looks):
        ready = _session_values(sessions, look, reference, limits)
        if isinstance(ready, Decision):
            return _not_reached(state or _before_any_look(sessions, detectable), ready)
        upcoming = looks[index + 1] if index + 1 < len(looks) else None
        state = _at_look(ready, reference, limits, (index + 1, look, upcoming), detectable)
        if state.cause is Cause.DECIDED:
            break
    return state or _before_any_look(sessions, detectable)


def _before_any_look(sessions: Sequence[Sequence[float]], detectable: float | None) -> Decision:
    return Decision(Outcome.INCONCLUSIVE, Cause.TOO_FEW, detectable=detectable, sessions=len(sessions), rounds=sum(map(len, sessions)))


def smallest_detectable(reference: Reference, limits: Limits, look: Look) -> float | None:
    """The true loss that ``look`` calls REGRESSED with probability 1 - beta: its critical value plus t_beta standard errors.

    The look counts as the only one spending its share, which overstates the loss a little. None: no noise is known.
    """
    if reference.df < 1:
        return None
    error = _standard_error(look.sessions, [look.rounds] * look.sessions, reference)
    quantile = single_draw_quantile if look.sessions == 1 else upper_quantile
    critical = max(
        limits.tolerance,
        quantile(limits.alpha * look.alpha_share, reference.df) * error,
        CLEAR_SHARE * limits.tolerance + quantile(limits.half_alpha * look.alpha_share, reference.df) * error,
    )
    return critical + upper_quantile(limits.beta, reference.df) * error


def _without_noise(sessions: Sequence[Sequence[float]], reference: Reference, looks: Sequence[Look]) -> Decision:
    """Only in ab do more sessions bring the noise that is missing."""
    last = looks[-1]
    more = reference.session_count == 0 and len(sessions) < max(2, last.sessions) <= last.sessions
    return Decision(
        Outcome.INCONCLUSIVE,
        Cause.NO_NOISE,
        sessions=len(sessions),
        rounds=sum(map(len, sessions)),
        need_sessions=max(2, len(sessions) + 1) if more else None,
        need_rounds=last.rounds if more else None,
    )


def _session_values(sessions: Sequence[Sequence[float]], look: Look, reference: Reference, limits: Limits) -> _Ready | Decision:
    """Medians and round counts of the look's sessions, or what is missing for them."""
    wanted = look.rounds if reference.round_count else 1
    usable = [losses for losses in sessions if len(losses) >= wanted]
    missing = Decision(Outcome.INCONCLUSIVE, Cause.TOO_FEW, need_sessions=look.sessions, need_rounds=look.rounds)
    if len(usable) < look.sessions:
        return missing
    values, counts, carried = [], [], []
    for losses in usable[: look.sessions]:
        used = losses[:wanted]
        centre = median(used)
        if reference.round_variance and _spread(used, centre, reference.round_variance) > SPREAD_LIMIT:
            used = losses[: limits.maximum_rounds]
            centre = median(used)
            spread = _spread(used, centre, reference.round_variance)
            if spread > SPREAD_LIMIT and len(used) >= limits.maximum_rounds:
                return Decision(Outcome.INVALID, Cause.SPREAD, spread=spread)
            if len(used) < limits.maximum_rounds:
                return Decision(
                    Outcome.INCONCLUSIVE, Cause.SPREAD, spread=spread, need_sessions=look.sessions, need_rounds=limits.maximum_rounds
                )
        values.append(centre)
        counts.append(len(used))
        # twice the best round's loss, so that one threshold serves both: the best of few rounds must exceed half of the tolerance
        best = 2 * (min(used) - reference.mean) if 1 < len(used) < FEW_ROUNDS else math.inf
        carried.append(min(centre - reference.mean, best))
    return _Ready(values, counts, carried)


def _spread(losses: Sequence[float], centre: float, round_variance: float) -> float:
    return robust_sigma(losses, centre) / math.sqrt(round_variance)


def _not_reached(state: Decision, missing: Decision) -> Decision:
    """The last reached look's numbers with what the next one needs."""
    invalid = missing.outcome is Outcome.INVALID
    return replace(
        state,
        outcome=missing.outcome,
        cause=missing.cause if missing.cause is Cause.SPREAD or state.estimate is None else Cause.UNDECIDED,
        spread=missing.spread,
        need_sessions=None if invalid else missing.need_sessions,
        need_rounds=None if invalid else missing.need_rounds,
    )


def _standard_error(count: int, rounds: Sequence[int], reference: Reference) -> float:
    """Of candidate mean minus baseline mean; fewer rounds than the recorded sessions had bring that much more of the rounds' noise."""
    variance = reference.variance / count
    if reference.session_count:
        variance += reference.variance / reference.session_count
    if reference.round_variance and reference.round_count:
        extra = 0.0
        for had in rounds:
            if had < reference.round_count:
                extra += 1 / had - 1 / reference.round_count
        variance += MEDIAN_VARIANCE_FACTOR * reference.round_variance * extra / count**2
    return math.sqrt(variance)


def _at_look(
    ready: _Ready,
    reference: Reference,
    limits: Limits,
    numbered: tuple[int, Look, Look | None],
    detectable: float | None,
) -> Decision:
    number, look, upcoming = numbered
    values, rounds, losses = ready
    estimate = sum(values) / len(values) - reference.mean
    bounds = _bounds(estimate, _standard_error(len(values), rounds, reference), reference.df, limits, look)
    relevant = estimate > limits.tolerance
    significant = bounds.lower > 0
    carried = len(values) == 1 or sorted(losses)[-2] > limits.tolerance
    if look.may_regress and relevant and significant and carried and bounds.clear_lower > CLEAR_SHARE * limits.tolerance:
        outcome = Outcome.REGRESSED
    elif bounds.upper < limits.tolerance:
        improved = bounds.gain_upper < 0 and -estimate > IMPROVED_SHARE * limits.tolerance
        outcome = Outcome.IMPROVED if improved else Outcome.PASS
    else:
        outcome = Outcome.INCONCLUSIVE
    undecided = outcome is Outcome.INCONCLUSIVE
    then = upcoming if undecided else None
    return Decision(
        outcome,
        Cause.UNDECIDED if undecided else Cause.DECIDED,
        estimate=estimate,
        lower=bounds.lower,
        upper=bounds.upper,
        detectable=detectable,
        relevant=relevant,
        significant=significant,
        alpha=limits.alpha * look.alpha_share,
        sessions=len(values),
        rounds=sum(rounds),
        look=number,
        need_sessions=then.sessions if then else None,
        need_rounds=then.rounds if then else None,
    )


def _bounds(estimate: float, error: float, df: int, limits: Limits, look: Look) -> _Bounds:
    quantile = single_draw_quantile if look.sessions == 1 else upper_quantile
    alpha = limits.alpha * look.alpha_share
    width = quantile(alpha, df) * error
    return _Bounds(
        lower=estimate - width,
        clear_lower=estimate - quantile(limits.half_alpha * look.alpha_share, df) * error,
        upper=estimate + upper_quantile(limits.beta * look.beta_share, df) * error,
        gain_upper=estimate + width,
    )
