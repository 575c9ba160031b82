"""The eight outcomes and how they join.

Joining takes the worse of two by ``SEVERITY``; a maximum over a total order is
commutative, associative and idempotent, with PASS as its identity. A proven loss
outranks everything, since no other finding takes it back; SUSPECT and INCONCLUSIVE
claim least.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from k3perf.errors import ExitStatus


class Outcome(StrEnum):
    """What a metric, a cell or a run came to (docs/glossary.md)."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    INCONCLUSIVE = "INCONCLUSIVE"
    SUSPECT = "SUSPECT"
    INVALID = "INVALID"
    NO_BASELINE = "NO_BASELINE"
    CONFIG_DRIFT = "CONFIG_DRIFT"
    REGRESSED = "REGRESSED"


SEVERITY: Final[dict[Outcome, int]] = {outcome: rank for rank, outcome in enumerate(Outcome)}

EXIT_STATUS: Final[dict[Outcome, ExitStatus]] = {
    Outcome.PASS: ExitStatus.OK,
    Outcome.IMPROVED: ExitStatus.OK,
    Outcome.INCONCLUSIVE: ExitStatus.OK,  # INCONCLUSIVE fails under --k3-strict only
    Outcome.SUSPECT: ExitStatus.SUSPECT,
    Outcome.INVALID: ExitStatus.INVALID,
    Outcome.NO_BASELINE: ExitStatus.NO_BASELINE,
    Outcome.CONFIG_DRIFT: ExitStatus.CONFIG_DRIFT,
    Outcome.REGRESSED: ExitStatus.REGRESSED,
}


def join(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of the outcomes; PASS for none."""
    return max(outcomes, key=SEVERITY.__getitem__, default=Outcome.PASS)


def exit_status(outcome: Outcome, *, strict: bool) -> ExitStatus:
    """The process exit status for a joined outcome; ``strict`` makes INCONCLUSIVE a
    failure.
    """
    if outcome is Outcome.INCONCLUSIVE and strict:
        return ExitStatus.INCONCLUSIVE
    return EXIT_STATUS[outcome]
