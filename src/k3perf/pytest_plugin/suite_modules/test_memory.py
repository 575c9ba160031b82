"""Weights, KV cache, peaks and capacity of every approved config, compared exactly or
with a tolerance in bytes.
"""

import pytest

from k3perf.config.suite import Cell
from k3perf.pytest_plugin.suite_judge import SuiteJudge
from k3perf.records.metric_definitions import Family


@pytest.mark.memory
@pytest.mark.capacity
def test_memory(cell: Cell, k3: SuiteJudge) -> None:
    k3.check(cell, (Family.MEMORY, Family.CAPACITY))
