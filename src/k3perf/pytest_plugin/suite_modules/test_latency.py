"""TTFT, TPOT, inter-token and end-to-end latency of every approved config."""

import pytest

from k3perf.config.suite import Cell
from k3perf.pytest_plugin.suite_judge import SuiteJudge
from k3perf.records.metric_definitions import Family


@pytest.mark.latency
def test_latency(cell: Cell, k3: SuiteJudge) -> None:
    k3.check(cell, (Family.LATENCY,))
