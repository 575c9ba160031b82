"""Where REGRESSED is decided. Pure arithmetic on floats. Two rules decide it:

* ``regressed``: a metric that varies loses more than its tolerance, or than what the
  losses since the anchor leave of it (``remaining_tolerance``);
* ``exactly_regressed``: a metric that does not vary does.

``gate.metric_verdict`` assigns the outcome for the last one, and ``baselines.waivers``
turns a REGRESSED that a waiver covers into a PASS.

The unit of replication is the session. The estimate is the mean over candidate sessions
of their values minus that of the baseline's sessions at as many rounds. Its standard
error is s * sqrt(1/n + 1/m), a prediction interval's, with s the moderated pooled
standard deviation between sessions (ddof 1 in each cell). All tests are one-sided.

``stats.sequential`` plans the interim analyses. Each takes the same first sessions and
rounds however often the gate is asked. The first that decides is the decision.

The rounds of a session can spread out of line: the host was busy, or the engine is no
longer steady. That adds to the variance of its value. Where it adds more than half
of the tolerance, with all the rounds of the plan, the session is **excluded**. Later
sessions take its place as long as fewer than half of the measured ones are excluded and
the plan has room. Until something is decided the outcome is then INVALID.

An estimate beyond the tolerance that is not proven is SUSPECT. It alone gets the extra
analyses, of sessions beyond the plan's maximum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from k3perf.records.outcome import Outcome
from k3perf.stats.bounds import CLEAR_SHARE, Limits, minimum_detectable, widths
from k3perf.stats.estimators import locate_ordered, median
from k3perf.stats.own_noise import NoiseRatio, own_noise
from k3perf.stats.reference import Reference
from k3perf.stats.sequential import InterimAnalysis, last_planned

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


class SessionLoss(NamedTuple):
    """One session at one analysis: its place among the measured ones, its loss, of how
    many rounds, and what it carries towards REGRESSED (twice its best round's loss
    where rounds are few, so that the best of them must exceed half of the tolerance).

    ``lacking``: why it needs more rounds before it can be judged. ``spread``: its
    rounds' robust sigma over the recorded one, where it is excluded or lacks rounds.
    ``extra``: the variance that this spread adds.
    """

    place: int
    loss: float
    rounds: int
    carried: float
    spread: float | None = None
    lacking: Cause | None = None
    extra: float = 0.0


@dataclass(slots=True)
class Decision:
    """An outcome with the numbers it rests on (loss scale).

    ``reference_mean``: what the estimate was measured from. ``sessions`` and ``rounds``
    count what the estimate was taken of, ``excluded`` the sessions that were not.
    ``need_sessions``/``need_rounds``: what to measure before the next analysis,
    excluded sessions counted; None when nothing helps. ``analysis`` is its number, 0
    when none was reached. ``noise``: the candidate's own, over the recorded one.
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
    noise: NoiseRatio | None = None


def regressed(
    ready: Sequence[SessionLoss], estimate: float, lower: float, half_lower: float, tolerance: float
) -> bool:
    """The loss is relevant (the estimate exceeds the tolerance), significant (the lower
    bound at this analysis's share of alpha is above no loss), clear (the bound at the
    share of the half-tolerance rate is above half of the tolerance), and carried by
    more than one session: two lose more than the tolerance, and without the worst one
    the others still do on average. One alone is enough only where the plan has no
    second.
    """
    relevant, significant = estimate > tolerance, lower > 0
    clear = half_lower > CLEAR_SHARE * tolerance
    if not (relevant and significant and clear):
        return False
    if len(ready) == 1:
        return True
    losses = [session.loss for session in ready]
    others = (sum(losses) - max(losses)) / (len(losses) - 1)
    return others > tolerance and sum(session.carried > tolerance for session in ready) > 1


def exactly_regressed(loss: float, allowed: float) -> bool:
    """Worst measured against worst recorded value, in the metric's unit."""
    return loss > allowed


def remaining_tolerance(moved: float, cap: float, tolerance: float) -> float:
    """A slow slide: every step is inside the tolerance, and their sum reaches the cap.
    A baseline that lost ``moved`` since its anchor leaves less of the tolerance, at
    least half of it. Continuous in ``moved``.
    """
    if not moved > 0:
        return tolerance
    return min(tolerance, max(tolerance / 2, max(cap, tolerance) - moved))


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
    return Judgement(sessions, reference, limits, analyses).over()


