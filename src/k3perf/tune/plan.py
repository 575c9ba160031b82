"""What a tuning run is asked for: parameters with their values, objective, bounds,
error rates, budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from k3perf.records.tuning import BoundSpec, Change

ERROR_RATE: Final = 0.01
"""Probability that a run proposes a point without a true gain, all tests together."""

KEEP_RATE: Final = 0.95
"""Probability that a sweep's race keeps its best value to the end, all comparisons and
interim analyses together.
"""

SMALLEST_EFFECT: Final = 0.02
"""Ratio below which a gain is not worth another session."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One vLLM argument and the values to try. ``ordered``: the values are numbers that
    rise. ``lossy``: it changes what the model computes, so quality must be read too.
    """

    step: str
    name: str
    values: tuple[Any, ...]
    ordered: bool = True
    lossy: bool = False


def not_excluded(_: Change) -> str:
    """The default of ``TuningPlan.exclude``: every point is measured."""
    return ""


@dataclass(frozen=True)
class TuningPlan:
    """A run.

    ``base_arguments``: the engine arguments of the base config. ``exclude``: why a
    point need not be measured, empty if it must. ``quality_loss``: known quality loss
    by the label of a lossy change alone. ``screen_blocks``: blocks before the first and
    after the last interim analysis of a sweep. ``confirm_looks``: block counts at which
    a confirmation is tested. ``expected_session_s``: the cost of a session before one
    was measured.
    """

    parameters: tuple[Parameter, ...]
    objective: str = "output_tokens_per_s"
    bounds: tuple[BoundSpec, ...] = ()
    front_metrics: tuple[str, ...] = ("output_tokens_per_s", "ttft_p99_ms")
    base_arguments: Mapping[str, Any] = field(default_factory=dict)
    exclude: Callable[[Change], str] = not_excluded
    quality_loss: Mapping[str, float] = field(default_factory=dict)
    largest_quality_loss: float = 0.0
    error_rate: float = ERROR_RATE
    keep_rate: float = KEEP_RATE
    smallest_effect: float = SMALLEST_EFFECT
    screen_blocks: tuple[int, int] = (2, 4)
    confirm_looks: tuple[int, ...] = (3, 6)
    validate_blocks: int = 3
    validation_workload: str = ""
    budget_s: float | None = None
    expected_session_s: float = 60.0

    @property
    def test_count(self) -> int:
        """Tests that can propose a point: one per parameter, one of the combination."""
        return len(self.parameters) + 1

    @property
    def test_level(self) -> float:
        """One-sided level of each test (Bonferroni)."""
        return self.error_rate / self.test_count

    @property
    def interim_count(self) -> int:
        """Interim analyses of one sweep."""
        first, last = self.screen_blocks
        return last - first + 1

    def least_session_count(self) -> int:
        """Sessions of a run in which every race ends at its first interim analysis and
        nothing is nominated.
        """
        return sum(
            self.screen_blocks[0] * (1 + self._candidate_count(item)) for item in self.parameters
        )

    def most_session_count(self) -> int:
        """Sessions of a run in which nothing is dropped and every confirmation goes to
        its end.
        """
        last = self.confirm_looks[-1]
        sweeps = sum(
            self.screen_blocks[1] * (1 + self._candidate_count(item)) + 2 * last
            for item in self.parameters
        )
        parts = len(self.parameters)
        combination = last * (parts + 2) if parts > 1 else 0
        return sweeps + combination + (2 * self.validate_blocks if self.validation_workload else 0)

    def change_to(self, parent: Change, parameter: Parameter, value: Any) -> Change:
        """The parent with one value changed. The base's own value is no change."""
        change = {name: old for name, old in parent.items() if name != parameter.name}
        known = parameter.name in self.base_arguments
        if known and self.base_arguments[parameter.name] == value:
            return change
        return {**change, parameter.name: value}

    def _candidate_count(self, parameter: Parameter) -> int:
        changes = (self.change_to({}, parameter, value) for value in parameter.values)
        return sum(1 for change in changes if change and not self.exclude(change))
