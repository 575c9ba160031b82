"""Tokens per second of every approved config. These tests carry the rounds for
pytest-benchmark.
"""

import pytest

from k3perf.records.metric_definitions import Family


@pytest.mark.throughput
def test_throughput(cell, k3, benchmark, replay_clock):
    k3.check(cell, (Family.THROUGHPUT, Family.ENERGY), benchmark, replay_clock)
