"""Replay of a trace: production-like arrivals, lengths and prefix sharing, against the
baseline of the same window.
"""

import pytest

from k3perf.config.suite import Cell
from k3perf.pytest_plugin.suite_judge import SuiteJudge
from k3perf.records.metric_definitions import Family


@pytest.mark.trace
@pytest.mark.k3_workloads("trace")
def test_trace(cell: Cell, k3: SuiteJudge) -> None:
    k3.check(cell, (Family.THROUGHPUT, Family.LATENCY, Family.CACHE))
