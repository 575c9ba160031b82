"""Prefix sharing: the hit rate of a known shared prefix is the approved one, and with
it what the cache saves.
"""

import pytest

from k3perf.config.suite import Cell
from k3perf.pytest_plugin.suite_judge import SuiteJudge
from k3perf.records.metric_definitions import Family


@pytest.mark.prefix_cache
@pytest.mark.k3_workloads("prefix")
def test_prefix_cache(cell: Cell, k3: SuiteJudge) -> None:
    k3.check(cell, (Family.CACHE,))