class Judgement:
    """One metric's sessions, judged analysis by analysis. ``decision`` is the state."""

    def __init__(
        self,
        sessions: Sequence[Sequence[float]],
        reference: Reference,
        limits: Limits,
        analyses: Sequence[InterimAnalysis],
    ) -> None:
        self.sessions = sessions
        self.reference = reference
        self.limits = limits
        self.analyses = analyses
        self.planned = last_planned(analyses)
        self.maximum_sessions = self.planned.sessions
        self.decision = Decision(math.nan, len(sessions), sum(map(len, sessions)))
        self._known: dict[tuple[int, int], SessionLoss] = {}

    def over(self) -> Decision:
        """Judge at each analysis until one decides or sessions are missing."""
        decision, analyses = self.decision, self.analyses
        decision.detectable = minimum_detectable(self.reference, self.limits, self.planned)
        if decision.detectable is None:
            return self._without_noise(self.planned)
        decision.reference_mean = self.reference.at(analyses[0].rounds).mean
        for number, analysis in enumerate(analyses, start=1):
            if analysis.extra and decision.outcome is not Outcome.SUSPECT:
                break
            ready = self._choose_sessions(analysis)
            if ready is None:
                break
            if len(decision.excluded) >= len(ready):
                continue  # says nothing; an analysis of more sessions may
            self._analyse(ready, analysis)
            self._compare_noise(analysis)
            decision.analysis = number
            if decision.outcome not in (Outcome.INCONCLUSIVE, Outcome.SUSPECT):
                decision.cause = Cause.DECIDED
                return decision
        if decision.excluded:
            decision.outcome, decision.cause = Outcome.INVALID, Cause.SPREAD
        elif decision.cause is Cause.TOO_FEW and decision.analysis:
            decision.cause = Cause.UNDECIDED
        self._suspect_untested()
        return decision

    def _suspect_untested(self) -> None:
        """Sessions that no analysis was made of can be suspect all the same."""
        decision, means = self.decision, []
        for losses in filter(None, self.sessions):
            mean = self.reference.at(len(losses) if self.reference.round_count else 1).mean
            means.append(locate_ordered(self.reference.location, sorted(losses)) - mean)
        if decision.analysis == 0 and means and decision.outcome is Outcome.INCONCLUSIVE:
            estimate = sum(means) / len(means)
            if estimate > self.limits.tolerance:
                decision.outcome, decision.estimate = Outcome.SUSPECT, estimate
                decision.relevant = True

    def _without_noise(self, last: InterimAnalysis) -> Decision:
        """Only in ab do more sessions bring the noise that is missing."""
        decision, had = self.decision, len(self.sessions)
        decision.cause = Cause.NO_NOISE
        decision.reference_mean = self.reference.at(last.rounds).mean
        if self.reference.session_count == 0 and had < max(2, last.sessions) <= last.sessions:
            decision.need_sessions, decision.need_rounds = max(2, had + 1), last.rounds
        self._suspect_untested()
        return decision

    def _analyse(self, ready: Sequence[SessionLoss], analysis: InterimAnalysis) -> None:
        """One interim analysis: estimate, bounds and outcome."""
        decision, tolerance = self.decision, self.limits.tolerance
        beyond = self.limits.regress_beyond
        level = self.reference.at(analysis.rounds)
        count, estimate = len(ready), 0.0
        for session in ready:
            estimate += session.loss / count
        error = math.sqrt(self._variance(ready, analysis))
        alpha_width, half_width, beta_width, gain_width = widths(
            level.df, level.skewness, self.reference.session_count, self.limits, analysis
        )
        lower, upper = estimate - alpha_width * error, estimate + beta_width * error
        half_lower = estimate - half_width * error
        if analysis.may_regress and regressed(ready, estimate, lower, half_lower, beyond):
            decision.outcome = Outcome.REGRESSED
        elif upper < tolerance and estimate <= beyond:
            gained = estimate + gain_width * error < 0
            worth_it = -estimate > IMPROVED_SHARE * tolerance
            decision.outcome = Outcome.IMPROVED if gained and worth_it else Outcome.PASS
        else:
            suspect = estimate > tolerance
            decision.outcome = Outcome.SUSPECT if suspect else Outcome.INCONCLUSIVE
        decision.reference_mean = level.mean
        decision.estimate, decision.lower, decision.upper = estimate, lower, upper
        decision.relevant, decision.significant = estimate > beyond, lower > 0
        decision.alpha = self.limits.alpha * analysis.alpha_share
        decision.sessions, decision.rounds = count, sum(session.rounds for session in ready)

    def _compare_noise(self, analysis: InterimAnalysis) -> None:
        """Of all measured sessions but the excluded ones."""
        decision, reference = self.decision, self.reference
        rounds = analysis.rounds if reference.round_count else 1
        excluded = {session.place for session in decision.excluded}
        values = [
            locate_ordered(reference.location, sorted(losses[:rounds]))
            for place, losses in enumerate(self.sessions)
            if len(losses) >= rounds and place not in excluded
        ]
        counts, alpha = (decision.sessions, reference.session_count), decision.alpha or 0.0
        level = reference.at(analysis.rounds)
        decision.noise = own_noise(values, level, decision.estimate or 0.0, counts, alpha)

    def _variance(self, ready: Sequence[SessionLoss], analysis: InterimAnalysis) -> float:
        """Of candidate mean minus baseline mean. A session of more rounds brings the
        variance of so many.
        """
        at, recorded = self.reference.at, self.reference.session_count
        level = at(analysis.rounds)
        known = (level.variance / recorded if recorded else 0.0) + level.batch_variance
        own = sum(at(session.rounds).variance + session.extra for session in ready)
        return own / len(ready) ** 2 + known

    def _choose_sessions(self, analysis: InterimAnalysis) -> list[SessionLoss] | None:
        """The first sessions with enough rounds, as many as the analysis has, within
        the plan's maximum, or the one of suspected losses. None: they are not all
        there, and ``decision`` says what is missing. A session of fewer rounds takes
        its place in the plan.
        """
        decision = self.decision
        suspect = decision.outcome is Outcome.SUSPECT
        maximum_sessions = self.analyses[-1].sessions if suspect else self.maximum_sessions
        wanted = analysis.rounds if self.reference.round_count else 1
        ready: list[SessionLoss] = []
        excluded: list[SessionLoss] = []
        decision.excluded = excluded
        short_count = 0
        for place, losses in enumerate(self.sessions):
            if len(losses) < wanted:
                short_count += place + 1 < len(self.sessions)
                continue
            session = self._known.get((place, wanted)) or self._session(place, losses, wanted)
            if session.lacking:
                decision.cause, decision.spread = session.lacking, session.spread
                decision.need_sessions = place + 1
                decision.need_rounds = self.limits.maximum_rounds
                return None
            self._known[place, wanted] = session
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

    def _session(self, place: int, losses: Sequence[float], wanted: int) -> SessionLoss:
        """One session by its first rounds. As many as wanted, or all that it has or can
        still get where they spread out of line, or where some stand out and the session
        seems to lose more than the tolerance, perhaps because of them. Only the last
        session can still get rounds.
        """
        reference, tolerance = self.reference, self.limits.tolerance
        used = sorted(losses[:wanted])
        session = self._valued(place, used)
        if used[-1] - used[0] <= min(2 * reference.spread_bound, tolerance):
            return session  # neither out of line nor standing out
        spread = reference.drowned(used, tolerance)
        centre = median(used)
        furthest = max(used[-1] - centre, centre - used[0])
        stands_out = furthest > max(OUTLIER_SIGMAS * reference.round_sigma, tolerance)
        if not spread and (session.loss <= tolerance or not stands_out):
            return session
        reachable, last = self.limits.maximum_rounds, place + 1 == len(self.sessions)
        if last and len(losses) < reachable:
            lacking = Cause.SPREAD if spread else Cause.OUTLIERS
            return session._replace(spread=reference.spread(used), lacking=lacking)
        if wanted < min(len(losses), reachable):
            used = sorted(losses[:reachable])
            spread = reference.drowned(used, tolerance)
            session = self._valued(place, used)
        return session._replace(spread=reference.spread(used)) if spread else session

    def _valued(self, place: int, used: list[float]) -> SessionLoss:
        count = len(used)
        mean = self.reference.at(count if self.reference.round_count else 1).mean
        loss = locate_ordered(self.reference.location, used) - mean
        few = 1 < count < FEW_ROUNDS
        carried = min(loss, 2 * (used[0] - mean)) if few else loss
        return SessionLoss(place, loss, count, carried, extra=self.reference.extra_variance(used))
