"""A seed to a small trace with the statistics of production chat traffic, in Mooncake's
form. Pure. Copies no real trace.

The statistics follow the published conversation trace of a large chat service. Arrivals
come in steps of three seconds. Prompts are log-normal (median near 6,900 tokens, sigma
of the logarithm 1.2), replies too (median 350). Every prompt begins with one shared
block. Conversations return with a longer prompt, so an unbounded cache hits about a
third of the prompt tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from k3perf.config.workload_spec import LogNormalLength
from k3perf.units import MS_PER_S
from k3perf.workload.draws import draw_lengths, uniforms
from k3perf.workload.trace_rows import TRACE_BLOCK_TOKENS, TraceRow

_STEP_MS: Final = 3000
_PROMPTS: Final = LogNormalLength(kind="lognormal", median=6500, sigma=1.15, low=891, high=126_000)
_REPLIES: Final = LogNormalLength(kind="lognormal", median=350, sigma=0.65, low=1, high=2000)
_NEW_TURNS: Final = LogNormalLength(kind="lognormal", median=250, sigma=1.0, low=8, high=8000)
_RETURN_SHARE: Final = 0.34
_REMEMBERED: Final = 40


@dataclass(frozen=True, slots=True)
class _Turn:
    input_length: int
    output_length: int
    hash_ids: tuple[int | str, ...]


def synthesise_trace(*, requests: int, duration_s: float, seed: int) -> tuple[TraceRow, ...]:
    """``requests`` rows over ``duration_s`` seconds. The same seed gives
    the same rows.
    """
    prompts = draw_lengths(_PROMPTS, seed=seed, label="trace/prompt", count=requests)
    replies = draw_lengths(_REPLIES, seed=seed, label="trace/reply", count=requests)
    turns = draw_lengths(_NEW_TURNS, seed=seed, label="trace/turn", count=requests)
    times = sorted(uniforms(seed, "trace/time", requests))
    comes_back = uniforms(seed, "trace/return", requests)
    which = uniforms(seed, "trace/which", requests)
    fresh_ids = count(1)
    remembered: list[_Turn] = []
    rows = []
    for index in range(requests):
        if remembered and comes_back[index] < _RETURN_SHARE:
            before = remembered.pop(int(which[index] * len(remembered)))
            length = before.input_length + before.output_length + turns[index]
            kept = before.hash_ids[: before.input_length // TRACE_BLOCK_TOKENS]
        else:
            length, kept = prompts[index], (0,)
        ids = _block_ids(kept, length, fresh_ids)
        timestamp_ms = int(times[index] * duration_s * MS_PER_S) // _STEP_MS * _STEP_MS
        rows.append(TraceRow(timestamp_ms, length, replies[index], ids))
        remembered = [*remembered, _Turn(length, replies[index], ids)][-_REMEMBERED:]
    return tuple(rows)


def _block_ids(
    kept: tuple[int | str, ...], length: int, fresh_ids: Iterator[int]
) -> tuple[int | str, ...]:
    wanted = -(-length // TRACE_BLOCK_TOKENS)
    return (*kept, *(next(fresh_ids) for _ in range(wanted - len(kept))))[:wanted]
