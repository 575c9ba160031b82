"""One statistical metric of one cell: session losses and recorded noise to an outcome,
look by look. Pure arithmetic on floats.

Unit of replication: the session. A session's value is the location of its rounds'
losses that suits the recorded noise (the median, unless another differs less between
recorded sessions). The estimate is the mean over candidate sessions of value minus the
mean of the baseline's sessions at as many rounds; its standard error is s * sqrt(1/n +
1/m), a prediction interval's, s being the moderated pooled standard deviation between
sessions of as many rounds (ddof 1 in each cell). All tests are one-sided.

REGRESSED at a look needs all of
* relevant: the estimate exceeds the tolerance;
* significant: the lower bound at this look's share of alpha is above no loss;
* clear: the lower bound at the share of the half-tolerance budget is above half of the
  tolerance;
* carried by more than one session: without the worst session the estimate still exceeds
  the tolerance, at least two sessions each do, and where a session has few rounds each
  of them loses more than half of it. One session alone is never REGRESSED, except where
  the plan has no second; then it must pass the quantile of a heavy-tailed draw.

Both lower bounds are moved outwards where the recorded sessions are skewed towards
losses (``stats.skewness``).

PASS at a look needs the upper bound, at this look's share of beta, below the tolerance.
IMPROVED is a PASS whose gain is significant at alpha. The first look that decides is
the decision.

Which sessions a look takes, and which are set aside because their rounds spread out of
line, is ``session_values``. While one is set aside and nothing is decided, the outcome
is INVALID: a run that ends there has not measured enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from k3perf.gate.looks import Look
from k3perf.gate.reference import Level, Reference
from k3perf.gate.session_values import (
    Cause,
    Limits,
    LookSessions,
    Missing,
    Session,
    SetAside,
    sessions_at,
)
from k3perf.records.outcome import Outcome
from k3perf.stats.skewness import mean_difference_skewness, skewed_quantile
from k3perf.stats.student import single_draw_quantile, upper_quantile

CLEAR_SHARE: Final = 0.5
"""The share of the tolerance that a REGRESSED loss must exceed beyond doubt."""

IMPROVED_SHARE: Final = 0.5
"""The share of the tolerance that a gain must exceed to be worth a new baseline."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An outcome with the numbers it rests on (loss scale).

    ``need_sessions``/``need_rounds``: what to measure before the next look, None when
    there is none; measured sessions, those that are set aside included.
    ``reference_mean``: what the estimate was measured from, at the look's number of
    rounds. ``sessions`` and ``rounds`` count what the estimate was taken of;
    ``set_aside`` names the sessions that were measured and left out of it.
    """

    outcome: Outcome
    cause: Cause
    reference_mean: float
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
    set_aside: tuple[SetAside, ...] = ()
    need_sessions: int | None = None
    need_rounds: int | None = None


_NOTHING_FOUND: Final = LookSessions((), ())
_NOTHING_MISSING: Final = Missing(Cause.DECIDED, None, None)


class _State(NamedTuple):
    """What a look came to; without numbers where none was reached."""

    outcome: Outcome
    estimate: float | None
    lower: float | None
    upper: float | None
    sessions: int
    rounds: int
    look: int


def judge(
    sessions: Sequence[Sequence[float]], reference: Reference, limits: Limits, looks: Sequence[Look]
) -> Decision:
    """The first look that decides, else the state at the last look that was reached.

    ``sessions``: per valid candidate session, in order of time, its valid rounds'
    losses in order of time (one value for session metrics).
    """
    last = reference.at(looks[-1].rounds)
    if last.df < 1 or not math.isfinite(last.variance):
        return _without_noise(sessions, reference, looks)
    state: _State | None = None
    found = _NOTHING_FOUND
    kept: dict[tuple[int, int], Session | SetAside] = {}
    for index, look in enumerate(looks):
        found = sessions_at(look, sessions, reference, limits, looks[-1].sessions, kept)
        if found.missing is not None:
            break
        if found.outvoted:
            continue
        state = _at_look(found.ready, reference, limits, look, index)
        if state.outcome is not Outcome.INCONCLUSIVE:
            break
    return _decision(sessions, state, found, reference, limits, looks)


def next_purchase(needs: Iterable[tuple[int | None, int | None]]) -> tuple[int, int]:
    """The nearest look that any undecided metric of a cell needs, as (sessions,
    rounds); (0, 0): nothing.
    """
    wanted = [
        (sessions, rounds)
        for sessions, rounds in needs
        if sessions is not None and rounds is not None
    ]
    if not wanted:
        return 0, 0
    nearest = min(sessions for sessions, _ in wanted)
    return nearest, max(rounds for sessions, rounds in wanted if sessions == nearest)


def smallest_detectable(reference: Reference, limits: Limits, look: Look) -> float | None:
    """The true loss that ``look`` calls REGRESSED with probability 1 - beta: its
    critical value plus t_beta standard errors.

    The look counts as the only one spending its share, which overstates the loss a
    little. None: no noise is known.
    """
    level = reference.at(look.rounds)
    if level.df < 1:
        return None
    return _detectable(
        level.variance, level.df, level.skewness, reference.session_count, limits, look
    )


@lru_cache(maxsize=4096)
def _detectable(
    variance: float, df: int, skewness: float, recorded: int, limits: Limits, look: Look
) -> float:
    error = math.sqrt(variance * (1 / look.sessions + (1 / recorded if recorded else 0.0)))
    alpha_width, half_width, _ = _widths(df, skewness, recorded, limits, look)
    critical = max(
        limits.tolerance, alpha_width * error, CLEAR_SHARE * limits.tolerance + half_width * error
    )
    return critical + upper_quantile(limits.beta, df) * error


def _without_noise(
    sessions: Sequence[Sequence[float]], reference: Reference, looks: Sequence[Look]
) -> Decision:
    """Only in ab do more sessions bring the noise that is missing."""
    last = looks[-1]
    more = reference.session_count == 0 and len(sessions) < max(2, last.sessions) <= last.sessions
    return Decision(
        Outcome.INCONCLUSIVE,
        Cause.NO_NOISE,
        reference.at(last.rounds).mean,
        sessions=len(sessions),
        rounds=sum(map(len, sessions)),
        need_sessions=max(2, len(sessions) + 1) if more else None,
        need_rounds=last.rounds if more else None,
    )


def _at_look(
    ready: Sequence[Session], reference: Reference, limits: Limits, look: Look, index: int
) -> _State:
    count, tolerance = len(ready), limits.tolerance
    level = reference.at(look.rounds)
    estimate, rounds = 0.0, 0
    for loss, used, _ in ready:
        estimate += loss / count
        rounds += used
    error = math.sqrt(_variance(ready, rounds, level, look, reference))
    alpha_width, half_width, beta_width = _widths(
        level.df, level.skewness, reference.session_count, limits, look
    )
    lower, upper = estimate - alpha_width * error, estimate + beta_width * error
    outcome = Outcome.INCONCLUSIVE
    if (
        look.may_regress
        and estimate > tolerance
        and lower > 0
        and estimate - half_width * error > CLEAR_SHARE * tolerance
        and _carried(ready, tolerance)
    ):
        outcome = Outcome.REGRESSED
    elif upper < tolerance:
        gain = (
            estimate + _gain_width(level.df, limits, look) * error < 0
            and -estimate > IMPROVED_SHARE * tolerance
        )
        outcome = Outcome.IMPROVED if gain else Outcome.PASS
    return _State(outcome, estimate, lower, upper, count, rounds, index)


def _variance(
    ready: Sequence[Session], rounds: int, level: Level, look: Look, reference: Reference
) -> float:
    """Of candidate mean minus baseline mean. ``rounds``: of all sessions together;
    where some have more, each brings its own variance.
    """
    count = len(ready)
    recorded = level.variance / reference.session_count if reference.session_count else 0.0
    if rounds == count * look.rounds or not reference.round_count:
        return level.variance / count + recorded
    return sum(reference.at(session.rounds).variance for session in ready) / count**2 + recorded


def _carried(ready: Sequence[Session], tolerance: float) -> bool:
    """Two sessions each lose more than the tolerance, and without the worst one the
    others still do on average.
    """
    if len(ready) == 1:
        return True
    losses = [session.loss for session in ready]
    others = (sum(losses) - max(losses)) / (len(losses) - 1)
    return others > tolerance and sum([session.carried > tolerance for session in ready]) > 1


@lru_cache(maxsize=65536)
def _widths(
    df: int, skewness: float, recorded: int, limits: Limits, look: Look
) -> tuple[float, float, float]:
    """Standard errors from the estimate to the lower bounds at the shares of alpha and
    of the half-tolerance budget, and to the upper bound at the share of beta.
    """
    quantile = single_draw_quantile if look.sessions == 1 else upper_quantile
    alpha, half = (
        quantile(limits.alpha * look.alpha_share, df),
        quantile(limits.half_alpha * look.alpha_share, df),
    )
    if skewness > 0 and look.sessions > 1:
        of_mean = mean_difference_skewness(skewness, look.sessions, recorded)
        alpha, half = skewed_quantile(alpha, of_mean), skewed_quantile(half, of_mean)
    return alpha, half, upper_quantile(limits.beta * look.beta_share, df)


def _gain_width(df: int, limits: Limits, look: Look) -> float:
    return (single_draw_quantile if look.sessions == 1 else upper_quantile)(
        limits.alpha * look.alpha_share, df
    )


def _decision(
    sessions: Sequence[Sequence[float]],
    state: _State | None,
    found: LookSessions,
    reference: Reference,
    limits: Limits,
    looks: Sequence[Look],
) -> Decision:
    """The last look's numbers, with what the next one is missing."""
    gap = found.missing or _NOTHING_MISSING
    if state is None:
        look, numbers = (
            looks[0],
            _State(
                Outcome.INCONCLUSIVE, None, None, None, len(sessions), sum(map(len, sessions)), -1
            ),
        )
    else:
        look, numbers = looks[state.look], state
    outcome = numbers.outcome
    if outcome is Outcome.INCONCLUSIVE and found.aside:
        outcome = Outcome.INVALID
    spread = gap.cause is Cause.SPREAD or outcome is Outcome.INVALID
    undecided = (
        gap.cause
        if gap.cause is Cause.OUTLIERS
        else Cause.TOO_FEW
        if state is None
        else Cause.UNDECIDED
    )
    return Decision(
        outcome,
        Cause.SPREAD if spread else undecided if outcome is Outcome.INCONCLUSIVE else Cause.DECIDED,
        reference.at(look.rounds).mean,
        estimate=numbers.estimate,
        lower=numbers.lower,
        upper=numbers.upper,
        detectable=smallest_detectable(reference, limits, looks[-1]),
        relevant=None if numbers.estimate is None else numbers.estimate > limits.tolerance,
        significant=None if numbers.lower is None else numbers.lower > 0,
        alpha=None if state is None else limits.alpha * look.alpha_share,
        sessions=numbers.sessions,
        rounds=numbers.rounds,
        look=numbers.look + 1,
        spread=gap.spread,
        set_aside=found.aside,
        need_sessions=gap.need_sessions,
        need_rounds=gap.need_rounds,
    )
