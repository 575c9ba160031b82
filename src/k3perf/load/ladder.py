"""Climb levels of load, one after the other. Pure: what runs a level is a callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Level = TypeVar("Level")


@dataclass(frozen=True, slots=True)
class Ladder(Generic[Level]):
    """The results of the levels that were run, in order. ``stopped``: an end was asked
    for before the last level.
    """

    results: tuple[Level, ...]
    stopped: bool = False


def climb(
    levels: Sequence[float],
    run_level: Callable[[float, int], Level],
    *,
    enough: Callable[[Level], bool] = lambda _: False,
) -> Ladder[Level]:
    """Run ``run_level(level, position)`` for each level, from the lowest up.

    Stops after the first result for which ``enough`` is true, such as a level that
    misses its objectives. An exception of a level ends the climb.
    """
    results: list[Level] = []
    ordered = sorted(set(levels))
    for position, level in enumerate(ordered):
        results.append(run_level(level, position))
        if enough(results[-1]):
            return Ladder(tuple(results), stopped=position + 1 < len(ordered))
    return Ladder(tuple(results))


def best_level(
    results: Sequence[Level], *, passes: Callable[[Level], bool], worth: Callable[[Level], float]
) -> Level | None:
    """The passing result of the highest worth, such as throughput. None if none
    passes.
    """
    passing = [result for result in results if passes(result)]
    return max(passing, key=worth) if passing else None


def doubling(lowest: int, highest: int) -> tuple[int, ...]:
    """Levels from ``lowest`` to ``highest``, each twice the one before."""
    levels = [lowest]
    while levels[-1] * 2 < highest:
        levels.append(levels[-1] * 2)
    if levels[-1] < highest:
        levels.append(highest)
    return tuple(levels)
