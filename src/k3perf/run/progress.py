"""What a run reports while it works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a run: a cell, or one session of a cell in a recording.

    ``expected_s``: seconds it is expected to take with its engine's start, None where
    no earlier run measured anything like it. ``sessions_count``: how many sessions that
    covers.
    """

    cell: str
    expected_s: float | None = None
    sessions_count: int = 1


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A measured round, or a warm-up round (``number`` 0).

    ``session_number`` counts the cell's sessions from 1. ``valid_count`` of
    ``wanted_count`` rounds (pairs of rounds where two engines are compared) are there.
    ``arm_count``: rounds that make one of them. ``invalid``: why the round is not
    valid, empty when it is.
    """

    cell: str
    arm: str
    session_number: int
    number: int
    valid_count: int
    wanted_count: int
    arm_count: int
    invalid: str = ""


class Progress:
    """Listener for a run's steps; this one says nothing. Every call returns at once and
    never raises; ``stage`` may come from any thread.
    """

    def planned(self, steps: Sequence[Step]) -> None:
        """The run is about to start; these steps follow, in this order."""

    def started(self, cell: str) -> None:
        """A step of ``cell`` begins."""

    def stage(self, engine: str, stage: str) -> None:
        """An engine reached a stage of its start (import, load, profile, compile,
        capture, ready), or it stops.
        """

    def measuring(self, arm: str) -> None:
        """A round is measured from now until ``round`` or ``finished``: nothing may
        disturb the client.
        """

    def round(self, done: RoundDone) -> None:
        """A round ended."""

    def undecided(self, cell: str, sessions_count: int, rounds_count: int) -> None:
        """The gate asks for more data: up to this many sessions with this many valid
        rounds each.
        """

    def finished(self, cell: str, outcome: str, *, measured: bool) -> None:
        """A step of ``cell`` ended. ``measured`` is False where no engine was needed
        (no baseline, a resumed run).
        """

    def note(self, text: str) -> None:
        """Something worth a line that stays."""
