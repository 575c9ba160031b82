"""What a suite's tolerances gate: the metrics that share the family-wise error rate,
and names that are not a metric. Loads nothing heavy, because ``k3perf plan`` asks too.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from k3perf.config.suite import Cell, Suite
from k3perf.errors import ConfigFileError, raise_all
from k3perf.records.metric_definitions import METRICS, Comparison


def statistical_metric_count(suite: Suite, cells: Iterable[Cell]) -> int:
    """Gated statistical metrics over ``cells``: the parts that a run divides its error
    rates into. Exact metrics spend nothing of them.
    """
    return sum(
        1
        for cell in cells
        for name in suite.tolerances.for_cell(
            cell.target.name, cell.config.name, cell.workload.name
        )
        if name in METRICS and METRICS[name].comparison is Comparison.STATISTICAL
    )


def check_metric_names(suite: Suite) -> None:
    """Raises one ConfigFileError for every tolerance of a metric that does not exist,
    or of 0 for a metric that varies.
    """
    problems = []
    for place, tolerances in suite.tolerances.places():
        for name, tolerance in tolerances.items():
            value = None if tolerance is None else tolerance.model_dump(exclude_none=True)
            found = _problem(name, value)
            if found:
                path, key = suite.root / "tolerances.yaml", f"{place}.{name}"
                problems.append(ConfigFileError(path, key, value, *found))
    raise_all(problems)


def _problem(name: str, value: dict[str, Any] | None) -> tuple[str, str] | None:
    """What is wrong with a metric's tolerance, and the next step."""
    if name not in METRICS:
        near = get_close_matches(name, METRICS, n=1)
        example = f", such as {near[0]}" if near else ""
        return "no metric has this name", f"Use a name of docs/metrics.md{example}."
    varies = METRICS[name].comparison is Comparison.STATISTICAL
    if varies and value is not None and not any(value.values()):
        return (
            "a tolerance of 0 for a metric that varies from run to run can never be tested",
            "Give one above 0 (loss_ratio: 0.05 is 5 %), or null if the metric is not judged.",
        )
    return None
