"""Which point of an ordered list brought a loss: binary search with a judge that may
say good, better, bad, undecided, or that nothing could be measured. Pure.

The answer may be that no point is to blame: the loss does not repeat, it is below the
tolerance at every single step, or it cannot be measured. A point that became better is
never blamed. The suspect is compared with the point before it once more, since the
search compares with the first point only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from k3perf.records.bisection import BisectionState, Finding, PointJudgement
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict

_SOUND = (Finding.GOOD, Finding.BETTER, Finding.BAD)


@dataclass(frozen=True, slots=True)
class Question:
    """Compare ``point`` with ``base`` next."""

    base: str
    point: str


@dataclass(frozen=True, slots=True)
class Answer:
    """``culprits``: the first bad point, or the points among which it is. Empty: no
    culprit. ``decided``: False where another try could say more.
    """

    culprits: tuple[str, ...]
    text: str
    decided: bool = True


def next_step(state: BisectionState, *, attempts: int) -> Question | Answer:
    """What to measure next, or the answer. A point that is undecided or invalid is
    tried ``attempts`` times, a broken one once.
    """
    points = state.points
    good, bad = points[0], points[-1]
    end = _settled(state, good, bad, attempts)
    if end is None:
        return Question(good, bad)
    if end.finding is not Finding.BAD:
        return _no_loss(good, bad, end)
    low, high = 0, len(points) - 1
    skipped: set[int] = set()
    while True:
        middle = _middle(low, high, skipped)
        if middle is None:
            return _confirmed(state, low, high, attempts)
        found = _settled(state, good, points[middle], attempts)
        if found is None:
            return Question(good, points[middle])
        if found.finding is Finding.BAD:
            high = middle
        elif found.finding in _SOUND:
            low = middle
        else:
            skipped.add(middle)


def _settled(state: BisectionState, base: str, point: str, attempts: int) -> PointJudgement | None:
    """The judgement that counts: a sound one, or the last of all attempts. None:
    measure (again).
    """
    mine = [one for one in state.judgements if (one.base, one.point) == (base, point)]
    sound = [one for one in mine if one.finding in _SOUND or one.finding is Finding.BROKEN]
    if sound:
        return sound[-1]
    return mine[-1] if len(mine) >= attempts else None


def _middle(low: int, high: int, skipped: set[int]) -> int | None:
    centre = (low + high) // 2
    between = [index for index in range(low + 1, high) if index not in skipped]
    return min(between, key=lambda index: (abs(index - centre), index), default=None)


def _no_loss(good: str, bad: str, end: PointJudgement) -> Answer:
    told = f" ({end.why})" if end.why else ""
    if end.finding is Finding.GOOD:
        return Answer((), f"no culprit: {bad} is not worse than {good}{told}")
    if end.finding is Finding.BETTER:
        return Answer((), f"no culprit: {bad} is better than {good}{told}")
    what = {
        Finding.UNDECIDED: "the loss is neither proven nor ruled out",
        Finding.INVALID: "its measurements are INVALID",
        Finding.BROKEN: "its engine does not run",
    }[end.finding]
    return Answer((), f"no culprit: {bad} cannot be judged, {what}{told}", decided=False)


def _confirmed(state: BisectionState, low: int, high: int, attempts: int) -> Question | Answer:
    points = state.points
    before, suspect = points[low], points[high]
    between = points[low + 1 : high]
    found = _settled(state, before, suspect, attempts)
    if found is None:
        return Question(before, suspect)
    if found.finding is not Finding.BAD:
        said = f"{found.finding}: {found.why}"
        return Answer(
            (),
            f"no culprit: {points[-1]} is worse than {points[0]}, but {suspect} is not proven"
            f" worse than {before} ({said}); the loss consists of smaller steps",
        )
    why = f" ({found.why})" if found.why else ""
    if not between:
        return Answer((suspect,), f"first bad: {suspect}, worse than {before}{why}")
    reasons = "; ".join(f"{name}: {_reason(state, name)}" for name in between[:5])
    return Answer(
        (*between, suspect),
        f"the first bad one is among {', '.join((*between[:5], suspect))}: {suspect} is worse"
        f" than {before}{why}, and those between cannot be judged ({reasons})",
    )


def _reason(state: BisectionState, point: str) -> str:
    mine = [one for one in state.judgements if one.point == point]
    return f"{mine[-1].finding}, {mine[-1].why}" if mine else "not measured"


def judged_point(
    base: str, point: str, cells: Iterable[CellVerdict], cell_id: str, results: str
) -> PointJudgement:
    """A run's verdict of the bisected cell, as the bisection counts it."""
    cell = next((one for one in cells if one.cell_id == cell_id), None)
    if cell is None:
        why = f"the run has no result for {cell_id}"
        return PointJudgement(
            base=base, point=point, finding=Finding.INVALID, why=why, results=results
        )
    finding, why = _finding(cell)
    sessions = max((metric.session_count for metric in cell.metrics), default=0)
    return PointJudgement(
        base=base, point=point, finding=finding, why=why[:2_000], results=results,
        session_count=sessions,
    )  # fmt: skip


def _finding(cell: CellVerdict) -> tuple[Finding, str]:
    outcome = cell.outcome
    told = ", ".join(
        f"{m.metric} {m.loss_ratio:+.1%}"
        for m in cell.metrics
        if m.outcome is outcome and m.loss_ratio is not None
    )
    if outcome is Outcome.REGRESSED:
        return Finding.BAD, told
    if outcome is Outcome.PASS:
        return Finding.GOOD, told
    if outcome is Outcome.IMPROVED:
        return Finding.BETTER, told
    if outcome in (Outcome.SUSPECT, Outcome.INCONCLUSIVE):
        return Finding.UNDECIDED, told
    reasons = "; ".join(reason.text for reason in cell.invalid_reasons) or cell.missing
    died = any(reason.rule == "engine_died" for reason in cell.invalid_reasons)
    return (Finding.BROKEN if died else Finding.INVALID), reasons or str(outcome)
