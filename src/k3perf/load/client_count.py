"""How many client processes a plan needs. Pure but for the number of CPUs."""

from __future__ import annotations

import math
import os
from typing import Final, Literal

from k3perf.units import NS_PER_S
from k3perf.workload.request_plan import Plan

TOKENS_PER_S_OF_A_PROCESS: Final = 15_000
"""One core carries about 20,000 (docs/load.md). The rest is for bursts."""
STREAMS_OF_A_PROCESS: Final = 512
"""A step of more streams than this is read over more than 5 ms."""

ClientProcesses = int | Literal["auto"]


def client_process_count(plan: Plan, wanted: ClientProcesses) -> int:
    """The given number, or for ``auto`` what the plan's streams and rate need: at most
    one process for each CPU but one, which the server or the kernel keeps.
    """
    if wanted != "auto":
        return wanted
    needed = max(
        math.ceil(streams_at_once(plan) / STREAMS_OF_A_PROCESS),
        math.ceil(expected_tokens_per_s(plan) / TOKENS_PER_S_OF_A_PROCESS),
        1,
    )
    return min(needed, max(len(os.sched_getaffinity(0)) - 1, 1))


def streams_at_once(plan: Plan) -> int:
    """The concurrency, or the most requests that are due within one second."""
    offsets = [request.offset_ns for request in plan.requests if request.offset_ns is not None]
    if plan.concurrency is not None:
        return min(plan.concurrency, len(plan.requests))
    most = begin = 0
    for end, offset_ns in enumerate(offsets):
        while offset_ns - offsets[begin] > NS_PER_S:
            begin += 1
        most = max(most, end - begin + 1)
    return most


def expected_tokens_per_s(plan: Plan) -> float:
    """Output tokens per second of an open loop. 0 for a closed loop, whose rate is the
    server's.
    """
    offsets = [request.offset_ns for request in plan.requests if request.offset_ns is not None]
    if len(offsets) < 2 or offsets[-1] == offsets[0]:
        return 0.0
    tokens = sum(request.output_token_count for request in plan.requests)
    return tokens * NS_PER_S / (offsets[-1] - offsets[0])
