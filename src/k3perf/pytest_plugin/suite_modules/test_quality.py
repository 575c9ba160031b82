"""Answers of every config next to the reference config's: divergence, agreement and
perplexity on fixed prompts, by quarter of the context.
"""

import pytest

from k3perf.records.metric_definitions import Family


@pytest.mark.quality
def test_quality(cell, k3):
    k3.check(cell, (Family.QUALITY,))
