"""Request samples to latency observations and their summary. Pure.

Only requests that ended OK give latencies. The others are counted by the status that
excluded them. Percentiles interpolate linearly between order statistics (type 7 of
Hyndman and Fan, *Sample Quantiles in Statistical Packages*, 1996). With fewer than ``1
/ (1 - p)`` observations a percentile is close to the largest one, so every value
carries its n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from k3perf.records.measurement import MetricValue
from k3perf.records.samples import RequestSample, RequestStatus
from k3perf.units import NS_PER_MS

STATISTICS: Final = ("mean", "p50", "p90", "p99")


@dataclass(slots=True)
class Observations:
    """Values in nanoseconds, each for ``weights[i]`` equal ones, and the excluded ones
    by reason.
    """

    values_ns: list[float] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)

    def add(self, value_ns: float, weight: int = 1) -> None:
        """One observation, or ``weight`` equal ones."""
        self.values_ns.append(value_ns)
        self.weights.append(weight)


def ttft_ns(sample: RequestSample) -> int | None:
    """First token of any channel minus send. None if either is missing."""
    if sample.first_token_ns is None or sample.sent_ns is None:
        return None
    return sample.first_token_ns - sample.sent_ns


def tpot_ns(sample: RequestSample) -> float | None:
    """``(last token - first token) / (tokens - 1)``, or None below two tokens. With
    parallel sequences, the tokens of one sequence.
    """
    tokens = sample.output_token_count / sample.sequence_count
    if sample.first_token_ns is None or sample.last_token_ns is None or tokens <= 1:
        return None
    return (sample.last_token_ns - sample.first_token_ns) / (tokens - 1)


def latency_observations(samples: Iterable[RequestSample]) -> dict[str, Observations]:
    """Observations of ``ttft``, ``tpot``, ``itl`` and ``e2e``."""
    found = {name: Observations() for name in ("ttft", "tpot", "itl", "e2e")}
    for sample in samples:
        if sample.status is not RequestStatus.OK:
            for observations in found.values():
                observations.excluded[sample.status.value] += 1
            continue
        _observe(sample, found)
    return found


def _observe(sample: RequestSample, found: dict[str, Observations]) -> None:
    first_ns = ttft_ns(sample)
    if first_ns is None or sample.sent_ns is None or sample.last_token_ns is None:
        for observations in found.values():
            observations.excluded["no_token_seen"] += 1
        return
    found["ttft"].add(first_ns)
    found["e2e"].add(sample.last_token_ns - sample.sent_ns)
    per_token_ns = tpot_ns(sample)
    if per_token_ns is None:
        found["tpot"].excluded["single_token"] += 1
        found["itl"].excluded["single_token"] += 1
        return
    found["tpot"].add(per_token_ns)
    if sample.sequence_count > 1:
        found["itl"].excluded["parallel_sequences"] += (
            # chunks of parallel sequences interleave, so gaps between chunks are not
            # gaps of one sequence
            1
        )
        return
    for before, after in zip(sample.chunks, sample.chunks[1:], strict=False):
        found["itl"].add((after.at_ns - before.at_ns) / after.token_count, after.token_count)


def summarise_ms(observations: Observations) -> dict[str, MetricValue]:
    """``mean``, ``p50``, ``p90`` and ``p99`` in milliseconds. None with n 0 without
    observations.
    """
    n = sum(observations.weights)
    excluded = dict(observations.excluded)
    if n == 0:
        return {name: MetricValue(None, 0, excluded) for name in STATISTICS}
    import numpy as np

    values_ms = np.repeat(
        np.asarray(observations.values_ns, dtype=np.float64) / NS_PER_MS, observations.weights
    )
    numbers = (
        float(values_ms.mean()),
        *(float(value) for value in np.percentile(values_ms, (50, 90, 99))),
    )
    return {
        name: MetricValue(number, n, excluded)
        for name, number in zip(STATISTICS, numbers, strict=True)
    }
