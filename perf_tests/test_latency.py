"""TTFT, TPOT, inter-token and end-to-end latency of every approved config."""

import pytest

from k3perf.records.metric_definitions import Family


@pytest.mark.latency
def test_latency(cell, k3):
    k3.check(cell, (Family.LATENCY,))
