"""Prefix sharing: the hit rate of a known shared prefix is the approved one, and with
it what the cache saves.
"""

import pytest

from k3perf.records.metric_definitions import Family


@pytest.mark.prefix_cache
@pytest.mark.k3_workloads("prefix")
def test_prefix_cache(cell, k3):
    k3.check(cell, (Family.CACHE,))
