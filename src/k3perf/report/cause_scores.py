"""How much of a slowdown each cause explains. Pure.

A request's time is queue + prefill + decode + front end. Their changes in milliseconds
add up to the change of the whole, so that the causes share it without a model. Three
steps lead from parts to causes:

1. The decode time is split into pure steps (the median gap between tokens) and what
   other requests' prefills insert between them.
2. A step that takes longer by a ratio takes prefill and insertions with it. That much
   of their growth counts as slow decode, the rest as slow prefill.
3. A queue grows for what holds the requests back: less cache, a lower batch limit, or
   longer steps. Evidence decides in this order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from k3perf.metrics.arm_parts import PartValue
from k3perf.metrics.server_times import (
    DECODE,
    END_TO_END,
    FRONT_END,
    PREEMPTIONS,
    PREFILL,
    QUEUE,
    TOKENS,
)
from k3perf.records.attribution import Cause

Parts = Mapping[str, PartValue]

_ERRORS: Final = 2.5
"""Standard errors that a change must exceed to be one."""

_LEAST_SHARE: Final = 0.003
"""Changes below this share of a request's time are noise whatever their error says."""

_HIT_RATIO_LOSS: Final = 0.02
_CAPACITY_LOSS: Final = 0.005
_STEP_LONGER: Final = 0.03
BATCH_KEYS: Final = ("max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens")


@dataclass(frozen=True, slots=True)
class Scores:
    """Milliseconds a request by cause, and the whole slowdown in milliseconds."""

    by_cause: Mapping[Cause, float]
    slower_ms: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Changes of parts that are beyond noise, in milliseconds a request (0: none)."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    front_end_ms: float
    pure_decode_ms: float
    step_ratio: float
    prefill_was_ms: float
    inserted_was_ms: float


def scores(was: Parts, now: Parts, *, lower_batch_limit: bool) -> Scores:
    """``was`` and ``now`` need the server's parts. ``lower_batch_limit``: a setting in
    ``BATCH_KEYS`` is lower than it was.
    """
    growth = growth_of(was, now)
    found = dict.fromkeys(Cause, 0.0)
    found[Cause.FRONT_END] = growth.front_end_ms
    inserted_ms = max(growth.decode_ms - growth.pure_decode_ms, 0.0)
    with_step_ms = min(inserted_ms, growth.step_ratio * growth.inserted_was_ms) + min(
        growth.prefill_ms, growth.step_ratio * growth.prefill_was_ms
    )
    found[Cause.SLOW_DECODE] = growth.pure_decode_ms + with_step_ms
    rest_ms = growth.prefill_ms + inserted_ms - with_step_ms
    held_ms = growth.queue_ms
    if less_cache(was, now):
        found[Cause.SMALLER_CACHE] = held_ms + rest_ms
    elif fewer_hits(was, now):
        found[Cause.PREFIX_CACHE] = held_ms + rest_ms
    elif lower_batch_limit:
        found[Cause.BATCH_LIMIT] = held_ms + rest_ms
    else:
        _longer_steps(found, growth, held_ms, rest_ms)
    slower = change(was, now, END_TO_END)
    return Scores({cause: ms for cause, ms in found.items() if ms > 0}, max(slower, 0.0))


def _longer_steps(
    found: dict[Cause, float], growth: Growth, held_ms: float, rest_ms: float
) -> None:
    """Requests wait longer because steps take longer, if they do."""
    found[Cause.SLOW_PREFILL] = rest_ms
    prefill_ratio = growth.prefill_ms / growth.prefill_was_ms if growth.prefill_was_ms else 0.0
    if max(growth.step_ratio, prefill_ratio) < _STEP_LONGER:
        found[Cause.QUEUE] = held_ms
    elif found[Cause.SLOW_DECODE] >= rest_ms:
        found[Cause.SLOW_DECODE] += held_ms
    else:
        found[Cause.SLOW_PREFILL] += held_ms


def growth_of(was: Parts, now: Parts) -> Growth:
    """The parts' changes."""
    decode_ms = _grown(was, now, DECODE)
    gaps = max(_value(was, TOKENS) - 1.0, 0.0)
    step_was_ms = _value(was, "itl_p50_ms")
    pure_ms = min(_grown(was, now, "itl_p50_ms", times=gaps) * gaps, decode_ms)
    pure_was_ms = step_was_ms * gaps
    return Growth(
        queue_ms=_grown(was, now, QUEUE),
        prefill_ms=_grown(was, now, PREFILL),
        decode_ms=decode_ms,
        front_end_ms=_grown(was, now, FRONT_END),
        pure_decode_ms=pure_ms,
        step_ratio=pure_ms / pure_was_ms if pure_was_ms else 0.0,
        prefill_was_ms=_value(was, PREFILL),
        inserted_was_ms=max(_value(was, DECODE) - pure_was_ms, 0.0),
    )


def less_cache(was: Parts, now: Parts) -> bool:
    """The KV cache holds fewer tokens, or requests are preempted that were not."""
    return lost_share(was, now, "kv_capacity_tokens") > _CAPACITY_LOSS or (
        change(was, now, PREEMPTIONS) > max(1.0, noise(was, now, PREEMPTIONS))
    )


def fewer_hits(was: Parts, now: Parts) -> bool:
    """Fewer prompt tokens were found in the prefix cache. A server without prefix
    caching counts no queries, so that a ratio that vanished is a lost one.
    """
    if "prefix_hit_ratio" in was and "prefix_hit_ratio" not in now:
        return was["prefix_hit_ratio"].value > _HIT_RATIO_LOSS
    return -change(was, now, "prefix_hit_ratio") > max(
        _HIT_RATIO_LOSS, noise(was, now, "prefix_hit_ratio")
    )


def lost_share(was: Parts, now: Parts, name: str) -> float:
    """The share of a part that was lost, 0 where it is not known in both."""
    before = _value(was, name)
    return -change(was, now, name) / before if before else 0.0


def change(was: Parts, now: Parts, name: str) -> float:
    """Now minus was, 0 where one of them is not known."""
    return now[name].value - was[name].value if name in was and name in now else 0.0


def noise(was: Parts, now: Parts, name: str) -> float:
    """What the change of a part must exceed."""
    return (
        _ERRORS * math.hypot(was[name].error, now[name].error)
        if name in was and name in now
        else 0.0
    )


def _grown(was: Parts, now: Parts, name: str, *, times: float = 1.0) -> float:
    """The growth beyond noise, else 0. ``times``: how often a request has the part."""
    least_ms = _LEAST_SHARE * _value(was, END_TO_END) / times if times else 0.0
    grown = change(was, now, name)
    return grown if grown > max(noise(was, now, name), least_ms) else 0.0


def _value(parts: Parts, name: str) -> float:
    return parts[name].value if name in parts else 0.0
