"""One look's sessions: what each counts by, which are set aside, and what is missing.
Pure arithmetic on floats.

A session whose rounds spread out of line, and still do with all the rounds that the
plan allows, says little about a metric: the host was busy for some of them, or the
engine is no longer steady. It is **set aside** for this metric, and a look takes the
sessions after it instead, as long as

* fewer than half of the measured sessions are set aside. One of three is bad luck; one
  of two, or two of three, is as likely a build that has lost its steadiness, and that
  is INVALID. With a share q of sessions out of line a plan of three sessions gives up
  with probability q (2 q - q^2), not q: 2 % where a tenth stall by the host, 89 % where
  nine of ten jump about, and every time where all do;
* the plan has room: a session that is set aside counts towards its maximum of sessions,
  so that in a plan of one or two nothing can be.

Rounds' spread alone decides who is set aside, never what they lost. What they lost is
kept for the verdict.

Only the last session can still get rounds; one that was followed by another is judged
by those it has. A session of fewer rounds than a look wants is passed over, and takes
its place in the plan's maximum of sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from k3perf.gate.looks import Look
from k3perf.gate.reference import Reference
from k3perf.stats.location import median
from k3perf.stats.order_statistics import locate_ordered

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
    """Tolerance on the loss scale and this metric's shares of the budgets, before they
    are spent over looks.
    """

    tolerance: float
    alpha: float
    half_alpha: float
    beta: float
    maximum_rounds: int


class Session(NamedTuple):
    """One session at one look: its loss, the number of rounds it was taken of, and what
    it carries towards REGRESSED (twice its best round's loss where rounds are few, so
    that one threshold serves both: the best of few rounds must exceed half of the
    tolerance).
    """

    loss: float
    rounds: int
    carried: float


class SetAside(NamedTuple):
    """A measured session that a look does without: its place among the measured ones,
    its rounds' robust sigma over the recorded one, and the loss that it would have
    counted by.
    """

    place: int
    spread: float
    loss: float


class Missing(NamedTuple):
    """Why a look cannot be taken, and what to measure for it: sessions, those set aside
    included, and rounds; None: nothing helps.
    """

    cause: Cause
    need_sessions: int | None
    need_rounds: int | None
    spread: float | None = None


class LookSessions(NamedTuple):
    """The sessions of a look in order of time, those set aside before the last of them,
    and what is missing (None: the look can be taken).
    """

    ready: Sequence[Session]
    aside: tuple[SetAside, ...]
    missing: Missing | None = None

    @property
    def outvoted(self) -> bool:
        """As many sessions are set aside as would be judged, or more: this look says
        nothing, one of more sessions may.
        """
        return len(self.aside) >= len(self.ready)


def sessions_at(
    look: Look,
    sessions: Sequence[Sequence[float]],
    reference: Reference,
    limits: Limits,
    maximum_sessions: int,
    kept: dict[tuple[int, int], Session | SetAside],
) -> LookSessions:
    """The first sessions with enough rounds, as many as the look has, none of them
    after the plan's ``maximum_sessions``.

    ``sessions`` as in ``decision.judge``. ``kept``: sessions by place and rounds that
    earlier looks have valued.
    """
    wanted = look.rounds if reference.round_count else 1
    ready: list[Session] = []
    aside: list[SetAside] = []
    short_count = 0
    for place, losses in enumerate(sessions):
        last = place + 1 == len(sessions)
        if len(losses) < wanted:
            short_count += not last
            continue
        reachable = limits.maximum_rounds if last else min(len(losses), limits.maximum_rounds)
        session = kept.get((place, wanted)) or _session(
            place, losses, wanted, reachable, reference, limits
        )
        if isinstance(session, Missing):
            return LookSessions(ready, tuple(aside), session)
        kept[place, wanted] = session
        if isinstance(session, SetAside):
            aside.append(session)
            if max(look.sessions, len(aside) + 1) + len(aside) > maximum_sessions:
                return LookSessions(ready, tuple(aside), Missing(Cause.SPREAD, None, None))
            continue
        ready.append(session)
        if len(ready) == look.sessions:
            return LookSessions(ready, tuple(aside))
    need = (
        len(ready) + len(aside) + 1 if aside else look.sessions
    )  # the next session may be out of line too, and end it
    need += short_count
    room = need <= maximum_sessions
    return LookSessions(
        ready,
        tuple(aside),
        Missing(Cause.TOO_FEW, need if room else None, look.rounds if room else None),
    )


def _session(
    place: int,
    losses: Sequence[float],
    wanted: int,
    reachable: int,
    reference: Reference,
    limits: Limits,
) -> Session | SetAside | Missing:
    """One session by its first rounds: as many as wanted, or all that it has or can
    still get (``reachable``) where they spread out of line, or where some stand out and
    the session seems to lose more than the tolerance, which may be those rounds' doing.
    """
    used = sorted(losses[:wanted])
    session = _valued(used, reference)
    if used[-1] - used[0] <= min(
        2 * reference.spread_bound, limits.tolerance
    ):  # neither out of line nor standing out
        return session
    spread = reference.out_of_line(used)
    if not spread and (
        session.loss <= limits.tolerance or not _stands_out(used, reference, limits.tolerance)
    ):
        return session
    if wanted < reachable:
        if len(losses) < reachable:
            return Missing(
                Cause.SPREAD if spread else Cause.OUTLIERS,
                place + 1,
                reachable,
                reference.spread(used),
            )
        used = sorted(losses[:reachable])
        spread = reference.out_of_line(used)
        session = _valued(used, reference)
    return SetAside(place, reference.spread(used), session.loss) if spread else session


def _valued(used: list[float], reference: Reference) -> Session:
    count = len(used)
    mean = reference.at(count if reference.round_count else 1)[0]
    loss = locate_ordered(reference.taken.location, used) - mean
    if count >= FEW_ROUNDS or count == 1:
        return Session(loss, count, loss)
    return Session(loss, count, min(loss, 2 * (used[0] - mean)))


def _stands_out(ordered: Sequence[float], reference: Reference, tolerance: float) -> bool:
    """Whether a round is further from the session's median than five recorded robust
    sigmas, and than the tolerance.
    """
    centre = median(ordered)
    return max(ordered[-1] - centre, centre - ordered[0]) > max(
        OUTLIER_SIGMAS * reference.round_sigma, tolerance
    )
