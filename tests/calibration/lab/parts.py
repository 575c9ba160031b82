"""The gate without one of its parts, for the calibration only: each part is replaced by
the simplest thing that could stand in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

from k3perf.gate import decision, metric_verdict
from k3perf.stats import bounds, noise, pooling, sequential
from k3perf.stats.estimators import Location

Patches = Mapping[tuple[Any, str], Any]
"""By object and attribute, what stands there while the part is off."""

_schedule = sequential.schedule
_session = decision.Judgement._session


def _equal_shares(fractions: Sequence[float], power: float) -> tuple[float, ...]:
    return (1 / len(fractions),) * len(fractions) if fractions else ()


def _all_rounds_first(
    sessions: range, minimum_rounds: int, rounds: int, *rest: Any
) -> tuple[sequential.InterimAnalysis, ...]:
    return _schedule(sessions, max(minimum_rounds, rounds), rounds, *rest)


def _median_of_all(self: noise.MetricNoise, least: int, most: int) -> tuple[Location, int]:
    return Location.MEDIAN, max(min(most, self.round_count), least)


def _no_more_rounds(
    self: decision.Judgement, place: int, losses: Sequence[float], wanted: int
) -> decision.SessionLoss:
    given = self.limits
    self.limits = given._replace(maximum_rounds=wanted)
    try:
        return _session(self, place, losses, wanted)
    finally:
        self.limits = given


WITHOUT: Final[Mapping[str, Patches]] = MappingProxyType(
    {
        "spending function": {(sequential, "shares"): _equal_shares},
        "pre-tests (moderate always)": {
            (pooling, "spread_difference_p"): lambda *_: 0.0,
            (pooling, "variance_difference_p"): lambda *_: 0.0,
        },
        "pre-tests and moderation (pool always)": {
            (pooling, "spread_difference_p"): lambda *_: 1.0,
            (pooling, "variance_difference_p"): lambda *_: 1.0,
        },
        "moderation (own variance where spreads differ)": {
            (pooling, "_smyth_prior"): lambda *_: pooling.NO_PRIOR
        },
        "louder cell's own variance": {(noise.MetricNoise, "louder"): lambda *_: False},
        "pre-tests, moderation and louder cell (pool always)": {
            (pooling, "spread_difference_p"): lambda *_: 1.0,
            (pooling, "variance_difference_p"): lambda *_: 1.0,
            (noise.MetricNoise, "louder"): lambda *_: False,
        },
        "skewness term": {(noise, "pooled_skewness"): lambda *_: 0.0},
        "choice of estimator (median)": {(noise, "CHOICE_DF"): math.inf},
        "choice of estimator and rounds (median of all rounds)": {
            (noise.MetricNoise, "choice"): _median_of_all
        },
        "first analysis of fewer rounds": {(metric_verdict, "schedule"): _all_rounds_first},
        "more rounds for a session that spreads": {
            (decision.Judgement, "_session"): _no_more_rounds
        },
        "more rounds where some stand out": {(decision, "OUTLIER_SIGMAS"): math.inf},
        "a loss in each of few rounds": {(decision, "FEW_ROUNDS"): 0},
    }
)
"""By part: what replaces it."""


@contextmanager
def without(part: str) -> Iterator[None]:
    """The gate as if the part were not there. Empty: the gate as it is."""
    caches: tuple[Callable[[], None], ...] = (
        sequential.schedule.cache_clear,
        bounds.widths.cache_clear,
        bounds._detectable.cache_clear,
    )
    with ExitStack() as stack:
        for (where, name), stand_in in WITHOUT[part].items() if part else ():
            stack.enter_context(patch.object(where, name, stand_in))
        for clear in caches if part else ():
            clear()
            stack.callback(clear)
        yield
