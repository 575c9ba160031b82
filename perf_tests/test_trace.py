"""Replay of a trace: production-like arrivals, lengths and prefix sharing, against the
baseline of the same window.
"""

import pytest

from k3perf.records.metric_definitions import Family


@pytest.mark.trace
@pytest.mark.k3_workloads("trace")
def test_trace(cell, k3):
    k3.check(cell, (Family.THROUGHPUT, Family.LATENCY, Family.CACHE))
