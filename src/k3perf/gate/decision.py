"""Where REGRESSED is decided. Pure arithmetic on floats. Three rules say it, and
nothing else does:

* ``regressed``: a metric that varies loses more than its tolerance;
* ``exactly_regressed``: a metric that does not vary does;
* ``slid_beyond_cap``: the losses since the anchor add up to more than the cap.

The unit of replication is the session. Its value is an estimate over its rounds'
losses. The estimate of a metric is the mean over candidate sessions of value minus the
mean of the baseline's sessions at as many rounds. Its standard error is s * sqrt(1/n +
1/m), a prediction interval's, with s the moderated pooled standard deviation between
sessions of as many rounds (ddof 1 in each cell). All tests are one-sided.

An interim analysis takes a number of sessions and of rounds in each. The schedule
depends on plan and recorded noise alone, and every analysis takes the same first
sessions and rounds however often the gate is asked. Optional stopping is therefore part
of the test. The first analysis that decides is the decision.

A session whose rounds spread out of line, and still do with all the rounds of the plan,
is **excluded** for this metric: the host was busy, or the engine is no longer steady.
Later sessions take its place as long as

* fewer than half of the measured sessions are excluded. One of three is bad luck; one
  of two, or two of three, is as likely a build that lost its steadiness, and INVALID.
  With a share q of sessions out of line a plan of three sessions gives up with
  probability q (2 q - q^2): 2 % where a tenth stall by the host, 89 % where nine of ten
  jump about, and every time where all do;
* the plan has room: an excluded session counts towards its maximum of sessions, so a
  plan of one or two excludes none.

The spread of rounds alone decides, never what they lost. While a session is excluded
and nothing is decided, the outcome is INVALID.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

from k3perf.gate.reference import Reference
from k3perf.records.outcome import Outcome
from k3perf.stats.estimators import locate_ordered, median
from k3perf.stats.quantiles import (
    mean_difference_skewness,
    single_draw_quantile,
    skewed_quantile,
    upper_quantile,
)
from k3perf.stats.sequential import InterimAnalysis

CLEAR_SHARE: Final = 0.5
"""The share of the tolerance that a REGRESSED loss must exceed beyond doubt."""

IMPROVED_SHARE: Final = 0.5
"""The share of the tolerance that a gain must exceed to be worth a new baseline."""

FEW_ROUNDS: Final = 8
"""Below this many rounds a median may lie among rounds that were slow on their own:
three of four, if one in ten is, in 0.4 % of sessions.
"""

OUTLIER_SIGMAS: Final = 5.0
"""A round further than this from its session's median, in robust sigmas, and further
than the tolerance, stands out.
"""


class Cause(StrEnum):
    """Why a metric is where it is, for the sentence in the verdict."""

    DECIDED = "decided"
    TOO_FEW = "too_few"
    UNDECIDED = "undecided"
    NO_NOISE = "no_noise"
    SPREAD = "spread"
    OUTLIERS = "outliers"


class Limits(NamedTuple):
    """Tolerance on the loss scale and this metric's shares of the error rates, before
    they are spent over interim analyses.
    """

    tolerance: float
    alpha: float
    half_alpha: float
    beta: float
    maximum_rounds: int


class SessionLoss(NamedTuple):
    """One session at one analysis: its place among the measured ones, its loss, of how
    many rounds, and what it carries towards REGRESSED (twice its best round's loss
    where rounds are few, so that the best of them must exceed half of the tolerance).

    ``lacking``: why it needs more rounds before it can be judged. ``spread``: its
    rounds' robust sigma over the recorded one, where it is excluded or lacks rounds.
    """

    place: int
    loss: float
    rounds: int
    carried: float
    spread: float | None = None
    lacking: Cause | None = None


@dataclass(slots=True)
class Decision:
    """An outcome with the numbers it rests on (loss scale).

    ``reference_mean``: what the estimate was measured from. ``sessions`` and ``rounds``
    count what the estimate was taken of, ``excluded`` the sessions that were not.
    ``need_sessions``/``need_rounds``: what to measure before the next analysis,
    excluded sessions counted; None when nothing helps. ``analysis`` is its number, 0
    when none was reached.
    """

    reference_mean: float
    sessions: int
    rounds: int
    outcome: Outcome = Outcome.INCONCLUSIVE
    cause: Cause = Cause.TOO_FEW
    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None
    detectable: float | None = None
    relevant: bool | None = None
    significant: bool | None = None
    alpha: float | None = None
    analysis: int = 0
    spread: float | None = None
    excluded: Sequence[SessionLoss] = ()
    need_sessions: int | None = None
    need_rounds: int | None = None


def regressed(
    ready: Sequence[SessionLoss],
    estimate: float,
    lower: float,
    half_lower: float,
    limits: Limits,
    analysis: InterimAnalysis,
) -> bool:
    """The loss is

    * relevant: the estimate exceeds the tolerance;
    * significant: the lower bound at this analysis's share of alpha is above no loss;
    * clear: the lower bound at the share of the half-tolerance rate is above half of
      the tolerance;
    * carried by more than one session: two of them lose more than the tolerance, and
      without the worst one the others still do on average. One session alone is enough
      only where the plan has no second.
    """
    tolerance = limits.tolerance
    relevant, significant = estimate > tolerance, lower > 0
    clear = half_lower > CLEAR_SHARE * tolerance
    if not (analysis.may_regress and relevant and significant and clear):
        return False
    if len(ready) == 1:
        return True
    losses = [session.loss for session in ready]
    others = (sum(losses) - max(losses)) / (len(losses) - 1)
    return others > tolerance and sum(session.carried > tolerance for session in ready) > 1


def exactly_regressed(loss: float, allowed: float) -> bool:
    """The worst measured value loses more against the worst recorded one than allowed,
    in the metric's unit.
    """
    return loss > allowed


def slid_beyond_cap(moved: float, certain_ratio: float | None, cap_ratio: float) -> bool:
    """A slow slide: every step inside the tolerance, the sum certainly beyond the cap.

    ``moved``: the baseline's own loss since the anchor. ``certain_ratio``: lower bound
    of the loss since the anchor.
    """
    return moved > 0 and certain_ratio is not None and certain_ratio > cap_ratio


def judge(
    sessions: Sequence[Sequence[float]],
    reference: Reference,
    limits: Limits,
    analyses: Sequence[InterimAnalysis],
) -> Decision:
    """The first analysis that decides, else the state at the last that was reached.

    ``sessions``: per valid candidate session, in order of time, its valid rounds'
    losses in order of time (one value for session metrics).
    """
    last = analyses[-1]
    decision = Decision(
        reference.at(analyses[0].rounds).mean, len(sessions), sum(map(len, sessions))
    )
    level = reference.at(last.rounds)
    if level.df < 1 or not math.isfinite(level.variance):
        return _without_noise(decision, reference, last)
    decision.detectable = minimum_detectable(reference, limits, last)
    known: dict[tuple[int, int], SessionLoss] = {}
    for number, analysis in enumerate(analyses, start=1):
        ready = choose_sessions(
            analysis, sessions, reference, limits, last.sessions, decision, known
        )
        if ready is None:
            break
        if len(decision.excluded) >= len(ready):
            continue  # says nothing; an analysis of more sessions may
        _analyse(ready, reference, limits, analysis, decision)
        decision.analysis = number
        if decision.outcome is not Outcome.INCONCLUSIVE:
            decision.cause = Cause.DECIDED
            return decision
    if decision.excluded:
        decision.outcome = Outcome.INVALID
        decision.cause = Cause.SPREAD
    elif decision.cause is Cause.TOO_FEW and decision.analysis:
        decision.cause = Cause.UNDECIDED
    return decision


def _without_noise(decision: Decision, reference: Reference, last: InterimAnalysis) -> Decision:
    """Only in ab do more sessions bring the noise that is missing."""
    decision.cause = Cause.NO_NOISE
    decision.reference_mean = reference.at(last.rounds).mean
    had = decision.sessions
    if reference.session_count == 0 and had < max(2, last.sessions) <= last.sessions:
        decision.need_sessions, decision.need_rounds = max(2, had + 1), last.rounds
    return decision


def _analyse(
    ready: Sequence[SessionLoss],
    reference: Reference,
    limits: Limits,
    analysis: InterimAnalysis,
    decision: Decision,
) -> None:
    """One interim analysis: estimate, bounds and outcome."""
    level = reference.at(analysis.rounds)
    count, estimate = len(ready), 0.0
    for session in ready:
        estimate += session.loss / count
    error = math.sqrt(_variance(ready, reference, analysis))
    alpha_width, half_width, beta_width, gain_width = _widths(
        level.df, level.skewness, reference.session_count, limits, analysis
    )
    lower, upper = estimate - alpha_width * error, estimate + beta_width * error
    if regressed(ready, estimate, lower, estimate - half_width * error, limits, analysis):
        decision.outcome = Outcome.REGRESSED
    elif upper < limits.tolerance:
        gained = estimate + gain_width * error < 0
        worth_it = -estimate > IMPROVED_SHARE * limits.tolerance
        decision.outcome = Outcome.IMPROVED if gained and worth_it else Outcome.PASS
    decision.reference_mean = level.mean
    decision.estimate, decision.lower, decision.upper = estimate, lower, upper
    decision.relevant, decision.significant = estimate > limits.tolerance, lower > 0
    decision.alpha = limits.alpha * analysis.alpha_share
    decision.sessions, decision.rounds = count, sum(session.rounds for session in ready)


def _variance(
    ready: Sequence[SessionLoss], reference: Reference, analysis: InterimAnalysis
) -> float:
    """Of candidate mean minus baseline mean. Where some sessions have more rounds, each
    brings its own variance.
    """
    level, count = reference.at(analysis.rounds), len(ready)
    recorded = level.variance / reference.session_count if reference.session_count else 0.0
    if not reference.round_count or all(one.rounds == analysis.rounds for one in ready):
        return level.variance / count + recorded
    return sum(reference.at(session.rounds).variance for session in ready) / count**2 + recorded


@lru_cache(maxsize=65536)
def _widths(
    df: int, skewness: float, recorded: int, limits: Limits, analysis: InterimAnalysis
) -> tuple[float, float, float, float]:
    """Standard errors from the estimate to the lower bounds at the shares of alpha and
    of the half-tolerance rate, to the upper bound at the share of beta, and to the
    bound of a gain.

    The lower bounds move outwards where the recorded sessions are skewed towards
    losses. One session alone must pass the quantile of a heavy-tailed draw.
    """
    quantile = single_draw_quantile if analysis.sessions == 1 else upper_quantile
    gain = alpha = quantile(limits.alpha * analysis.alpha_share, df)
    half = quantile(limits.half_alpha * analysis.alpha_share, df)
    if skewness > 0 and analysis.sessions > 1:
        of_mean = mean_difference_skewness(skewness, analysis.sessions, recorded)
        alpha, half = skewed_quantile(alpha, of_mean), skewed_quantile(half, of_mean)
    return alpha, half, upper_quantile(limits.beta * analysis.beta_share, df), gain


def minimum_detectable(
    reference: Reference, limits: Limits, analysis: InterimAnalysis
) -> float | None:
    """Minimum detectable effect: the true loss that ``analysis`` calls REGRESSED with
    probability 1 - beta, its critical value plus t_beta standard errors.

    The analysis counts as the only one spending its share, which overstates the loss a
    little. None: no noise is known.
    """
    level = reference.at(analysis.rounds)
    if level.df < 1:
        return None
    return _detectable(
        level.variance, level.df, level.skewness, reference.session_count, limits, analysis
    )


@lru_cache(maxsize=4096)
def _detectable(
    variance: float,
    df: int,
    skewness: float,
    recorded: int,
    limits: Limits,
    analysis: InterimAnalysis,
) -> float:
    error = math.sqrt(variance * (1 / analysis.sessions + (1 / recorded if recorded else 0.0)))
    alpha_width, half_width, *_ = _widths(df, skewness, recorded, limits, analysis)
    half = CLEAR_SHARE * limits.tolerance + half_width * error
    critical = max(limits.tolerance, alpha_width * error, half)
    return critical + upper_quantile(limits.beta, df) * error


def choose_sessions(
    analysis: InterimAnalysis,
    sessions: Sequence[Sequence[float]],
    reference: Reference,
    limits: Limits,
    maximum_sessions: int,
    decision: Decision,
    known: dict[tuple[int, int], SessionLoss],
) -> list[SessionLoss] | None:
    """The first sessions with enough rounds, as many as the analysis has, none of them
    after the plan's ``maximum_sessions``. None: they are not all there, and
    ``decision`` says what is missing.

    Only the last session can still get rounds. A session of fewer rounds is passed
    over, and takes its place in the plan. ``known``: sessions by place and rounds that
    earlier analyses have valued.
    """
    wanted = analysis.rounds if reference.round_count else 1
    ready: list[SessionLoss] = []
    excluded: list[SessionLoss] = []
    decision.excluded = excluded
    short_count = 0
    for place, losses in enumerate(sessions):
        last = place + 1 == len(sessions)
        if len(losses) < wanted:
            short_count += not last
            continue
        reachable = limits.maximum_rounds if last else min(len(losses), limits.maximum_rounds)
        session = known.get((place, wanted)) or _session(
            place, losses, wanted, reachable, reference, limits
        )
        if session.lacking:
            decision.cause, decision.spread = session.lacking, session.spread
            decision.need_sessions, decision.need_rounds = place + 1, reachable
            return None
        known[place, wanted] = session
        if session.spread is None:
            ready.append(session)
            if len(ready) == analysis.sessions:
                return ready
            continue
        excluded.append(session)
        if max(analysis.sessions, len(excluded) + 1) + len(excluded) > maximum_sessions:
            decision.cause = Cause.SPREAD
            return None
    # after an excluded session the next one may be out of line too, and end it
    need = len(ready) + len(excluded) + 1 if excluded else analysis.sessions
    need += short_count
    if need <= maximum_sessions:
        decision.need_sessions, decision.need_rounds = need, analysis.rounds
    return None


def _session(
    place: int,
    losses: Sequence[float],
    wanted: int,
    reachable: int,
    reference: Reference,
    limits: Limits,
) -> SessionLoss:
    """One session by its first rounds. As many as wanted, or all that it has or can
    still get (``reachable``) where they spread out of line, or where some stand out and
    the session seems to lose more than the tolerance, which may be those rounds' doing.
    """
    used = sorted(losses[:wanted])
    session = _valued(place, used, reference)
    if used[-1] - used[0] <= min(2 * reference.spread_bound, limits.tolerance):
        return session  # neither out of line nor standing out
    spread = reference.out_of_line(used)
    if not spread and (
        session.loss <= limits.tolerance or not _stands_out(used, reference, limits.tolerance)
    ):
        return session
    if wanted < reachable:
        if len(losses) < reachable:
            lacking = Cause.SPREAD if spread else Cause.OUTLIERS
            return session._replace(spread=reference.spread(used), lacking=lacking)
        used = sorted(losses[:reachable])
        spread = reference.out_of_line(used)
        session = _valued(place, used, reference)
    return session._replace(spread=reference.spread(used)) if spread else session


def _valued(place: int, used: list[float], reference: Reference) -> SessionLoss:
    count = len(used)
    mean = reference.at(count if reference.round_count else 1).mean
    loss = locate_ordered(reference.location, used) - mean
    few = 1 < count < FEW_ROUNDS
    return SessionLoss(place, loss, count, min(loss, 2 * (used[0] - mean)) if few else loss)


def _stands_out(ordered: Sequence[float], reference: Reference, tolerance: float) -> bool:
    """Whether a round is further from the session's median than five recorded robust
    sigmas, and than the tolerance.
    """
    centre = median(ordered)
    furthest = max(ordered[-1] - centre, centre - ordered[0])
    return furthest > max(OUTLIER_SIGMAS * reference.round_sigma, tolerance)
