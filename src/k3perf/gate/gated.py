"""What a suite's tolerances gate: the metrics that share the error budgets, and names
that are no metric. Loads nothing heavy: ``k3perf plan`` asks too.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from k3perf.config.suite import Cell, Suite
from k3perf.errors import ConfigFileError, raise_all
from k3perf.records.metric_definitions import METRICS, Comparison


def statistical_metric_count(suite: Suite, cells: Iterable[Cell]) -> int:
    """Gated statistical metrics over ``cells``: the parts that a run divides its error
    budgets into. Exact metrics spend nothing of them.
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
            if name not in METRICS:
                near = get_close_matches(name, METRICS, n=1)
                next_step = (
                    f"Use a name of docs/metrics.md{f', such as {near[0]}' if near else ''}."
                )
                problems.append(
                    ConfigFileError(
                        suite.root / "tolerances.yaml",
                        f"{place}.{name}",
                        value,
                        "no metric has this name",
                        next_step,
                    )
                )
            elif (
                METRICS[name].comparison is Comparison.STATISTICAL
                and tolerance is not None
                and not any((value or {}).values())
            ):
                problem = (
                    "a tolerance of 0 for a metric that varies from run to run can never be tested"
                )
                next_step = (
                    "Give one above 0 (loss_ratio: 0.05 is 5 %), or null where the metric is not"
                    " judged."
                )
                problems.append(
                    ConfigFileError(
                        suite.root / "tolerances.yaml", f"{place}.{name}", value, problem, next_step
                    )
                )
    raise_all(problems)
