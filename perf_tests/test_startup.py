"""Process start to ready, cold and warm compile cache apart."""

import pytest

from k3perf.records.metric_definitions import Family


@pytest.mark.startup
def test_startup(cell, k3):
    k3.check(cell, (Family.STARTUP,))
