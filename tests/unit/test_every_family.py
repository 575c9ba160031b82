"""A gated metric of a family that no test asks for would be judged and fail nothing."""

from __future__ import annotations

import re
from pathlib import Path

from k3perf.records.metric_definitions import Family

PERF_TESTS = Path(__file__).resolve().parents[2] / "perf_tests"


def test_every_family_fails_a_test() -> None:
    asked = {
        name
        for path in PERF_TESTS.glob("test_*.py")
        for name in re.findall(r"Family\.(\w+)", path.read_text())
    }
    assert asked == {family.name for family in Family}
