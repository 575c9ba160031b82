"""A clock of its own for stand-in engines: tests of whole runs then do not depend on
how busy the machine is.

A stand-in says at GET /stand_in what a token takes. It does not wait that long: the
round is played for real (plan, client, HTTP, process tree), and the times of its
samples are then those of an engine that works at the stated pace. Pytest loads this as
a plugin in the process under test.
"""

from __future__ import annotations

import gc
import heapq
import json
import random
import urllib.request
from dataclasses import replace
from typing import Any

import pytest

ENGINE_NOISE, ROUND_NOISE = (
    0.004,
    0.01,
)  # relative; an engine that never varies would be compared exactly


def wear(root: str) -> str:
    """The text of a conftest.py that puts this clock on the runs of a suite; ``root``:
    this file's folder.
    """
    return (
        f"import sys\n\nsys.path.insert(0, {root!r})\nfrom own_clock import pytest_runtestloop  #"
        " noqa: F401\n"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: Any) -> None:
    """Before the first engine starts; a run that only collects needs no load generator."""
    if session.config.option.collectonly:
        return
    from k3perf.engine import process_tree, supervisor
    from k3perf.run import live

    supervisor._POLL_S, process_tree._ORDERLY_POLL_S = (
        0.05,
        0.02,
    )  # a stand-in starts and ends sooner than an engine
    # a round begins with a full collection, which then looks at what is new alone
    gc.freeze()
    real, engines, rounds = live.run_round, {}, []

    def run_round(plan: Any, *, base_url: str, **rest: Any) -> Any:
        seen = real(plan, base_url=base_url, **rest)
        engine = engines.setdefault(base_url, len(engines))
        rounds.append(engine)
        if seen.stopped or any(sample.status != "ok" for sample in seen.samples):
            return seen  # what went wrong is told as it was seen
        with urllib.request.urlopen(f"{base_url}/stand_in", timeout=60) as answer:  # noqa: S310
            pace_ns = 1e9 * json.load(answer)["token_s"]
        draw = random.Random(len(rounds))
        noise = random.Random(engine).gauss(1, ENGINE_NOISE) * draw.gauss(1, ROUND_NOISE)
        return at_pace(plan, seen, pace_ns * noise)

    live.run_round = run_round


def at_pace(plan: Any, seen: Any, token_ns: float) -> Any:
    """The round with the times of an engine that gives a token each ``token_ns`` and
    serves any number at once.

    The round ends when it really ended, so that its window lies in the past.
    """
    free = [0.0] * (plan.concurrency or len(plan.requests))
    begins, ends = {}, {}
    for request in plan.requests:
        at = heapq.heappop(free)
        if request.offset_ns is not None:
            at = max(at, float(request.offset_ns))
        elif request.previous_index is not None:
            at = max(at, ends[request.previous_index] + request.think_time_ns)
        begins[request.index] = at
        ends[request.index] = at + token_ns * request.output_token_count
        heapq.heappush(free, ends[request.index])
    start_ns = seen.end_ns - round(max(ends.values()))
    samples = []
    for sample in seen.samples:
        begin_ns = start_ns + begins[sample.request_index]
        count, chunks = 0, []
        for chunk in sample.chunks:
            count += chunk.token_count
            chunks.append(replace(chunk, at_ns=round(begin_ns + token_ns * count)))
        times = {
            "scheduled_ns": round(begin_ns),
            "sent_ns": round(begin_ns),
            "end_ns": chunks[-1].at_ns,
        }
        samples.append(replace(sample, chunks=tuple(chunks), **times))
    lags = {"client_lag_p99_ns": 0, "schedule_lag_p99_ns": 0}
    return replace(seen, samples=tuple(samples), start_ns=start_ns, **lags)
