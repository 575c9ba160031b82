"""The configuration that the engine resolved is the one that was approved: a changed
default under a tuned setup is seen here.
"""

import pytest

from k3perf.config.suite import Cell
from k3perf.pytest_plugin.suite_judge import SuiteJudge


@pytest.mark.configuration
def test_config_lock(cell: Cell, k3: SuiteJudge) -> None:
    k3.check_configuration(cell)
