"""Tokens per second of every approved config. These tests carry the rounds for
pytest-benchmark.
"""

from typing import Any

import pytest

from k3perf.config.suite import Cell
from k3perf.pytest_plugin.replay import ReplayClock
from k3perf.pytest_plugin.suite_judge import SuiteJudge
from k3perf.records.metric_definitions import Family


@pytest.mark.throughput
def test_throughput(cell: Cell, k3: SuiteJudge, benchmark: Any, replay_clock: ReplayClock) -> None:
    k3.check(cell, (Family.THROUGHPUT, Family.ENERGY), benchmark, replay_clock)
