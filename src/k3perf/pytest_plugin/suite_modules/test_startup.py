"""Process start to ready, cold and warm compile cache apart."""

import pytest

from k3perf.config.suite import Cell
from k3perf.pytest_plugin.suite_judge import SuiteJudge
from k3perf.records.metric_definitions import Family


@pytest.mark.startup
def test_startup(cell: Cell, k3: SuiteJudge) -> None:
    k3.check(cell, (Family.STARTUP,))
