"""Weights, KV cache, peaks and capacity of every approved config, compared exactly or
with a tolerance in bytes.
"""

import pytest

from k3perf.records.metric_definitions import Family


@pytest.mark.memory
@pytest.mark.capacity
def test_memory(cell, k3):
    k3.check(cell, (Family.MEMORY, Family.CAPACITY))
