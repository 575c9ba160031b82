"""Answers of every config next to the reference config's: divergence, agreement and
perplexity on fixed prompts, by quarter of the context.
"""

import pytest

from k3perf.config.suite import Cell
from k3perf.pytest_plugin.suite_judge import SuiteJudge
from k3perf.records.metric_definitions import Family


@pytest.mark.quality
def test_quality(cell: Cell, k3: SuiteJudge) -> None:
    k3.check(cell, (Family.QUALITY,))
