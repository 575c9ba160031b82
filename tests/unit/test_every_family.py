"""A gated metric of a family that no test asks for would be judged and fail nothing."""

from __future__ import annotations

import re
from pathlib import Path

from k3perf.records.metric_definitions import Family

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("src/k3perf/pytest_plugin/suite_modules", "perf_tests")


def test_every_family_fails_a_test() -> None:
    asked = {
        name
        for folder in FOLDERS
        for path in (REPOSITORY / folder).glob("test_*.py")
        for name in re.findall(r"Family\.(\w+)", path.read_text())
    }
    assert asked == {family.name for family in Family}


def test_a_module_of_this_suite_is_one_that_ships() -> None:
    """A suite made by `k3perf init` has the shipped modules alone."""
    shipped, own = (
        {path.name for path in (REPOSITORY / folder).glob("test_*.py")} for folder in FOLDERS
    )
    assert own <= shipped, "move the test to suite_modules, and import it here"
