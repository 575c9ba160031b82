"""The result of one round of load: samples, window, and how punctual the client was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from k3perf.records.samples import RequestSample


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """The requests sent to one of several endpoints, and its replies."""

    base_url: str
    request_count: int
    output_token_count: int


@dataclass(frozen=True, slots=True)
class RoundSamples:
    """One pass of a plan: a sample for every planned request, in plan order.

    ``client_lag_p99_ns`` is the client's lateness, the larger of two readings: how long
    a socket event waited for the client (a probe every 40 ms), and how late requests
    went out. Requests due at one instant queue for the wire, so only the first of each
    such group counts there. ``schedule_lag_p99_ns`` counts all. ``client_cpu_ns`` is
    the CPU time of sending, reading and decoding. ``stopped`` is true if the round was
    ended from outside.
    """

    samples: tuple[RequestSample, ...]
    start_ns: int
    end_ns: int
    client_lag_p99_ns: int
    client_cpu_ns: int
    schedule_lag_p99_ns: int
    endpoints: tuple[EndpointLoad, ...]
    stopped: bool = False


def percentile_ns(values: Sequence[int], share: float) -> int:
    """The smallest value that at least ``share`` of the values do not exceed (nearest
    rank). 0 without values.
    """
    if not values:
        return 0
    return sorted(values)[math.ceil(share * len(values)) - 1]


def schedule_lags_ns(samples: Sequence[RequestSample]) -> tuple[list[int], list[int]]:
    """Send lags of all requests that were sent, and of the first of each group due at
    one instant.
    """
    sent = [
        (sample.scheduled_ns, sample.sent_ns) for sample in samples if sample.sent_ns is not None
    ]
    firsts: dict[int, int] = {}
    for scheduled_ns, sent_ns in sent:
        firsts[scheduled_ns] = min(
            sent_ns - scheduled_ns, firsts.get(scheduled_ns, sent_ns - scheduled_ns)
        )
    return [sent_ns - scheduled_ns for scheduled_ns, sent_ns in sent], list(firsts.values())
