"""Prometheus text of the server's ``/metrics`` -> a flat dict of numbers, and the
difference of two readings. Pure.

Label sets of one name are summed (engines of a data-parallel server, finish reasons). A
few names are also kept by one label, as ``name{label=value}``. Histogram buckets and
creation times are omitted; ``_sum`` and ``_count`` stay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

BY_LABEL: Final[dict[str, str]] = {
    "vllm:prompt_tokens_by_source_total": "source",
    "vllm:prompt_tokens_cached_by_source_total": "source",
    "vllm:request_success_total": "finished_reason",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": "position",
}

_LINE = re.compile(
    r"^(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$"
)
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_LEFT_OUT = ("_bucket", "_created")


class CounterTextError(ValueError):
    """The text is no Prometheus exposition; the message holds the offending line."""


@dataclass(frozen=True, slots=True)
class CounterDifference:
    """What counters grew by. ``reset``: names that fell or vanished, so the server
    restarted or was swapped in between.
    """

    values: dict[str, float]
    reset: tuple[str, ...]


def parse_counters(text: str) -> dict[str, float]:
    """Sum of every sample name over its label sets, plus ``name{label=value}`` for the
    names in ``BY_LABEL``.

    Raises CounterTextError for a line that is neither comment nor sample.
    """
    totals: dict[str, float] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.match(stripped)
        if match is None:
            raise CounterTextError(f"not a Prometheus sample: {stripped[:120]!r}")
        name = match["name"]
        if name.endswith(_LEFT_OUT):
            continue
        value = _number(match["value"], stripped)
        if not math.isfinite(
            value
        ):  # the server has no reading; a 0 would claim one, and a difference of infinities is none
            continue
        totals[name] = totals.get(name, 0.0) + value
        label = BY_LABEL.get(name)
        if label is not None:
            labels = dict(_LABEL.findall(match["labels"] or ""))
            key = f"{name}{{{label}={labels.get(label, '')}}}"
            totals[key] = totals.get(key, 0.0) + value
    return totals


def counter_difference(
    before: Mapping[str, float], after: Mapping[str, float]
) -> CounterDifference:
    """``after`` minus ``before`` for everything but gauges. A name that is new counts
    from 0; one that fell or vanished is a reset.
    """
    values: dict[str, float] = {}
    reset: list[str] = []
    for name in sorted(set(before) | set(after)):
        if not name.split("{", 1)[0].endswith(("_total", "_count", "_sum")):
            continue  # a gauge: its difference over a round is meaningless
        if name not in after or after[name] < before.get(name, 0.0):
            reset.append(name)
            continue
        values[name] = after[name] - before.get(name, 0.0)
    return CounterDifference(values, tuple(reset))


def _number(text: str, line: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CounterTextError(f"not a number in {line[:120]!r}") from None
